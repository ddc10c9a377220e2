package gatetest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/plugin/internal/nativeguest"
)

// wasmFile is the module that ships, below the module root.
const wasmFile = "build/oncegate.wasm"

// wasm returns the shipped module as a guest. It is loaded once for all tests.
var wasm = sync.OnceValues(func() (hostsim.Source, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil, os.ErrNotExist
		}
		dir = parent
	}
	module, err := os.ReadFile(filepath.Join(dir, wasmFile))
	if err != nil {
		return nil, err
	}
	return hostsim.Wasm(module), nil
})

// each runs a case on both builds of the gate: on one of the two in make test, on the other in make test-deep. The race
// detector slows down the module's code and sees nothing of it, so with it only the native build runs.
func each(t *testing.T, run func(t *testing.T, guest hostsim.Source)) {
	all := []string{"native", "wasm"}
	if deep.Race {
		all = all[:1]
	}
	for _, build := range deep.Cells(t, all) {
		t.Run(build, func(t *testing.T) {
			t.Parallel()
			run(t, guestOf(t, build))
		})
	}
}

// builds runs a case on both builds of the gate.
func builds(t *testing.T, run func(t *testing.T, guest hostsim.Source)) {
	for _, build := range []string{"native", "wasm"} {
		t.Run(build, func(t *testing.T) {
			t.Parallel()
			run(t, guestOf(t, build))
		})
	}
}

func guestOf(t *testing.T, build string) hostsim.Source {
	t.Helper()
	if build == "native" {
		return nativeguest.Source()
	}
	guest, err := wasm()
	if err != nil {
		t.Fatalf("the wasm build of the gate cannot be read (run: make %s): %v", wasmFile, err)
	}
	return guest
}

// want fails the test unless the values are equal.
func want[T comparable](t testing.TB, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s is %v, want %v", what, got, wanted)
	}
}
