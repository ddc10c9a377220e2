package main

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Rules are the rules for a module, besides those for imports, which are the same for all modules.
type Rules struct {
	// MaxBytes limits the size of the file; 0 means any size.
	MaxBytes int
	// AllowMalloc lets the module export TinyGo's malloc, which comes together with free. A host that finds malloc hands
	// over every value through it. TinyGo's malloc keeps each block until it is freed, and the SDK never frees one, so the
	// shipped module must not have it. The gate's own malloc (plugin/sdk) keeps nothing, and there is no free.
	AllowMalloc bool
}

// requiredExports are the functions without which Envoy cannot start the module as a reactor that speaks ABI 0.2.0.
var requiredExports = []string{
	"_initialize",
	"proxy_abi_version_0_2_0",
	"proxy_on_memory_allocate",
}

// Check reports everything that would keep Envoy from loading the module or that breaks rules; nil: the module is fine.
// The errors are joined, one on each line, in a stable order.
func Check(ctx context.Context, module []byte, rules Rules) error {
	var errs []error
	if rules.MaxBytes > 0 && len(module) > rules.MaxBytes {
		errs = append(errs, fmt.Errorf("has %d bytes, at most %d are allowed", len(module), rules.MaxBytes))
	}

	// The interpreter is enough because nothing runs. Compiling to machine code would only take time.
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	compiled, err := rt.CompileModule(ctx, module)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("is not a valid module: %w", err))...)
	}

	importErrs := checkImports(compiled.ImportedFunctions())
	errs = append(errs, importErrs...)
	if len(importErrs) == 0 {
		if err := instantiate(ctx, rt, compiled); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, checkExports(compiled, rules)...)
	return errors.Join(errs...)
}

func checkImports(imports []api.FunctionDefinition) []error {
	var errs []error
	for _, f := range imports {
		module, name, _ := f.Import()
		want, ok := allowed[module][name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("imports %s.%s, which Envoy does not offer to a module of ABI 0.2.0", module, name))
		case signatureOf(f) != want:
			errs = append(errs, fmt.Errorf("imports %s.%s as %s, Envoy offers it as %s", module, name, signatureOf(f), want))
		}
	}
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errs
}

func checkExports(compiled wazero.CompiledModule, rules Rules) []error {
	var errs []error
	functions := compiled.ExportedFunctions()
	for _, name := range requiredExports {
		if functions[name] == nil {
			errs = append(errs, fmt.Errorf("does not export %s", name))
		}
	}
	if functions["_start"] != nil {
		errs = append(errs, errors.New("exports _start: it is a command, and dead once its main returns; build it as a reactor"))
	}
	if functions["malloc"] != nil && functions["free"] != nil && !rules.AllowMalloc {
		errs = append(errs, errors.New("exports malloc and free: the host would pass every value through it and nothing would be freed; "+
			"build it with the tag custommalloc"))
	}
	if compiled.ExportedMemories()["memory"] == nil {
		errs = append(errs, errors.New("does not export its memory as \"memory\""))
	}
	return errs
}

// instantiate links the module, without running it, to a host that offers only the functions that it imports. That
// finds imports that are not functions: a memory, a table, a global.
func instantiate(ctx context.Context, rt wazero.Runtime, compiled wazero.CompiledModule) error {
	hosts := make(map[string]wazero.HostModuleBuilder)
	for _, f := range compiled.ImportedFunctions() {
		module, name, _ := f.Import()
		if hosts[module] == nil {
			hosts[module] = rt.NewHostModuleBuilder(module)
		}
		hosts[module].NewFunctionBuilder().
			WithGoFunction(api.GoFunc(func(context.Context, []uint64) {}), f.ParamTypes(), f.ResultTypes()).
			Export(name)
	}
	for module, host := range hosts {
		if _, err := host.Instantiate(ctx); err != nil {
			return fmt.Errorf("offering the imports of %s: %w", module, err)
		}
	}
	if _, err := rt.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions()); err != nil {
		return fmt.Errorf("does not link to a Proxy-Wasm host: %w", err)
	}
	return nil
}

func signatureOf(f api.FunctionDefinition) signature {
	return signature(letters(f.ParamTypes()) + ">" + letters(f.ResultTypes()))
}

func letters(types []api.ValueType) string {
	s := make([]byte, len(types))
	for i, t := range types {
		switch t {
		case api.ValueTypeI32:
			s[i] = 'i'
		case api.ValueTypeI64:
			s[i] = 'I'
		case api.ValueTypeF32:
			s[i] = 'f'
		case api.ValueTypeF64:
			s[i] = 'F'
		default:
			s[i] = '?'
		}
	}
	return string(s)
}
