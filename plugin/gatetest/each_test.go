package gatetest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
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

// each runs a case on both builds of the gate, with single calls and with batches. The race
// detector slows down the module's code and sees nothing of it. So with -race one of the four runs
// is left out; make test runs it without -race.
func each(t *testing.T, run func(t *testing.T, guest hostsim.Source)) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		t.Run("calls", func(t *testing.T) {
			t.Parallel()
			run(t, guest)
		})
		if module, _ := wasm(); raceEnabled && guest == module {
			return
		}
		t.Run("batches", func(t *testing.T) {
			t.Parallel()
			run(t, Batched{guest})
		})
	})
}

// builds runs a case on both builds of the gate.
func builds(t *testing.T, run func(t *testing.T, guest hostsim.Source)) {
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		run(t, nativeguest.Source())
	})
	t.Run("wasm", func(t *testing.T) {
		t.Parallel()
		guest, err := wasm()
		if err != nil {
			t.Fatalf("the wasm build of the gate cannot be read (run: make %s): %v", wasmFile, err)
		}
		run(t, guest)
	})
}

// want fails the test unless the values are equal.
func want[T comparable](t testing.TB, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s is %v, want %v", what, got, wanted)
	}
}
