package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Main runs the program with the process's arguments and environment, and returns its exit code.
// SIGINT and SIGTERM stop it in good order; a second one ends the process. version is that of a
// release, "" for other builds. explainGate is for Environment.
func Main(version string, explainGate func([]byte) ([]byte, error)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	return Run(ctx, Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.LookupEnv, Environ: os.Environ(), Version: version, ExplainGate: explainGate}, os.Args[1:])
}
