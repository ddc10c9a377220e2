package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero"

	"github.com/oncegate/oncegate/hostsim"
)

// Rules are the rules for a module, besides those of Envoy, which are the same for all modules.
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
	if err := hostsim.CheckWasm(ctx, module); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, checkExports(compiled, rules)...)
	return errors.Join(errs...)
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
	return errs
}
