package hostsim

import (
	"context"
	"time"
)

// Source makes guests: one program that is loaded once and started once per VM.
type Source interface {
	load(ctx context.Context) error
}

// Wasm is a Source of a compiled Proxy-Wasm module (ABI 0.2.x).
func Wasm(module []byte) Source { return nil }

// Native is a Source of Go implementations that run under the same rules as wasm.
func Native(factory func(HostCalls) Guest) Source { return nil }

// Guest is one VM's callbacks. A returned error is a trap.
type Guest interface{}

// HostCalls is what a guest may call.
type HostCalls interface{}

// Clock is where a host gets its time from.
type Clock interface {
	Now() time.Time
	// AfterFunc runs f once when d has passed; f must not block. The returned function
	// stops it and tells whether it did so before f was started.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}
