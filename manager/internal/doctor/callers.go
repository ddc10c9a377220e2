package doctor

import (
	"fmt"
	"slices"
	"strings"
)

const checkCallers = "envoy: callers"

// callers checks whether a filter before the gate removes what the gate's scopes name of the caller, and whether
// some filter keeps the claims that they name.
func (g gate) callers(r *report) {
	before := len(r.findings)
	removed, payloads := g.beforeGate()
	for _, part := range g.callerParts() {
		kind, name, _ := strings.Cut(part, ":")
		switch {
		case kind == "header" && removed[strings.ToLower(name)] != "":
			r.fail(checkCallers, fmt.Sprintf("%s: %s removes the header %q, which scope names: requests with a key get 400 scope-ambiguous", g.place(), removed[strings.ToLower(name)], oneLine(name)),
				`name in "scope" what the filter leaves ("jwt:payload.sub" with payload_in_metadata: payload, or a header that it sets), or let it keep the header (jwt_authn: forward: true; api_key_auth: hide_credentials: false)`)
		case kind == "jwt" && !slices.Contains(payloads, firstName(name)):
			r.fail(checkCallers, fmt.Sprintf("%s: scope names %q, and no jwt_authn before the gate keeps that: requests with a key get 400 scope-ambiguous", g.place(), oneLine(part)),
				"put jwt_authn before the gate, and set payload_in_metadata to the first part of the name")
		}
	}
	r.okUnless(before, checkCallers, "%s: no filter before it removes what scope names", g.place())
}

// callerParts returns the parts of the gate's scopes that identify the caller and that a request must have.
func (g gate) callerParts() (parts []string) {
	for _, rule := range g.rules() {
		if rule.text("anonymous") == "shared" {
			continue
		}
		scope := []string{"header:authorization"}
		if _, ok := rule["scope"]; ok {
			scope = rule.texts("scope")
		}
		for _, part := range scope {
			if !strings.HasSuffix(part, "?") && !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
	}
	return parts
}

// firstName returns the first name of a path such as payload.sub, without its escapes.
func firstName(path string) string {
	var name []byte
	for i := 0; i < len(path) && path[i] != '.'; i++ {
		if path[i] == '\\' && i+1 < len(path) {
			i++
		}
		name = append(name, path[i])
	}
	return string(name)
}

// beforeGate looks at the filters before the gate. It returns the headers that they remove, with what removes each, and
// the names under which jwt_authn keeps claims.
func (g gate) beforeGate() (removed map[string]string, payloads []string) {
	removed = map[string]string{}
	for _, f := range g.before {
		if f["disabled"] == true {
			continue
		}
		config := f.at("typed_config")
		switch {
		case strings.HasSuffix(config.text("@type"), ".JwtAuthentication"):
			for name := range config.at("providers") {
				p := config.at("providers").at(name)
				if key := p.text("payload_in_metadata"); key != "" {
					payloads = append(payloads, key)
				}
				if p["forward"] == true {
					continue
				}
				headers := p.list("from_headers")
				if headers == nil && p["from_params"] == nil && p["from_cookies"] == nil {
					headers = []object{{"name": "authorization"}}
				}
				for _, h := range headers {
					removed[strings.ToLower(h.text("name"))] = fmt.Sprintf("jwt_authn (provider %q)", oneLine(name))
				}
			}
		case strings.HasSuffix(config.text("@type"), ".ApiKeyAuth"):
			for _, s := range config.list("key_sources") {
				if h := s.text("header"); h != "" && config.at("forwarding")["hide_credentials"] == true {
					removed[strings.ToLower(h)] = "api_key_auth"
				}
			}
		}
	}
	return removed, payloads
}
