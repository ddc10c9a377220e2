// Command manager is the authority of Oncegate: an idempotency ledger with an
// HTTP API on a transactional store.
//
//	manager serve --data-dir D --listen A    run the service
//	manager jobs list|get|cancel|...         look after the jobs of a running manager
//	manager ledger list|get|resolve|shard    look after the ledger of a running manager
//	manager unreadable list|delete           look after records that a running manager cannot read
//	manager wal verify|dump|stats            look at a data directory
//	manager version                          print the version
//	manager help                             list the commands
//
// Exit codes: 0 success, 1 failure, 2 wrong usage or configuration; of wal verify,
// 3 records that cannot be read, with which a manager starts.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sort"
	"syscall"
)

// command is one word behind "manager".
type command struct {
	summary string
	run     func(ctx context.Context, env environment, args []string) error
}

// environment is what a command may touch of the process around it.
type environment struct {
	stdout, stderr io.Writer
	getenv         func(string) (string, bool)
}

// exitError ends the program with an exit code of its own.
type exitError struct {
	code int
	msg  string
}

func (e *exitError) Error() string { return e.msg }

// usageError is a mistake on the command line or in the environment: one line, exit code 2.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

func commands() map[string]command {
	return map[string]command{
		"serve":      {"run the service", serve},
		"jobs":       {"list, cancel, retry, pause, replay jobs of a running manager", jobsMain},
		"ledger":     {"list, get, resolve entries of a running manager's ledger; shard: which one it is", ledgerMain},
		"unreadable": {"list, delete records that a running manager cannot read", unreadableMain},
		"wal":        {"look at a data directory: verify, dump, stats", walMain},
		"version":    {"print the version", printVersion},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	env := environment{stdout: os.Stdout, stderr: os.Stderr, getenv: os.LookupEnv}
	code := run(ctx, env, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, env environment, args []string) int {
	all := commands()
	if len(args) == 0 {
		help(env.stderr, all)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		help(env.stdout, all)
		return 0
	}
	cmd, ok := all[args[0]]
	if !ok {
		fmt.Fprintf(env.stderr, "manager: unknown command %q, see manager help\n", args[0])
		return 2
	}
	err := cmd.run(ctx, env, args[1:])
	if err == nil {
		return 0
	}
	fmt.Fprintf(env.stderr, "manager %s: %v\n", args[0], err)
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func help(w io.Writer, all map[string]command) {
	fmt.Fprintln(w, "usage: manager COMMAND [flags]")
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(w, "  %-10s %s\n", name, all[name].summary)
	}
	fmt.Fprintln(w, "manager COMMAND --help lists the flags of a command.")
}
