package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
)

var peersCommands = map[string]operatorCommand{
	"status": {summary: "show how far a manager's data centre is behind each peer", run: func(ctx context.Context, c *operatorCall) error {
		p, err := c.client.Peers(ctx)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(p)
		}
		t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		for _, peer := range p.Peers {
			fmt.Fprintf(t, "%s\t%.1f s\t%d entries\t%s\n", printable(peer.Name), peer.LagSeconds, peer.LagEntries, printable(peer.Error))
		}
		return t.Flush()
	}},
}

func peersMain(ctx context.Context, env Environment, args []string) error {
	return operatorMain(ctx, env, "peers", peersCommands, args)
}
