package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oncegate/oncegate/manager/client/admin"
)

func peersCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"status": {summary: "show how far a manager's data centre is behind each peer; exit code 1 if one needs attention", run: func(ctx context.Context, c *operatorCall) error {
			p, err := c.admin.Peers(ctx)
			if err != nil {
				return err
			}
			if c.json {
				return cmp.Or(c.printJSON(p), unwell(p))
			}
			if len(p.Peers) == 0 {
				fmt.Fprintln(c.out, "no peers: this manager has no --peer")
			}
			t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
			for _, peer := range p.Peers {
				answered, list := "no answer yet", "list not known"
				if d := peer.AnsweredAgo; d != nil {
					answered = fmt.Sprintf("answered %.1f s ago", d.Seconds())
				}
				switch {
				case slices.Equal(peer.DataCentres, p.DataCentres):
					list = "same list"
				case len(peer.DataCentres) > 0:
					list = "other list: " + strings.Join(peer.DataCentres, ",")
				}
				fmt.Fprintf(t, "%s\t%.1f s\t%d entries\t%s\t%s\t%s\n", printable(peer.Name), peer.Lag.Seconds(), peer.LagEntries, answered, printable(list), printable(peer.Error))
			}
			if err := t.Flush(); err != nil {
				return err
			}
			if p.Refuses != "" {
				fmt.Fprintf(c.out, "this data centre, %s, is the home of no new global keys: %s\n", printable(p.Origin), printable(p.Refuses))
			}
			return unwell(p)
		}},
	}
}

// maxPeerLag is a lag that is more than a busy moment.
const maxPeerLag = time.Minute

// unwell returns an error that names the peers of which something is wrong.
func unwell(p *admin.Peers) error {
	var names []string
	for _, peer := range p.Peers {
		if peer.Error != "" || peer.Lag > maxPeerLag || len(peer.DataCentres) > 0 && !slices.Equal(peer.DataCentres, p.DataCentres) {
			names = append(names, printable(peer.Name))
		}
	}
	switch {
	case len(names) > 0:
		return fmt.Errorf("%d of %d peers need attention: %s", len(names), len(p.Peers), strings.Join(names, ", "))
	case p.Refuses != "":
		return fmt.Errorf("the data centre %s is the home of no new global keys", printable(p.Origin))
	}
	return nil
}
