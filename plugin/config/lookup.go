package config

import (
	"strings"

	"github.com/tidwall/gjson"
)

func readLookup(r *reader, path string, v gjson.Result) (where string) {
	r.object(path, v, []field{{"path", func(path string, v gjson.Result) { where = readPlainPath(r, path, v) }}})
	return where
}

// checkAsync refuses respond_async where a client could not look up the answer. path is the rule's path, lookup that of
// look-ups.
func (t *Route) checkAsync(r *reader, path, lookup string) {
	if !t.RespondAsync {
		return
	}
	path = join(path, "respond_async")
	switch {
	case lookup == "":
		r.fail(path, `the client looks up the answer; allowed: false unless "lookup.path" is given`)
	case t.ClientAbort != AbortContinue || t.Ledger == LedgerUpstream:
		r.fail(path, `the request runs on when it is answered; allowed: false unless "client_abort" is "continue" and "ledger" is not "upstream"`)
	case len(t.Key.Sources) > 1 && t.Key.InBody():
		r.fail(path, `a look-up has no body; allowed: false when a part of the key is in the body`)
	}
}

// Lost returns the route of a request that a client looks up. method is the one that the client gives; empty: POST, or the
// first method that a rule for the path names. nil: no rule matches.
func (c *Config) Lost(method, path string) (string, *Route) {
	if method != "" {
		return method, c.Route(method, path)
	}
	for _, m := range [...]string{"POST", "PATCH", "PUT", "DELETE"} {
		if t := c.Route(m, path); t != nil {
			return m, t
		}
	}
	return "POST", nil
}

// LifetimeMember is the member that says how long clients may use a key, as an ISO 8601 duration. It is the one of Iceberg's
// REST catalog.
const LifetimeMember = "idempotency-key-lifetime"

// Lifetime returns the route whose lifetime the answer to GET for a path must have; nil: there is none. Of several
// it is the one with the shortest lifetime. The path's query is ignored.
func (c *Config) Lifetime(path string) *Route {
	path, _, _ = strings.Cut(path, "?")
	var shortest *Route
	for i := range c.rules {
		t := &c.rules[i].route
		if t.LifetimePath != "" && t.LifetimePath == path && (shortest == nil || t.CommittedTTL < shortest.CommittedTTL) {
			shortest = t
		}
	}
	return shortest
}

// First returns the first rule's route, for answers to requests that no rule matches.
func (c *Config) First() *Route { return &c.rules[0].route }
