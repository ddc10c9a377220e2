package cli

import (
	"context"
	"flag"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// maxGateConfigBytes is the size of a file that gate explain reads at most. The gate itself refuses less.
const maxGateConfigBytes = 4 << 20

const gateUsage = `usage: oncegate gate explain FILE
Reads the gate's configuration (JSON; - is the standard input), checks it as the gate does, and prints it with every field
of every rule: defaults, the top level's fields and what "protocol" sets. Exit code 2: the gate would refuse it.
`

// gateMain explains a configuration of the gate.
func gateMain(_ context.Context, env Environment, args []string) error {
	help := func() { fmt.Fprint(env.Stdout, gateUsage) }
	if _, err := chosen(args, help, "explain"); err != nil {
		return err
	}
	args, err := parseFlags(flag.NewFlagSet("gate", flag.ContinueOnError), args[1:], help)
	switch {
	case err != nil:
		return err
	case len(args) != 1:
		return settings.Usagef("explain: must have one argument, the name of a file or - for the standard input")
	}
	text, err := readInput(env.Stdin, "explain", args[0], maxGateConfigBytes)
	if err != nil {
		return err
	}
	out, err := env.ExplainGate(text)
	if err != nil {
		return settings.Usagef("explain %s: %v", args[0], err)
	}
	_, err = env.Stdout.Write(out)
	return err
}
