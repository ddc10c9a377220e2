package hostsim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// This file and the files wasm_*.go bind the host to wazero. Nothing else uses that engine.

// Wasm is a Source for a compiled Proxy-Wasm module (ABI 0.2.0 or 0.2.1). The module is compiled once; each VM is an
// instance with its own memory. Its imports must be on Envoy's list.
//
// The Source keeps the machine code: hosts that are started from the same Source compile it once.
func Wasm(module []byte) Source {
	return &wasmSource{module: module, cache: wazero.NewCompilationCache()}
}

// CachedWasm is Wasm with a directory that keeps machine code for later processes. It creates the directory if
// necessary. Processes may share it. A user who can write there can run code in those processes.
func CachedWasm(module []byte, dir string) (Source, error) {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, fmt.Errorf("hostsim: code cache: %w", err)
	}
	return &wasmSource{module: module, cache: cache}, nil
}

type wasmSource struct {
	module []byte
	cache  wazero.CompilationCache
}

// wasmProgram is a compiled module and the host functions it is linked to.
type wasmProgram struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	limits   guestLimits
}

const i32, i64 = api.ValueTypeI32, api.ValueTypeI64

// callbackTypes are the module functions the host calls, with the number of their
// i32 parameters and results.
var callbackTypes = map[string][2]int{
	"proxy_on_context_create": {2, 0}, "proxy_on_vm_start": {2, 1}, "proxy_on_configure": {2, 1},
	"proxy_on_tick": {1, 0}, "proxy_on_queue_ready": {2, 0}, "proxy_on_http_call_response": {5, 0},
	grpcMetadata: {3, 0}, grpcReceive: {3, 0}, grpcTrailers: {3, 0}, grpcClose: {3, 0},
	"proxy_on_request_headers": {3, 1}, "proxy_on_request_body": {3, 1}, "proxy_on_request_trailers": {2, 1},
	"proxy_on_response_headers": {3, 1}, "proxy_on_response_body": {3, 1}, "proxy_on_response_trailers": {2, 1},
	"proxy_on_done": {1, 1}, "proxy_on_log": {1, 0}, "proxy_on_delete": {1, 0},
	"malloc": {1, 1}, "proxy_on_memory_allocate": {1, 1}, "_initialize": {0, 0}, "_start": {0, 0},
}

func (w *wasmSource) load(ctx context.Context, limits guestLimits) (prog program, err error) {
	defer engineFailure(&err)
	pages := uint32((limits.memory + 1<<16 - 1) >> 16)
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().
		WithCompilationCache(w.cache).WithMemoryLimitPages(pages).WithDebugInfoEnabled(false).
		WithCloseOnContextDone(limits.callback > 0))
	p := &wasmProgram{runtime: r, limits: limits}
	if p.compiled, err = r.CompileModule(ctx, w.module); err == nil {
		if err = checkModule(p.compiled); err == nil {
			err = linkHostFunctions(ctx, r)
		}
	}
	if err != nil {
		_ = r.Close(ctx)
		return nil, fmt.Errorf("hostsim: wasm: %w", err)
	}
	return p, nil
}

// checkModule rejects what Envoy would reject, and names everything that is wrong.
func checkModule(m wazero.CompiledModule) error {
	var bad []string
	for _, f := range m.ImportedFunctions() {
		module, name, _ := f.Import()
		hf, ok := hostFunctions[module][name]
		switch {
		case !ok:
			bad = append(bad, "imports "+module+"."+name+", which is not offered")
		case string(hf.params) != string(f.ParamTypes()) || string(hf.results) != string(f.ResultTypes()):
			bad = append(bad, "imports "+module+"."+name+" with a wrong type")
		}
	}
	for _, mem := range m.ImportedMemories() {
		module, name, _ := mem.Import()
		bad = append(bad, "imports the memory "+module+"."+name)
	}
	exports := m.ExportedFunctions()
	names := slices.Sorted(maps.Keys(exports))
	version := ""
	for _, name := range names {
		if v, ok := strings.CutPrefix(name, "proxy_abi_version_"); ok {
			version = v
		}
		want, ok := callbackTypes[name]
		if !ok {
			continue
		}
		f := exports[name]
		if !allI32(f.ParamTypes(), want[0]) || !allI32(f.ResultTypes(), want[1]) {
			bad = append(bad, "exports "+name+" with a wrong type")
		}
	}
	switch version {
	case "0_2_0":
		for _, f := range m.ImportedFunctions() {
			if _, name, _ := f.Import(); name == "proxy_get_log_level" {
				bad = append(bad, "imports env.proxy_get_log_level, which came with ABI 0.2.1")
			}
		}
	case "0_2_1":
	case "":
		bad = append(bad, "exports no proxy_abi_version_0_2_0 or proxy_abi_version_0_2_1")
	default:
		bad = append(bad, "is made for ABI "+strings.ReplaceAll(version, "_", ".")+", offered are 0.2.0 and 0.2.1")
	}
	if exports["malloc"] == nil && exports["proxy_on_memory_allocate"] == nil {
		bad = append(bad, "exports neither malloc nor proxy_on_memory_allocate")
	}
	if len(m.ExportedMemories()) == 0 {
		bad = append(bad, "exports no memory")
	}
	if len(bad) > 0 {
		return errors.New("the module " + strings.Join(bad, "; it "))
	}
	return nil
}

func allI32(types []api.ValueType, n int) bool {
	if len(types) != n {
		return false
	}
	for _, t := range types {
		if t != i32 {
			return false
		}
	}
	return true
}

// linkHostFunctions makes the import modules.
func linkHostFunctions(ctx context.Context, r wazero.Runtime) error {
	for module, functions := range hostFunctions {
		b := r.NewHostModuleBuilder(module)
		for name, f := range functions {
			b.NewFunctionBuilder().WithGoModuleFunction(f.entry(module, name), f.params, f.results).Export(name)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *wasmProgram) close() { _ = p.runtime.Close(context.Background()) }

// wasmGuest is one instance.
type wasmGuest struct {
	calls  HostCalls
	env    guestEnv
	rng    *rand.ChaCha8
	limits guestLimits

	ctx    context.Context // carries the guest to its host functions
	mod    api.Module
	mem    api.Memory
	alloc  api.Function
	closed bool
	depth  int // nested callbacks in progress
	stack  [8]uint64
	astack [1]uint64

	// restricted: _initialize (or _start) or the allocator is running, and only the functions that hostFunctions marks
	// for that may be called.
	restricted restriction

	contextCreate, vmStart, configure, tick, queueReady, callResponse api.Function
	grpcMetadata, grpcReceive, grpcTrailers, grpcClose                api.Function
	requestHeaders, requestBody, requestTrailers                      api.Function
	responseHeaders, responseBody, responseTrailers                   api.Function
	done, log, delete                                                 api.Function
}

// guestContext lets host functions find the guest with a type assertion instead of a map.
type guestContext struct {
	context.Context
	g *wasmGuest
}

type guestContextKey struct{}

func (c *guestContext) Value(key any) any {
	if key == (guestContextKey{}) {
		return c.g
	}
	return c.Context.Value(key)
}

func guestOf(ctx context.Context) *wasmGuest {
	if c, ok := ctx.(*guestContext); ok {
		return c.g
	}
	return ctx.Value(guestContextKey{}).(*wasmGuest)
}

// engineFailure turns a panic of the engine, which a module may provoke, into an error.
func engineFailure(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("hostsim: wasm: the engine failed: %v", r)
	}
}

func (p *wasmProgram) newGuest(ctx context.Context, env guestEnv, calls HostCalls) (guest Guest, err error) {
	defer engineFailure(&err)
	g := &wasmGuest{calls: calls, env: env, limits: p.limits, rng: newRand(p.limits.seed, env.name), restricted: duringStart}
	// The guest's calls do not depend on ctx, which bounds only the start.
	g.ctx = &guestContext{Context: context.WithoutCancel(ctx), g: g}
	start, cancel := g.bounded()
	defer cancel()
	mod, err := p.runtime.InstantiateModule(start, p.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return nil, g.explain(err)
	}
	g.mod, g.mem = mod, mod.Memory()
	export := mod.ExportedFunction
	if g.alloc = export("malloc"); g.alloc == nil {
		g.alloc = export("proxy_on_memory_allocate")
	}
	g.contextCreate, g.vmStart, g.configure = export("proxy_on_context_create"), export("proxy_on_vm_start"), export("proxy_on_configure")
	g.tick, g.queueReady, g.callResponse = export("proxy_on_tick"), export("proxy_on_queue_ready"), export("proxy_on_http_call_response")
	g.grpcMetadata, g.grpcReceive, g.grpcTrailers, g.grpcClose = export(grpcMetadata), export(grpcReceive), export(grpcTrailers), export(grpcClose)
	g.requestHeaders, g.requestBody, g.requestTrailers = export("proxy_on_request_headers"), export("proxy_on_request_body"), export("proxy_on_request_trailers")
	g.responseHeaders, g.responseBody, g.responseTrailers = export("proxy_on_response_headers"), export("proxy_on_response_body"), export("proxy_on_response_trailers")
	g.done, g.log, g.delete = export("proxy_on_done"), export("proxy_on_log"), export("proxy_on_delete")

	initialize := export("_initialize")
	if initialize == nil {
		initialize = export("_start")
	}
	_, err = g.call(initialize, 0)
	g.restricted = unrestricted
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// Close implements Guest.
func (g *wasmGuest) Close() {
	if !g.closed {
		g.closed = true
		_ = g.mod.Close(context.Background())
	}
}

func (g *wasmGuest) memorySize() uint64 { return uint64(g.mem.Size()) }

// call runs a callback. If the module does not export it, the result is missing.
func (g *wasmGuest) call(f api.Function, missing uint64, args ...uint32) (uint64, error) {
	if f == nil {
		return missing, nil
	}
	stack := g.stack[:]
	for i, a := range args {
		stack[i] = uint64(a)
	}
	if g.depth > 0 {
		// A wazero function must not be called again while it runs; a new one may be.
		f = g.mod.ExportedFunction(f.Definition().ExportNames()[0])
	}
	g.depth++
	defer func() { g.depth-- }()
	ctx, cancel := g.bounded()
	defer cancel()
	if err := f.CallWithStack(ctx, stack); err != nil {
		return 0, g.explain(err)
	}
	return stack[0], nil
}

// bounded returns the context of a callback, which ends it at Config.CallbackTimeout.
func (g *wasmGuest) bounded() (context.Context, context.CancelFunc) {
	if g.limits.callback == 0 {
		return g.ctx, func() {}
	}
	return context.WithTimeout(g.ctx, g.limits.callback)
}

// explain replaces the engine's error about a callback that took too long.
func (g *wasmGuest) explain(err error) error {
	var exit *sys.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == sys.ExitCodeDeadlineExceeded {
		return fmt.Errorf("the callback took longer than %v", g.limits.callback)
	}
	return err
}

func b2u(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// OnContextCreate implements Guest.
func (g *wasmGuest) OnContextCreate(c, parent uint32) error {
	_, err := g.call(g.contextCreate, 0, c, parent)
	return err
}

// OnVMStart implements Guest.
func (g *wasmGuest) OnVMStart(c uint32, size int) (bool, error) {
	r, err := g.call(g.vmStart, 1, c, uint32(size))
	return uint32(r) != 0, err
}

// OnConfigure implements Guest.
func (g *wasmGuest) OnConfigure(c uint32, size int) (bool, error) {
	r, err := g.call(g.configure, 1, c, uint32(size))
	return uint32(r) != 0, err
}

// OnTick implements Guest.
func (g *wasmGuest) OnTick(c uint32) error {
	_, err := g.call(g.tick, 0, c)
	return err
}

// OnQueueReady implements Guest.
func (g *wasmGuest) OnQueueReady(c, q uint32) error {
	_, err := g.call(g.queueReady, 0, c, q)
	return err
}

// OnHTTPCallResponse implements Guest.
func (g *wasmGuest) OnHTTPCallResponse(c, token uint32, headers, size, trailers int) error {
	_, err := g.call(g.callResponse, 0, c, token, uint32(headers), uint32(size), uint32(trailers))
	return err
}

// OnGRPCReceiveInitialMetadata implements Guest.
func (g *wasmGuest) OnGRPCReceiveInitialMetadata(c, token uint32, headers int) error {
	_, err := g.call(g.grpcMetadata, 0, c, token, uint32(headers))
	return err
}

// OnGRPCReceive implements Guest.
func (g *wasmGuest) OnGRPCReceive(c, token uint32, size int) error {
	_, err := g.call(g.grpcReceive, 0, c, token, uint32(size))
	return err
}

// OnGRPCReceiveTrailingMetadata implements Guest.
func (g *wasmGuest) OnGRPCReceiveTrailingMetadata(c, token uint32, trailers int) error {
	_, err := g.call(g.grpcTrailers, 0, c, token, uint32(trailers))
	return err
}

// OnGRPCClose implements Guest.
func (g *wasmGuest) OnGRPCClose(c, token, status uint32) error {
	_, err := g.call(g.grpcClose, 0, c, token, status)
	return err
}

// OnRequestHeaders implements Guest.
func (g *wasmGuest) OnRequestHeaders(c uint32, n int, eos bool) (Action, error) {
	r, err := g.call(g.requestHeaders, 0, c, uint32(n), b2u(eos))
	return Action(r), err
}

// OnRequestBody implements Guest.
func (g *wasmGuest) OnRequestBody(c uint32, n int, eos bool) (Action, error) {
	r, err := g.call(g.requestBody, 0, c, uint32(n), b2u(eos))
	return Action(r), err
}

// OnRequestTrailers implements Guest.
func (g *wasmGuest) OnRequestTrailers(c uint32, n int) (Action, error) {
	r, err := g.call(g.requestTrailers, 0, c, uint32(n))
	return Action(r), err
}

// OnResponseHeaders implements Guest.
func (g *wasmGuest) OnResponseHeaders(c uint32, n int, eos bool) (Action, error) {
	r, err := g.call(g.responseHeaders, 0, c, uint32(n), b2u(eos))
	return Action(r), err
}

// OnResponseBody implements Guest.
func (g *wasmGuest) OnResponseBody(c uint32, n int, eos bool) (Action, error) {
	r, err := g.call(g.responseBody, 0, c, uint32(n), b2u(eos))
	return Action(r), err
}

// OnResponseTrailers implements Guest.
func (g *wasmGuest) OnResponseTrailers(c uint32, n int) (Action, error) {
	r, err := g.call(g.responseTrailers, 0, c, uint32(n))
	return Action(r), err
}

// OnDone implements Guest.
func (g *wasmGuest) OnDone(c uint32) (bool, error) {
	r, err := g.call(g.done, 1, c)
	return uint32(r) != 0, err
}

// OnLog implements Guest.
func (g *wasmGuest) OnLog(c uint32) error {
	_, err := g.call(g.log, 0, c)
	return err
}

// OnDelete implements Guest.
func (g *wasmGuest) OnDelete(c uint32) error {
	_, err := g.call(g.delete, 0, c)
	return err
}
