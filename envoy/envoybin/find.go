package envoybin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Environment variables that control what Find and ForTests return.
const (
	// BinEnv names one Envoy binary, by its path.
	BinEnv = "ENVOY_BIN"
	// ListEnv lists pinned versions to test with, separated by spaces.
	ListEnv = "ENVOYS"
)

// Least is the oldest release that accepts the configurations of package envoy. An older one is not used.
const Least = "1.35"

// versionTimeout bounds how long an Envoy may take to print its version: the file is large and may not be in the page
// cache.
const versionTimeout = time.Minute

// ErrNone: there is no Envoy. The error that wraps it says where Find looked.
var ErrNone = errors.New("no Envoy")

// SettingError is an environment variable whose value cannot be used. Programs exit 2 for it.
type SettingError struct {
	// Name is the variable's name, Value its value.
	Name, Value string
	// Problem says what is wrong, Want what is allowed.
	Problem, Want string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("%s is %q, %s; it must %s", e.Name, e.Value, e.Problem, e.Want)
}

// Binary is an Envoy that runs on this machine.
type Binary struct {
	// Version is the release, such as "1.40.0".
	Version string
	// Path is absolute.
	Path string
	// Origin says where it was found: "ENVOY_BIN", "PATH" or "pinned".
	Origin string
}

// Name is its name in tests and logs: envoy-1.40.0.
func (b Binary) Name() string { return "envoy-" + b.Version }

func (b Binary) String() string { return fmt.Sprintf("%s (%s, %s)", b.Name(), b.Origin, b.Path) }

// Find returns the Envoy to run. toolchain is the folder that Installer unpacks into. The error is a *SettingError when
// ENVOY_BIN names none that can be used, and wraps ErrNone when there is no Envoy.
func Find(ctx context.Context, toolchain string) (Binary, error) {
	if b, ok, err := named(ctx); ok || err != nil {
		return b, err
	}
	onPath, pathErr := fromPath(ctx)
	if pathErr == nil {
		return onPath, nil
	}
	b, err := Installed(ctx, toolchain, Default)
	if err != nil {
		return Binary{}, fmt.Errorf("%w: %s is not set, %w, %w", ErrNone, BinEnv, pathErr, err)
	}
	return b, nil
}

// Missing is an Envoy that tests should run on but cannot.
type Missing struct {
	// Version is the release.
	Version string
	// Err says why it cannot be used.
	Err error
}

func (m Missing) String() string { return fmt.Sprintf("envoy-%s (%v)", m.Version, m.Err) }

// ForTests returns the Envoys to test with, and those that are missing. If neither ENVOYS nor ENVOY_BIN is set, an
// `envoy` on PATH replaces a missing Default. The error is a *SettingError.
func ForTests(ctx context.Context, toolchain string) (found []Binary, missing []Missing, err error) {
	versions := strings.Fields(os.Getenv(ListEnv))
	for _, v := range versions {
		if !slices.Contains(Pinned(), v) {
			return nil, nil, &SettingError{ListEnv, os.Getenv(ListEnv), "with " + v + ", which is not pinned",
				"list some of " + strings.Join(Pinned(), " ")}
		}
	}
	listed := len(versions) > 0
	if !listed {
		if b, ok, err := named(ctx); err != nil {
			return nil, nil, err
		} else if ok {
			return []Binary{b}, nil, nil
		}
		versions = []string{Default, Oldest}
	}
	for _, v := range versions {
		b, err := Installed(ctx, toolchain, v)
		if err != nil && v == Default && !listed {
			if onPath, pathErr := fromPath(ctx); pathErr == nil {
				b, err = onPath, nil
			}
		}
		if err != nil {
			missing = append(missing, Missing{v, err})
		} else if !slices.ContainsFunc(found, func(f Binary) bool { return f.Version == b.Version }) {
			found = append(found, b)
		}
	}
	return found, missing, nil
}

// Required reports whether a missing Envoy fails the tests: in CI (CI=true), and when ENVOYS names the versions.
func Required() bool { return os.Getenv("CI") == "true" || strings.TrimSpace(os.Getenv(ListEnv)) != "" }

// Installed returns the pinned version from the toolchain folder.
func Installed(ctx context.Context, toolchain, version string) (Binary, error) {
	path, err := filepath.Abs(binaryPath(toolchain, version))
	if err != nil {
		return Binary{}, err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return Binary{}, fmt.Errorf("envoy-%s is not installed in %s", version, toolchain)
	}
	b, err := inspect(ctx, path, "pinned")
	if err == nil && b.Version != version {
		err = fmt.Errorf("%s is Envoy %s, not %s", path, b.Version, version)
	}
	return b, err
}

func binaryPath(toolchain, version string) string {
	return filepath.Join(toolchain, "envoy-"+version, "envoy")
}

// named returns the Envoy that ENVOY_BIN names. ok is false when the variable is not set.
func named(ctx context.Context) (b Binary, ok bool, err error) {
	value := os.Getenv(BinEnv)
	if value == "" {
		return Binary{}, false, nil
	}
	path, err := exec.LookPath(value)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		b, err = inspect(ctx, path, BinEnv)
	}
	if err != nil {
		return Binary{}, false, &SettingError{BinEnv, value, "which is of no use: " + err.Error(),
			"name an executable Envoy of version " + Least + " or newer"}
	}
	return b, true, nil
}

func fromPath(ctx context.Context) (Binary, error) {
	path, err := exec.LookPath("envoy")
	if err != nil {
		return Binary{}, errors.New("envoy is not on PATH")
	}
	if path, err = filepath.Abs(path); err != nil {
		return Binary{}, err
	}
	return inspect(ctx, path, "PATH")
}

var versionLine = regexp.MustCompile(`version: [0-9a-f]+/(([0-9]+)\.([0-9]+)\.[0-9]+[^/]*)/`)

// inspect asks a binary for its version and rejects one that is too old.
func inspect(ctx context.Context, path, origin string) (Binary, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return Binary{}, fmt.Errorf("%s --version: %w%s", path, err, lastLine(out))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return Binary{}, fmt.Errorf("%s --version does not answer like Envoy%s", path, lastLine(out))
	}
	b := Binary{Version: string(m[1]), Path: path, Origin: origin}
	if !atLeast(string(m[2]), string(m[3])) {
		return Binary{}, fmt.Errorf("%s is Envoy %s, older than %s", path, b.Version, Least)
	}
	return b, nil
}

// atLeast compares with Least by numbers. A number out of range counts as new.
func atLeast(major, minor string) bool {
	leastMajor, leastMinor, _ := strings.Cut(Least, ".")
	if major != leastMajor {
		return number(major) > number(leastMajor)
	}
	return number(minor) >= number(leastMinor)
}

func number(digits string) uint64 {
	n, _ := strconv.ParseUint(digits, 10, 64) // the largest one when out of range
	return n
}

// lastLine returns the last line of a program's output that is not empty, shortened, to be added to an error; "" when
// there is none.
func lastLine(out []byte) string {
	const most = 200
	text := strings.TrimSpace(string(out))
	text = strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	if text == "" {
		return ""
	}
	return ": " + text[:min(len(text), most)]
}
