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
	inner := n.factory(calls)
	if inner == nil {
		return nil, errors.New("hostsim: Native: factory returned nil")
	}
	return &nativeGuest{inner}, nil
}

func (nativeSource) close() {}

// trapError is the panic value of host calls that trap.
type trapError string

func (e trapError) Error() string { return string(e) }

func recoverTrap(err *error) {
	switch r := recover().(type) {
	case nil:
	case trapError:
		*err = r
	default:
		*err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	}
}

// nativeGuest turns panics of a Go guest into errors.
type nativeGuest struct{ g Guest }

func (n *nativeGuest) OnContextCreate(c, p uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnContextCreate(c, p)
}

func (n *nativeGuest) OnVMStart(c uint32, size int) (ok bool, err error) {
	defer recoverTrap(&err)
	return n.g.OnVMStart(c, size)
}

func (n *nativeGuest) OnConfigure(c uint32, size int) (ok bool, err error) {
	defer recoverTrap(&err)
	return n.g.OnConfigure(c, size)
}

func (n *nativeGuest) OnTick(c uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnTick(c)
}

func (n *nativeGuest) OnQueueReady(c, q uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnQueueReady(c, q)
}

func (n *nativeGuest) OnHTTPCallResponse(c, token uint32, headers, bodySize, trailers int) (err error) {
	defer recoverTrap(&err)
	return n.g.OnHTTPCallResponse(c, token, headers, bodySize, trailers)
}

func (n *nativeGuest) OnGRPCReceiveInitialMetadata(c, token uint32, headers int) (err error) {
	defer recoverTrap(&err)
	return n.g.OnGRPCReceiveInitialMetadata(c, token, headers)
}

func (n *nativeGuest) OnGRPCReceive(c, token uint32, size int) (err error) {
	defer recoverTrap(&err)
	return n.g.OnGRPCReceive(c, token, size)
}

func (n *nativeGuest) OnGRPCReceiveTrailingMetadata(c, token uint32, trailers int) (err error) {
	defer recoverTrap(&err)
	return n.g.OnGRPCReceiveTrailingMetadata(c, token, trailers)
}

func (n *nativeGuest) OnGRPCClose(c, token, status uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnGRPCClose(c, token, status)
}

func (n *nativeGuest) OnRequestHeaders(c uint32, count int, eos bool) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnRequestHeaders(c, count, eos)
}

func (n *nativeGuest) OnRequestBody(c uint32, size int, eos bool) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnRequestBody(c, size, eos)
}

func (n *nativeGuest) OnRequestTrailers(c uint32, count int) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnRequestTrailers(c, count)
}

func (n *nativeGuest) OnResponseHeaders(c uint32, count int, eos bool) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnResponseHeaders(c, count, eos)
}

func (n *nativeGuest) OnResponseBody(c uint32, size int, eos bool) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnResponseBody(c, size, eos)
}

func (n *nativeGuest) OnResponseTrailers(c uint32, count int) (a Action, err error) {
	defer recoverTrap(&err)
	return n.g.OnResponseTrailers(c, count)
}

func (n *nativeGuest) OnDone(c uint32) (ok bool, err error) {
	defer recoverTrap(&err)
	return n.g.OnDone(c)
}

func (n *nativeGuest) OnLog(c uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnLog(c)
}

func (n *nativeGuest) OnDelete(c uint32) (err error) {
	defer recoverTrap(&err)
	return n.g.OnDelete(c)
}

func (n *nativeGuest) Close() { n.g.Close() }
