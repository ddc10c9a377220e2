// Command manager is oncegate under its old name, for one release: see manager/cmd/oncegate.
package main

import (
	"os"

	"github.com/oncegate/oncegate/manager/internal/cli"
)

var buildVersion string

func main() { os.Exit(cli.Main(buildVersion)) }
