// Package cli has the commands of the program oncegate.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// command is one word after "oncegate".
type command struct {
	summary string
	run     func(ctx context.Context, env Environment, args []string) error
}

// Environment is what the commands may touch of the process around them.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Getenv is os.LookupEnv, or stands for it.
	Getenv func(string) (string, bool)
	// Environ is os.Environ(), or stands for it; used only to find variables that nothing reads.
	Environ []string
	// Version of a release; "" for other builds, which name their commit.
	Version string
	// ExplainGate checks a configuration of the gate, and returns it with every field spelled out.
	ExplainGate func(config []byte) ([]byte, error)
}

// exitError ends the program with an exit code of its own.
type exitError struct {
	code int
	msg  string
}

func (e *exitError) Error() string { return e.msg }

func commands() map[string]command {
	return map[string]command{
		"serve":      {"run the service", serve},
		"jobs":       {"submit, list, cancel, retry, replay, delete jobs of a running manager; pause functions", operators("jobs", jobsCommands)},
		"schedules":  {"list, get, pause, resume, run, delete schedules of a running manager", operators("schedules", schedulesCommands)},
		"ledger":     {"list, get, resolve entries of a running manager's ledger; shard: which one it is", operators("ledger", ledgerCommands)},
		"logs":       {"list, append, tail, inspect logs of a running manager", operators("logs", logsCommands)},
		"peers":      {"look at how far a running manager is behind other data centres: status", operators("peers", peersCommands)},
		"unreadable": {"list, delete records that a running manager cannot read", operators("unreadable", unreadableCommands)},
		"doctor":     {"look at a running deployment, and say what is wrong with it and what to do", doctorMain},
		"gate":       {"check a configuration of the gate, and print it with every field: explain", gateMain},
		"wal":        {"look at a data directory: verify, dump, stats; repair it", walMain},
		"restore":    {"make a data directory from what a manager shipped to object storage", restoreMain},
		"quarantine": {"begin, end, status: refuse keys that a store may have forgotten after it was restored", quarantineMain},
		"ship":       {"look at what a manager ships to object storage, and check that it can be restored: status, verify", shipMain},
		"version":    {"print the version", printVersion},
	}
}

// Run runs the command that args name and returns the program's exit code: 0 for success, 1 for a
// failure, 2 for a mistake in the arguments, the environment or a file that they name; 3 is that
// of wal verify for records that cannot be read, with which a manager starts. What went wrong is
// one line on Stderr.
func Run(ctx context.Context, env Environment, args []string) int {
	all := commands()
	if len(args) == 0 {
		help(env.Stderr, all)
		return 2
	}
	if isHelp(args[0]) {
		help(env.Stdout, all)
		return 0
	}
	cmd, ok := all[args[0]]
	if !ok {
		fmt.Fprintf(env.Stderr, "oncegate: unknown command %q, see oncegate help\n", args[0])
		return 2
	}
	err := cmd.run(ctx, env, args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) { // help was printed
		return 0
	}
	fmt.Fprintf(env.Stderr, "oncegate %s: %v\n", args[0], err)
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	var usage *settings.UsageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func help(w io.Writer, all map[string]command) {
	fmt.Fprintln(w, "usage: oncegate COMMAND [flags]")
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		fmt.Fprintf(w, "  %-10s %s\n", name, all[name].summary)
	}
	fmt.Fprintln(w, "oncegate COMMAND --help lists the flags of a command.")
}
