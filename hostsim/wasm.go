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

// CheckWasm reports why Start would not load a module with the default memory limit, so that a build can check what it has
// made. It calls no function of the module; a start section must not call the host.
func CheckWasm(ctx context.Context, module []byte) (err error) {
	defer engineFailure(&err)
	// Nothing runs, so machine code would only cost time.
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithMemoryLimitPages(defaultMemoryLimit>>16))
	defer r.Close(ctx)
	compiled, err := loadModule(ctx, r, module)
	if err == nil {
		// This finds imports that are not functions.
		_, err = r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions())
	}
	if err != nil {
		return fmt.Errorf("hostsim: wasm: %w", err)
	}
	return nil
}

// loadModule compiles a module and makes what it may import.
func loadModule(ctx context.Context, r wazero.Runtime, module []byte) (wazero.CompiledModule, error) {
	compiled, err := r.CompileModule(ctx, module)
	if err == nil {
		err = checkModule(compiled)
	}
	if err == nil {
		err = linkHostFunctions(ctx, r)
	}
	return compiled, err
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

// exportTypes are the module functions the host calls, with the number of their i32 parameters and results.
var exportTypes = func() map[string][2]int {
	types := map[string][2]int{"malloc": {1, 1}, "proxy_on_memory_allocate": {1, 1}, "_initialize": {0, 0}, "_start": {0, 0}}
	for _, c := range callbacks {
		types[c.name] = [2]int{c.params, pick(c.result == noResult, 0, 1)}
	}
	return types
}()

func (w *wasmSource) load(ctx context.Context, limits guestLimits) (prog program, err error) {
	defer engineFailure(&err)
	pages := uint32((limits.memory + 1<<16 - 1) >> 16)
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().
		WithCompilationCache(w.cache).WithMemoryLimitPages(pages).WithDebugInfoEnabled(false).
		WithCloseOnContextDone(limits.callback > 0))
	p := &wasmProgram{runtime: r, limits: limits}
	if p.compiled, err = loadModule(ctx, r, w.module); err != nil {
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
		want, ok := exportTypes[name]
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

	exports []api.Function // by the callback's index; nil for those that the module does not have
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

func (p *wasmProgram) newGuest(ctx context.Context, env guestEnv, calls HostCalls) (_ guest, err error) {
	defer engineFailure(&err)
	g := &wasmGuest{calls: calls, env: env, limits: p.limits, rng: newRand(p.limits.seed, env.name), restricted: duringStart,
		exports: make([]api.Function, len(callbacks))}
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
	for i, c := range callbacks {
		g.exports[i] = export(c.name)
	}
	initialize := export("_initialize")
	if initialize == nil {
		initialize = export("_start")
	}
	if initialize != nil {
		err = g.run(initialize)
	}
	g.restricted = unrestricted
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *wasmGuest) close() {
	if !g.closed {
		g.closed = true
		_ = g.mod.Close(context.Background())
	}
}

func (g *wasmGuest) memorySize() uint64 { return uint64(g.mem.Size()) }

// call implements guest. A callback that the module does not export accepts everything.
func (g *wasmGuest) call(f *callback, args [maxParams]uint32) (uint32, error) {
	export := g.exports[f.index]
	if export == nil {
		return b2u(f.result == boolResult), nil
	}
	for i, a := range args {
		g.stack[i] = uint64(a)
	}
	if g.depth > 0 {
		// A wazero function must not be called again while it runs; a new one may be.
		export = g.mod.ExportedFunction(f.name)
	}
	if err := g.run(export); err != nil {
		return 0, err
	}
	return uint32(g.stack[0]), nil
}

// run calls a function of the module with g.stack.
func (g *wasmGuest) run(f api.Function) error {
	g.depth++
	defer func() { g.depth-- }()
	ctx, cancel := g.bounded()
	defer cancel()
	if err := f.CallWithStack(ctx, g.stack[:]); err != nil {
		return g.explain(err)
	}
	return nil
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
