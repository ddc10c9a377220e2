package cli

import (
	"context"
	"fmt"
	"io"
	"os"

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
	switch {
	case len(args) == 1 && (args[0] == "--help" || args[0] == "-h"), len(args) == 2 && args[0] == "explain" && (args[1] == "--help" || args[1] == "-h"):
		_, err := io.WriteString(env.Stdout, gateUsage)
		return err
	case len(args) == 0:
		return settings.Usagef("a command is missing: must be explain")
	case args[0] != "explain":
		return settings.Usagef("command %q: must be explain", args[0])
	case len(args) != 2:
		return settings.Usagef("explain: must have one argument, the name of a file or - for the standard input")
	}
	in := env.Stdin
	if args[1] != "-" {
		file, err := os.Open(args[1])
		if err != nil {
			return settings.Usagef("explain: %v", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxGateConfigBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("explain: %w", err)
	case len(text) > maxGateConfigBytes:
		return settings.Usagef("explain %s: more than %d bytes", args[1], maxGateConfigBytes)
	}
	out, err := env.ExplainGate(text)
	if err != nil {
		return settings.Usagef("explain %s: %v", args[1], err)
	}
	_, err = env.Stdout.Write(out)
	return err
}
