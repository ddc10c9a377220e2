package config

import (
	"slices"

	"github.com/tidwall/gjson"
)

// Forward names the request headers in which upstream gets what the gate knows; empty: it does not get it.
// The gate removes these headers from what clients send.
type Forward struct {
	// KeyHeader carries the key, wherever it comes from.
	KeyHeader string
	// AttemptHeader carries the time of the reservation, in microseconds since 1970.
	AttemptHeader string
	// TokenHeader carries the reservation's token, and ScopeHeader its scope.
	TokenHeader, ScopeHeader string
}

// reservedNames are headers that the proxy needs for the request itself.
var reservedNames = [...]string{"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "proxy-connection", "expect"}

func (f *Forward) read(r *reader, path string, v gjson.Result) {
	name := func(to *string) func(string, gjson.Result) {
		return func(path string, v gjson.Result) { *to = readHeaderName(r, path, v) }
	}
	r.object(path, v, []field{
		{"key_header", name(&f.KeyHeader)},
		{"attempt_header", name(&f.AttemptHeader)},
		{"token_header", name(&f.TokenHeader)},
		{"scope_header", name(&f.ScopeHeader)},
	})
}

// check refuses names that stand for something else. path is the rule's path, keyHeader the header of the client's key.
func (f *Forward) check(r *reader, path, keyHeader string) {
	list := [...]struct{ field, name string }{
		{"key_header", f.KeyHeader}, {"attempt_header", f.AttemptHeader}, {"token_header", f.TokenHeader}, {"scope_header", f.ScopeHeader},
	}
	for i, h := range list {
		if h.name == "" {
			continue
		}
		where := join(join(path, "forward"), h.field)
		if slices.Contains(reservedNames[:], h.name) {
			r.fail(where, show(`"`+h.name+`"`)+" is the proxy's own; allowed: another header name")
		}
		if i > 0 && h.name == keyHeader {
			r.fail(where, show(`"`+h.name+`"`)+` is "key.header"; allowed: another header name`)
		}
		for _, other := range list[:i] {
			if h.name == other.name {
				r.fail(where, show(`"`+h.name+`"`)+` is also "forward.`+other.field+`"; allowed: a name for each`)
			}
		}
	}
}
