// Command wasmcheck reports whether a Proxy-Wasm module will load in Envoy. It checks that hostsim loads the module, that it is
// a reactor of ABI 0.2.0, and that it does not export malloc. The build runs it on every module that it makes and deletes a
// module that does not pass.
//
//	wasmcheck [--max-bytes N] [--allow-malloc] [--shorten-names] FILE...
//
// With --shorten-names it first rewrites each file with shorter names of methods, which only backtraces show.
//
// Each fault is one line on standard error. The exit code is 1 when a file has faults, and 2 for a bad command line or a
// file that cannot be read.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stderr))
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	var rules Rules
	flags := flag.NewFlagSet("wasmcheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&rules.MaxBytes, "max-bytes", 0, "largest size of a file in `bytes`; 0 for any")
	flags.BoolVar(&rules.AllowMalloc, "allow-malloc", false, "allow an exported malloc")
	shorten := flags.Bool("shorten-names", false, "shorten the names of methods in each file")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if rules.MaxBytes < 0 {
		fmt.Fprintf(stderr, "wasmcheck: --max-bytes is %d, it must be 0 or more\n", rules.MaxBytes)
		return 2
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "wasmcheck: no file given")
		return 2
	}

	code := 0
	for _, file := range flags.Args() {
		module, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintf(stderr, "wasmcheck: %v\n", err)
			return 2
		}
		if *shorten {
			module = shortenNames(module)
			if err := os.WriteFile(file, module, 0o644); err != nil {
				fmt.Fprintf(stderr, "wasmcheck: %v\n", err)
				return 2
			}
		}
		if err := Check(ctx, module, rules); err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				fmt.Fprintf(stderr, "%s: %s\n", file, line)
			}
			code = 1
		}
	}
	return code
}
