package request

import "github.com/oncegate/oncegate/plugin/config"

// credentials are headers by which callers are known, besides those that a scope names. Only their presence counts:
// a value could change between tries, and the retry would then run again.
var credentials = [...]string{"x-api-key", "cookie", "x-forwarded-client-cert"}

// Ambiguous tells whether the route's scope may be that of several callers without the operator's will:
// it names headers that tell callers apart, and the request has none of them. It then returns a credential that
// the request has in their place; empty: it has none, as far as the headers say.
func Ambiguous(t *config.Route, h Headers) (credential string, ambiguous bool) {
	if t.Shared || !t.Callers() {
		return "", false
	}
	for i := range t.Scope {
		if p := &t.Scope[i]; p.Kind == config.ScopeHeader && has(h, p.Header) {
			return "", false
		}
	}
	for _, name := range credentials {
		if has(h, name) {
			return name, true
		}
	}
	return "", true
}

// has tells whether some value of the header is not empty.
func has(h Headers, name string) bool {
	for i := range h {
		if h[i][0] == name && h[i][1] != "" {
			return true
		}
	}
	return false
}
