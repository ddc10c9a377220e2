package hostsim

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// Native is a Source of Go implementations that run under the same rules as wasm guests. factory is called once per VM
// (during initialisation, when host calls other than Log trap). A panic is a trap.
func Native(factory func(HostCalls) Guest) Source { return nativeSource{factory} }

type nativeSource struct{ factory func(HostCalls) Guest }

func (n nativeSource) load(context.Context, guestLimits) (program, error) {
	if n.factory == nil {
		return nil, errors.New("hostsim: Native: factory is nil")
	}
	return n, nil
}

func (n nativeSource) newGuest(_ context.Context, _ guestEnv, calls HostCalls) (g Guest, err error) {
	defer recoverTrap(&err)
	if g = n.factory(calls); g == nil {
		return nil, errors.New("hostsim: Native: factory returned nil")
	}
	return g, nil
}

func (nativeSource) close() {}

// trapError is the panic value of host calls that trap.
type trapError string

func (e trapError) Error() string { return string(e) }

// recoverTrap makes an error of a panic in a guest.
func recoverTrap(err *error) {
	switch r := recover().(type) {
	case nil:
	case trapError:
		*err = r
	default:
		*err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	}
}
