package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

func ledgerCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":       {"", "list entries, those that expire first at the top", 0, 0, (*operatorCall).entriesFlags, ledgerList},
		"get":        {"KEY", "show an entry with its recorded answer", 1, 1, (*operatorCall).scopeFlag, ledgerGet},
		"home":       {"KEY", "show which data centre decides about a global key, and why", 1, 1, (*operatorCall).scopeFlag, ledgerHome},
		"conflicts":  {"", "list keys that several data centres ran, with all their outcomes", 0, 0, (*operatorCall).pageFlags, ledgerConflicts},
		"history":    {"KEY", "show what the manager has lately seen of a key", 1, 1, (*operatorCall).scopeFlag, ledgerHistory},
		"shard":      {"", "show which shard the ledger is, and what it has of keys that other shards own", 0, 0, nil, ledgerShard},
		"quarantine": {"[end]", "show for how long the ledger still refuses unknown keys, and why; end accepts them, so that what the reasons name can run twice", 0, 1, nil, ledgerQuarantine},
		"resolve":    {"KEY", "settle an entry whose outcome is unknown", 1, 1, (*operatorCall).resolveFlags, ledgerResolve},
	}
}

func (c *operatorCall) entriesFlags(fs *flag.FlagSet) {
	c.pageFlags(fs)
	fs.Func("key", "only the entries of this `key`, in all scopes", func(v string) error {
		c.key = v
		return api.ValidateKey(v)
	})
	states := []string{"pending", "committed", "rejected", "unknown"}
	fs.Func("state", "only entries in this `state`: "+strings.Join(states, ", "), settings.Choice(states, &c.state))
}

func (c *operatorCall) scopeFlag(fs *flag.FlagSet) {
	fs.StringVar(&c.scope, "scope", "", "`scope` of the key, as list shows it")
}

// maxAnswerFile bounds the body of a recorded answer; the manager's own limit is lower.
const maxAnswerFile = 8 << 20

func (c *operatorCall) resolveFlags(fs *flag.FlagSet) {
	c.scopeFlag(fs)
	r := &c.resolution
	outcomes := []admin.EntryState{admin.EntryCommitted, admin.EntryRejected, admin.EntryReleased}
	fs.Func("as", "what became of the work (required): committed, rejected, or released, if it did not run and no longer can",
		settings.Choice(outcomes, &r.As))
	fs.Func("status", "HTTP `status` of the answer, 200 to 599", settings.Number(200, 599, &r.Status))
	fs.Func("header", "`'name: value'` of the answer; may be given several times, needs --body-file", func(v string) error {
		name, value, ok := strings.Cut(v, ":")
		if !ok || name == "" {
			return errors.New("must be 'name: value'")
		}
		r.Headers = append(r.Headers, api.Header{Name: strings.ToLower(name), Value: strings.TrimSpace(value)})
		return nil
	})
	fs.StringVar(&c.bodyFile, "body-file", "", "`file` with the answer's body, - for standard input; without it retries get 410 and that status")
	fs.Func("ttl-seconds", "remember the outcome for this long, 0.001 to 31622400 (default the manager's)", settings.Seconds(0.001, settings.MaxSeconds, &r.TTL))
}

const (
	// searchPages bounds the pages that a search for the entries of a key reads.
	searchPages = 100
	// scopesSought bounds the scopes that a search finds, and scopesNamed those that a message names.
	scopesSought, scopesNamed = 1000, 5
)

// entries reads a page of entries. Pages of a key may be short or empty, because a manager looks through a bounded number of
// entries for each. So it then reads on until it has the limit or the end.
func (c *operatorCall) entries(ctx context.Context, q admin.EntryQuery) (*admin.EntryPage, error) {
	page, err := c.admin.Entries(ctx, q)
	if err != nil || q.Key == "" {
		return page, err
	}
	limit := cmp.Or(q.Limit, 100)
	for n := 1; n < searchPages && page.Cursor != "" && len(page.Entries) < limit; n++ {
		q.Limit, q.Cursor = limit-len(page.Entries), page.Cursor
		next, err := c.admin.Entries(ctx, q)
		if err != nil {
			return nil, err
		}
		page.Entries, page.Cursor = append(page.Entries, next.Entries...), next.Cursor
	}
	return page, nil
}

func ledgerList(ctx context.Context, c *operatorCall) error {
	page, err := c.entries(ctx, admin.EntryQuery{Key: c.key, State: admin.EntryState(c.state), Limit: c.limit, Cursor: c.cursor})
	if err != nil {
		return err
	}
	head := "KEY, SCOPE, STATE, AGE, EXPIRES IN, STATUS, JOB"
	// Most managers know of one data centre.
	if slices.ContainsFunc(page.Entries, func(e admin.Entry) bool { return e.Origin != "" || e.Home != "" }) {
		head += ", ORIGIN, HOME"
	}
	return printPage(c, page, page.Cursor, head, page.Entries, func(e *admin.Entry) []string {
		status := ""
		if e.Status != 0 {
			status = strconv.Itoa(e.Status)
		}
		return []string{e.Key, e.Scope, string(e.State), span(e.Age), span(e.ExpiresIn), status, e.JobID, e.Origin, e.Home}
	})
}

func ledgerShard(ctx context.Context, c *operatorCall) error {
	s, err := c.admin.Shard(ctx)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(s)
	}
	m := &s.Moved
	return c.printTable([][]string{
		{"LEDGER", "SHARD", "SHARDS", "VERSION", "MOVED", "PENDING", "COMMITTED", "REJECTED", "UNKNOWN"},
		{s.LedgerID, s.Name, strings.Join(s.Shards, ","), strconv.FormatUint(s.Version, 10), strconv.Itoa(m.Pending + m.Committed + m.Rejected + m.Unknown),
			strconv.Itoa(m.Pending), strconv.Itoa(m.Committed), strconv.Itoa(m.Rejected), strconv.Itoa(m.Unknown)},
	}, "")
}

// ledgerQuarantine shows the quarantine, or ends it and shows what it was.
func ledgerQuarantine(ctx context.Context, c *operatorCall) error {
	read := c.admin.Quarantine
	if len(c.args) > 0 {
		if c.args[0] != "end" {
			return settings.Usagef("quarantine %q: must be end, or nothing to show it", c.args[0])
		}
		read = c.admin.EndQuarantine
	}
	q, err := read(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.json:
		return c.printJSON(q)
	case q.Remaining == 0:
		fmt.Fprintln(c.out, "there is no quarantine")
	case len(c.args) > 0:
		fmt.Fprintf(c.out, "ended %v early; what follows can run again now:\n", q.Remaining)
	default:
		fmt.Fprintf(c.out, "keys that the ledger does not know are refused for another %v:\n", q.Remaining.Round(time.Second))
	}
	for _, why := range q.Why {
		fmt.Fprintln(c.out, "  "+printable(why))
	}
	return nil
}

func ledgerGet(ctx context.Context, c *operatorCall) error {
	e, err := c.admin.Entry(ctx, c.scope, c.args[0])
	if err != nil {
		return c.explainMissing(ctx, err)
	}
	var conflict *admin.Conflict
	if e.Origin != "" {
		if conflict, err = c.admin.ConflictOf(ctx, c.scope, c.args[0]); err != nil {
			return err
		}
	}
	if c.json {
		return c.printJSON(entryWithConflict{e, conflict})
	}
	if err := c.printEntry(e); err != nil {
		return err
	}
	c.printConflict(conflict)
	return nil
}

// entryWithConflict is an entry with a member for the conflict about its key, if there is one.
type entryWithConflict struct {
	*admin.Entry
	conflict *admin.Conflict
}

func (e entryWithConflict) MarshalJSON() ([]byte, error) {
	entry, err := e.Entry.MarshalJSON()
	if err != nil || e.conflict == nil {
		return entry, err
	}
	conflict, err := e.conflict.MarshalJSON()
	return slices.Concat(entry[:len(entry)-1], []byte(`,"conflict":`), conflict, []byte("}")), err
}

// explainMissing names the scopes that have the key, if the call had none and the ledger has no entry without a scope.
func (c *operatorCall) explainMissing(ctx context.Context, err error) error {
	missing := client.HasCode(err, api.CodeNotFound)
	if c.scope != "" || !missing && !client.HasCode(err, api.CodeQuarantine) {
		return err
	}
	where, all, failed := c.otherScopes(ctx)
	switch {
	case failed != nil, where == "" && !missing:
		return err
	case where != "":
		return fmt.Errorf("no entry for %q without a scope; it is %s", c.args[0], where)
	case !all:
		return fmt.Errorf("no entry for %q without a scope, and a search through a part of the ledger found no other; add --scope", c.args[0])
	}
	return fmt.Errorf("no entry for %q in any scope: the ledger does not know the key, or no longer does", c.args[0])
}

// otherScopes says in which scopes the ledger has the key, "" for none; all is false if the search did not reach the end.
func (c *operatorCall) otherScopes(ctx context.Context) (where string, all bool, err error) {
	page, err := c.entries(ctx, admin.EntryQuery{Key: c.args[0], Limit: scopesSought})
	if err != nil {
		return "", false, err
	}
	found := map[string]bool{}
	for i := range page.Entries {
		if scope := page.Entries[i].Scope; scope != "" {
			found[strconv.Quote(scope)] = true
		}
	}
	all = page.Cursor == ""
	scopes := slices.Sorted(maps.Keys(found))
	least := ""
	if !all {
		least = "at least "
	}
	switch n := len(scopes); {
	case n == 0:
		return "", all, nil
	case n == 1:
		return "in the scope " + scopes[0] + "; add --scope", all, nil
	case n <= scopesNamed:
		return fmt.Sprintf("in %s%d scopes: %s; add --scope", least, n, strings.Join(scopes, ", ")), all, nil
	default:
		return fmt.Sprintf("in %s%d scopes, see `oncegate ledger list --key %s`; add --scope", least, n, shellWord(c.args[0])), all, nil
	}
}

// shellWord quotes a word for a shell if it needs that.
func shellWord(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@+,") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func ledgerHistory(ctx context.Context, c *operatorCall) error {
	h, err := c.admin.EntryHistory(ctx, c.scope, c.args[0])
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(h)
	}
	rows := [][]string{{"WHAT", "COUNT", "FIRST", "LAST", "FROM"}}
	for i, e := range h.Changes {
		what := e.What
		if e.Late {
			what += ", late"
		}
		rows = append(rows, []string{what, strconv.Itoa(e.Count), stamp(e.First), stamp(e.Last), e.From})
		if i == 0 && h.LeftOut > 0 {
			rows = append(rows, []string{"...", strconv.Itoa(h.LeftOut)})
		}
	}
	if len(h.Changes) > 0 {
		if err := c.printTable(rows, ""); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Outcomes)) {
		fmt.Fprintf(c.out, "%s: %d\n", printable(name), h.Outcomes[name])
	}
	if h.Waited > 0 || h.Waiting > 0 {
		fmt.Fprintf(c.out, "waited: %d, waiting now: %d\n", h.Waited, h.Waiting)
	}
	if m := h.Mismatch; m != nil {
		fmt.Fprintf(c.out, "last mismatch: %s from %s at %s, fingerprint %s, recorded %s\n", printable(m.Op), printable(m.From), stamp(m.At), printable(m.Sent), printable(m.Recorded))
	}
	if len(h.Changes) == 0 && len(h.Outcomes) == 0 && h.Waited == 0 {
		scope := "in this scope"
		if c.scope == "" {
			scope = "without a scope"
		}
		fmt.Fprintf(c.out, "this manager has seen no call with this key %s, or has forgotten it\n", scope)
		if c.scope == "" {
			where, _, err := c.otherScopes(ctx)
			if err != nil {
				return err
			}
			if where != "" {
				fmt.Fprintf(c.out, "the key is %s\n", where)
			}
		}
	}
	fmt.Fprintf(c.out, "since %s, when this manager started\n", stamp(h.Since))
	conflict, err := c.admin.ConflictOf(ctx, c.scope, c.args[0])
	if err != nil {
		return err
	}
	c.printConflict(conflict)
	return nil
}

func ledgerResolve(ctx context.Context, c *operatorCall) error {
	r := c.resolution
	switch {
	case r.As == "":
		return settings.Usagef("--as is missing: must be committed, rejected or released")
	case r.As == admin.EntryReleased && (r.Status != 0 || r.Headers != nil || c.bodyFile != "" || r.TTL != 0):
		return settings.Usagef("--as released: must be without --status, --header, --body-file and --ttl-seconds, because nothing ran")
	case r.As != admin.EntryReleased && r.Status == 0:
		return settings.Usagef("--status is missing: --as %s needs the status of the answer, 200 to 599", r.As)
	case r.Headers != nil && c.bodyFile == "":
		return settings.Usagef("--header needs --body-file, whose file may be empty")
	}
	if c.bodyFile != "" {
		var err error
		if r.Body, err = readInput(c.in, "--body-file", c.bodyFile, maxAnswerFile); err != nil {
			return err
		}
	}
	e, err := c.admin.Resolve(ctx, c.scope, c.args[0], r)
	if err != nil {
		return c.explainMissing(ctx, err)
	}
	return c.printEntry(e)
}

// printEntry shows what an entry has, one member per line.
func (c *operatorCall) printEntry(e *admin.Entry) error {
	return c.printMembers(e, func(line func(name, value string)) { entryLines(e, line) })
}

func entryLines(e *admin.Entry, line func(name, value string)) {
	line("key", e.Key)
	line("scope", e.Scope)
	line("state", string(e.State))
	line("age", span(e.Age))
	if e.State != admin.EntryReleased {
		line("expires in", span(e.ExpiresIn))
	}
	line("fingerprint", e.Fingerprint)
	line("job", e.JobID)
	line("origin", e.Origin)
	line("home", e.Home)
	status := e.Status
	if e.Result != nil {
		status = e.Result.Status
	}
	if status != 0 {
		line("status", strconv.Itoa(status))
	}
	if r := e.Result; r != nil {
		for _, h := range r.Headers {
			line("header", h.Name+": "+h.Value)
		}
		switch {
		case r.BodyOmitted:
			line("body", "not recorded")
		case !utf8.Valid(r.Body):
			line("body", fmt.Sprintf("%d bytes that are not text; --json shows them in base64", len(r.Body)))
		default:
			line("body", string(r.Body))
		}
	}
}

// span shows a time as hours, minutes and seconds.
func span(d time.Duration) string { return d.Round(time.Second / 10).String() }
