// Command oncegate is the manager of Oncegate and the tools around it: an idempotency ledger and a
// job queue with an HTTP API, on a transactional store.
//
//	oncegate serve --data-dir D --listen A    run the service
//	oncegate jobs list|get|cancel|...         look after the jobs of a running manager
//	oncegate ledger list|get|resolve|shard    look after the ledger of a running manager
//	oncegate unreadable list|delete           look after records that a running manager cannot read
//	oncegate gate explain                     check and print a configuration of the gate
//	oncegate wal verify|dump|stats|repair     look at a data directory, and repair it
//	oncegate version                          print the version
//	oncegate help                             list the commands
//
// Exit codes: 0 success, 1 failure, 2 wrong usage or configuration; of wal verify,
// 3 records that cannot be read, with which a manager starts.
package main

import (
	"os"

	"github.com/oncegate/oncegate/manager/internal/cli"
	"github.com/oncegate/oncegate/manager/internal/timers"
	"github.com/oncegate/oncegate/plugin/config"
)

// buildVersion is set by the linker for releases: -X main.buildVersion=v1.2.3.
var buildVersion string

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		timers.Relax()
	}
	os.Exit(cli.Main(buildVersion, config.Explain))
}
