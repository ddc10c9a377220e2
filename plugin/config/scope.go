package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// ScopePartKind names one ingredient of a scope.
type ScopePartKind uint8

// The ingredients of a scope.
const (
	ScopeHost         ScopePartKind = iota // :authority in lower case, without port and trailing dot
	ScopePath                              // :path without the query
	ScopePathAndQuery                      // :path as sent
	ScopeMethod                            // :method
	ScopeHeader                            // the value of a request header
	ScopeProperty                          // what the proxy knows of the caller
)

// ScopePart is one ingredient of a scope.
type ScopePart struct {
	Kind ScopePartKind
	// Name is the lower-case header name for ScopeHeader, and Text for ScopeProperty.
	Name string
	// Property is the host's path of the value, for ScopeProperty.
	Property []string
	// Optional: a request may lack this part if it has another one that distinguishes callers.
	Optional bool
	// Text is the part as configured, without "?", for errors.
	Text string
}

// Caller reports whether the part distinguishes callers.
func (p *ScopePart) Caller() bool { return p.Kind == ScopeHeader || p.Kind == ScopeProperty }

// Anonymous says what becomes of a request with a key whose caller the scope does not distinguish from others.
type Anonymous uint8

// The values of anonymous.
const (
	// AnonymousRefused: the request gets 400.
	AnonymousRefused Anonymous = iota
	// AnonymousShared: all such requests are in one scope.
	AnonymousShared
)

// peerCertificate lists what a scope can take from a client's certificate, and Envoy's attribute for each.
var peerCertificate = map[string]string{
	"uri_san": "uri_san_peer_certificate", "dns_san": "dns_san_peer_certificate",
	"subject": "subject_peer_certificate", "sha256": "sha256_peer_certificate_digest",
}

const scopeAllowed = `"host", "path", "path_and_query", "method", "header:NAME", "jwt:PATH", "metadata:NAMESPACE:PATH", "filter_state:NAME" or "certificate:uri_san", "dns_san", "subject" or "sha256"; all from "header:" on may have "?" at the end`

func readScope(r *reader, path string, v gjson.Result) []ScopePart {
	var parts []ScopePart
	r.list(path, v, 1, maxScopeParts, "parts", func(path string, v gjson.Result) {
		var p ScopePart
		r.text(path, v, scopeAllowed, func(s string) (ok bool) {
			p, ok = parseScopePart(s)
			return ok
		})
		if slices.ContainsFunc(parts, func(have ScopePart) bool { return have.Text == p.Text }) {
			r.fail(path, show(v.Raw)+" is listed twice; allowed: once")
		}
		parts = append(parts, p)
	})
	return parts
}

func parseScopePart(s string) (p ScopePart, ok bool) {
	switch s {
	case "host":
		return ScopePart{Kind: ScopeHost, Text: s}, true
	case "path":
		return ScopePart{Kind: ScopePath, Text: s}, true
	case "path_and_query":
		return ScopePart{Kind: ScopePathAndQuery, Text: s}, true
	case "method":
		return ScopePart{Kind: ScopeMethod, Text: s}, true
	}
	p.Text, p.Optional = strings.CutSuffix(s, "?")
	p.Kind, p.Name = ScopeProperty, p.Text
	kind, name, _ := strings.Cut(p.Text, ":")
	switch kind {
	case "header":
		p.Kind, p.Name = ScopeHeader, strings.ToLower(name)
		p.Text = "header:" + p.Name
		return p, token(name, 128)
	case "jwt", "metadata":
		p.Property, ok = metadataProperty(kind, name)
		return p, ok
	case "filter_state":
		p.Property = []string{"filter_state", name}
		return p, token(name, 128)
	case "certificate":
		attribute, ok := peerCertificate[name]
		p.Property = []string{"connection", attribute}
		return p, ok
	}
	return p, false
}

// metadataProperty returns the host's path of dynamic metadata, which a key or a scope names as "jwt:PATH" or
// "metadata:NAMESPACE:PATH".
func metadataProperty(kind, name string) (property []string, ok bool) {
	if kind == "jwt" {
		name = jwtNamespace + ":" + name
	}
	namespace, field, _ := strings.Cut(name, ":")
	property = append([]string{"metadata", "filter_metadata", namespace}, Segments(field)...)
	return property, token(namespace, 128) && field != "" && jsonPath(field)
}

// checkScope refuses a scope that is the same for all callers, unless that is asked for.
func (t *Route) checkScope(r *reader, path string) {
	if t.Anonymous == AnonymousShared || slices.ContainsFunc(t.Scope, func(p ScopePart) bool { return p.Caller() }) {
		return
	}
	r.fail(join(path, "scope"), `has no part that tells callers apart; allowed: one of "header:", "jwt:", "metadata:", "filter_state:" or "certificate:", or "anonymous": "shared"`)
}

// Rule names the rule in match, as an error would.
func (t *Route) Rule() string { return "match[" + strconv.Itoa(t.Index) + "]" }

// Shared returns the rules whose scope may be that of several callers, as an error would name them.
func (c *Config) Shared() (names []string) {
	for i := range c.rules {
		if t := &c.rules[i].route; t.Anonymous == AnonymousShared {
			names = append(names, t.Rule())
		}
	}
	return names
}
