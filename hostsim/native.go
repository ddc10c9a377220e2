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

func (n nativeSource) newGuest(_ context.Context, _ guestEnv, calls HostCalls) (_ guest, err error) {
	defer recoverTrap(&err)
	g := n.factory(calls)
	if g == nil {
		return nil, errors.New("hostsim: Native: factory returned nil")
	}
	return nativeGuest{g}, nil
}

func (nativeSource) close() {}

// nativeGuest calls the methods of a Guest as the host calls a module's exports.
type nativeGuest struct{ Guest }

func (n nativeGuest) call(f *callback, a [maxParams]uint32) (uint32, error) {
	switch f {
	case onContextCreate:
		return 0, n.OnContextCreate(a[0], a[1])
	case onVMStart:
		return fromBool(n.OnVMStart(a[0], int(a[1])))
	case onConfigure:
		return fromBool(n.OnConfigure(a[0], int(a[1])))
	case onTick:
		return 0, n.OnTick(a[0])
	case onQueueReady:
		return 0, n.OnQueueReady(a[0], a[1])
	case onHTTPCallResponse:
		return 0, n.OnHTTPCallResponse(a[0], a[1], int(a[2]), int(a[3]), int(a[4]))
	case onGRPCMetadata:
		return 0, n.OnGRPCReceiveInitialMetadata(a[0], a[1], int(a[2]))
	case onGRPCReceive:
		return 0, n.OnGRPCReceive(a[0], a[1], int(a[2]))
	case onGRPCTrailers:
		return 0, n.OnGRPCReceiveTrailingMetadata(a[0], a[1], int(a[2]))
	case onGRPCClose:
		return 0, n.OnGRPCClose(a[0], a[1], a[2])
	case onRequestHeaders:
		return fromAction(n.OnRequestHeaders(a[0], int(a[1]), a[2] != 0))
	case onRequestBody:
		return fromAction(n.OnRequestBody(a[0], int(a[1]), a[2] != 0))
	case onRequestTrailers:
		return fromAction(n.OnRequestTrailers(a[0], int(a[1])))
	case onResponseHeaders:
		return fromAction(n.OnResponseHeaders(a[0], int(a[1]), a[2] != 0))
	case onResponseBody:
		return fromAction(n.OnResponseBody(a[0], int(a[1]), a[2] != 0))
	case onResponseTrailers:
		return fromAction(n.OnResponseTrailers(a[0], int(a[1])))
	case onDone:
		return fromBool(n.OnDone(a[0]))
	case onLog:
		return 0, n.OnLog(a[0])
	default:
		return 0, n.OnDelete(a[0])
	}
}

func fromBool(b bool, err error) (uint32, error)     { return b2u(b), err }
func fromAction(a Action, err error) (uint32, error) { return uint32(a), err }

func (n nativeGuest) close()           { n.Close() }
func (nativeGuest) memorySize() uint64 { return 0 }

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
