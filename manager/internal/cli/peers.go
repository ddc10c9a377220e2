package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
		if len(p.Peers) == 0 {
			fmt.Fprintln(c.out, "no peers: this manager has no --peer")
		}
		t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		for _, peer := range p.Peers {
			answered, list := "no answer yet", "list not known"
			if s := peer.AnsweredSecondsAgo; s != nil {
				answered = fmt.Sprintf("answered %.1f s ago", *s)
			}
			switch {
			case slices.Equal(peer.DataCentres, p.DataCentres):
				list = "same list"
			case len(peer.DataCentres) > 0:
				list = "other list: " + strings.Join(peer.DataCentres, ",")
			}
			fmt.Fprintf(t, "%s\t%.1f s\t%d entries\t%s\t%s\t%s\n", printable(peer.Name), peer.LagSeconds, peer.LagEntries, answered, printable(list), printable(peer.Error))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if p.Refuses != "" {
			fmt.Fprintf(c.out, "this data centre, %s, is the home of no new global keys: %s\n", printable(p.Origin), printable(p.Refuses))
		}
		return nil
	}},
}

func peersMain(ctx context.Context, env Environment, args []string) error {
	return operatorMain(ctx, env, "peers", peersCommands, args)
}
