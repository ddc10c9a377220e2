// Command release writes what users install into a folder:
//
//	oncegate-VERSION-linux-ARCH             the manager, a static binary
//	oncegate-VERSION-linux-ARCH-image.tar   the manager's container image
//	oncegate-VERSION.wasm                   the gate's module
//	oncegate-VERSION-module-image.tar       the module in an image, as Istio and Envoy Gateway read it
//	oncegate-VERSION-chart.tgz              the Helm chart
//	oncegate-VERSION-npm.tgz                the client for TypeScript and JavaScript, as npm installs it
//	oncegate-VERSION-py3-none-any.whl       the client for Python, as pip installs it
//	*.cdx.json                              of each binary and the module: what it is made of (CycloneDX)
//	SHA256SUMS                              the digests of all of these
//
// The images are archives that `docker load` and `crane push` read. The same sources, version and Go release give the same
// bytes. The command works in the repository's folder, with build/oncegate.wasm and build/typescript built.
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// architectures are those that the manager is built for.
var architectures = []string{"amd64", "arm64"}

// versionForm is SemVer, since a chart needs one.
var versionForm = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

func main() {
	version := flag.String("version", "", "version of the release, such as 1.2.3")
	out := flag.String("out", filepath.Join("build", "release"), "folder to write; what is in it is removed")
	flag.Parse()
	if !versionForm.MatchString(*version) {
		fmt.Fprintf(os.Stderr, "release: -version is %q, it must be a version such as 1.2.3 or 1.2.3-rc.1\n", *version)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := release{version: *version, root: ".", out: *out, architectures: architectures, build: buildManager}
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	version, root, out string
	// architectures to build the manager for.
	architectures []string
	// build builds the manager for an architecture.
	build func(ctx context.Context, root, version, arch, to string) error
}

func (r release) run(ctx context.Context) error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, arch := range r.architectures {
		binary := r.path("-linux-" + arch)
		if err := r.build(ctx, r.root, r.version, arch, binary); err != nil {
			return err
		}
		image, err := managerImage(binary, arch, r.version)
		if err != nil {
			return err
		}
		if err := save(r.path("-linux-"+arch+"-image.tar"), "oncegate/manager:"+r.version, image); err != nil {
			return err
		}
		if err := writeBinaryBOM(binary, r.version); err != nil {
			return err
		}
	}
	module := r.path(".wasm")
	text, err := os.ReadFile(filepath.Join(r.root, "build", "oncegate.wasm"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(module, text, 0o644); err != nil {
		return err
	}
	if err := writeModuleBOM(ctx, r.root, module, r.version); err != nil {
		return err
	}
	image, err := moduleImage(text, r.version)
	if err != nil {
		return err
	}
	if err := save(r.path("-module-image.tar"), "oncegate/gate:"+r.version, image); err != nil {
		return err
	}
	if err := writeChart(filepath.Join(r.root, "charts", "oncegate"), r.path("-chart.tgz"), r.version); err != nil {
		return err
	}
	if err := writePackage(r.root, filepath.Join(r.root, "build", "typescript"), r.path("-npm.tgz"), r.version); err != nil {
		return err
	}
	if err := writeWheel(r.root, r.out, r.version); err != nil {
		return err
	}
	return writeSums(r.out)
}

func (r release) path(rest string) string { return filepath.Join(r.out, "oncegate-"+r.version+rest) }

func buildManager(ctx context.Context, root, version, arch, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.buildVersion=v"+version,
		"-o", to, "./manager/cmd/oncegate")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=")
	return cmd.Run()
}

func save(file, tag string, image v1.Image) error {
	t, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, t, image)
}

// writeSums writes SHA256SUMS as `sha256sum -c` reads it.
func writeSums(dir string) error {
	files, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), f.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
