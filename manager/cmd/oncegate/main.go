// Command oncegate is the manager of Oncegate and the tools around it: an idempotency ledger and a
// job queue with an HTTP API, on a transactional store.
//
//	oncegate serve --data-dir D --listen A    run the service
//	oncegate jobs list|get|cancel|...         look after the jobs of a running manager
//	oncegate ledger list|get|resolve|shard    look after the ledger of a running manager
//	oncegate unreadable list|delete           look after records that a running manager cannot read
//	oncegate wal verify|dump|stats            look at a data directory
//	oncegate version                          print the version
//	oncegate help                             list the commands
//
// Exit codes: 0 success, 1 failure, 2 wrong usage or configuration; of wal verify,
// 3 records that cannot be read, with which a manager starts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncegate/oncegate/manager/internal/cli"
)

// buildVersion is set by the linker for releases: -X main.buildVersion=v1.2.3.
var buildVersion string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	env := cli.Environment{Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.LookupEnv, Version: buildVersion}
	code := cli.Run(ctx, env, os.Args[1:])
	stop()
	os.Exit(code)
}
