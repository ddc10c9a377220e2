package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// keyHome is what "ledger home" prints.
type keyHome struct {
	Key         string   `json:"key"`
	Scope       string   `json:"scope"`
	Home        string   `json:"home"`
	DataCentres []string `json:"data_centres"`
	// Client is the client id of a structured key, which alone decides then.
	Client string `json:"client_id,omitempty"`
	// Noted is the home that the entry names while an attempt is under way.
	Noted string `json:"noted,omitempty"`
}

// ledgerHome computes the home as a manager does, from the list of data centres that the manager has.
func ledgerHome(ctx context.Context, c *operatorCall) error {
	key := c.args[0]
	if err := (&api.ReleaseRequest{Key: key, Scope: c.scope, Token: "none"}).Validate(); err != nil {
		return settings.Usagef("%v", err)
	}
	p, err := c.admin.Peers(ctx)
	if err != nil {
		return err
	}
	if len(p.DataCentres) == 0 {
		return errors.New("the manager has no --origin: it knows no data centres")
	}
	h := keyHome{Key: key, Scope: c.scope, Home: p.DataCentres[api.Home(p.DataCentres, c.scope, key)], DataCentres: p.DataCentres}
	if k, ok := api.ParseStructuredKey(key); ok {
		h.Client = k.Client
	}
	e, err := c.admin.Entry(ctx, c.scope, key)
	var refused *client.Error
	switch {
	case err == nil:
		h.Noted = e.Home
	case client.HasCode(err, api.CodeQuarantine): // the list still decides
	case !errors.As(err, &refused) || refused.Status != 404:
		return err
	}
	if c.json {
		return c.printJSON(h)
	}
	which := "another data centre than the manager's, " + p.Origin
	if h.Home == p.Origin {
		which = "the manager's own data centre"
	}
	why := "scope and key decide"
	if h.Client != "" {
		why = "the client id " + strconv.Quote(h.Client) + " of the key decides"
	}
	fmt.Fprintf(c.out, "%s: %s; %s, among %s\n", printable(h.Home), printable(which), printable(why), printable(strings.Join(h.DataCentres, ", ")))
	if h.Noted != "" {
		fmt.Fprintf(c.out, "an attempt is under way at %s\n", printable(h.Noted))
	}
	if p.Refuses != "" {
		fmt.Fprintf(c.out, "%s is the home of no new keys now: %s\n", printable(p.Origin), printable(p.Refuses))
	}
	return nil
}

func ledgerConflicts(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Conflicts(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	if len(page.Conflicts) == 0 && c.cursor == "" && !c.json {
		fmt.Fprintln(c.out, "no conflicts: no key that is remembered ran in several data centres")
		return nil
	}
	return printPage(c, page, page.Cursor, "KEY, SCOPE, WINNER, OUTCOMES, EXPIRES IN", page.Conflicts, func(k *admin.Conflict) []string {
		return []string{k.Key, k.Scope, k.Winner, outcomesOf(k), span(k.ExpiresIn)}
	})
}

// outcomesOf lists what the data centres recorded, the winner first.
func outcomesOf(k *admin.Conflict) string {
	var all []string
	for _, o := range k.Outcomes {
		all = append(all, fmt.Sprintf("%s %s %d", o.Origin, o.State, o.Result.Status))
	}
	return strings.Join(all, ", ")
}

// printConflict prints the conflict about a key, if there is one.
func (c *operatorCall) printConflict(k *admin.Conflict) {
	if k != nil {
		fmt.Fprintf(c.out, "conflict: %d data centres ran this key: %s; retries get the outcome of %s\n", len(k.Outcomes), printable(outcomesOf(k)), printable(k.Winner))
	}
}
