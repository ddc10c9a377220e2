package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// What the tests run; set by TestMain.
var (
	binDir     string // oncegate, payments
	racingDir  string // the same with the race detector, in a deep run only
	wasmModule string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// stacksAtOnce is how many scenarios run side by side unless -parallel says otherwise. Most of
// their time is waiting: for processes to start, for TTLs.
const stacksAtOnce = "6"

func testMain(m *testing.M) int {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set(parallel.Name, stacksAtOnce) // a number
	}
	dir, err := os.MkdirTemp("", "oncegate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if err := findEnvoys(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if err := errors.Join(stopShared(), stopHosts()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

// build makes the programs and finds the gate.
func build(dir string) error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	// A copy: the module may be built again while the tests run.
	module, err := os.ReadFile(filepath.Join(root, "build", "oncegate.wasm"))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("build/oncegate.wasm is missing; run make build first")
	} else if err != nil {
		return err
	}
	wasmModule = filepath.Join(dir, "oncegate.wasm")
	if err := os.WriteFile(wasmModule, module, 0o644); err != nil {
		return err
	}
	binDir = dir
	if err := buildPrograms(root, binDir, "CGO_ENABLED=0"); err != nil {
		return err
	}
	if !deep.On() {
		return nil
	}
	racingDir = filepath.Join(dir, "racing")
	// With the flags of make test-deep, which has compiled the packages.
	return buildPrograms(root, racingDir, "CGO_ENABLED=1", "-race", "-tags=pebblegozstd",
		"-gcflags=modernc.org/sqlite/lib=-race=false", "-gcflags=modernc.org/libc=-race=false")
}

// buildPrograms builds the programs as in a release, which has no C, or with the race detector, which needs it.
func buildPrograms(root, dir, cgo string, flags ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-o", dir + string(filepath.Separator)}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./manager/cmd/oncegate", "./examples/payments")...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}
