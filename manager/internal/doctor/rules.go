package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	checkRules = "envoy: rules"
	checkScope = "envoy: scope"
)

// explain returns a configuration with every field spelled out; nil: that cannot be done.
func (t Target) explain(config object) (explained object) {
	if t.Explain == nil {
		return nil
	}
	text, err := json.Marshal(config)
	if err == nil {
		text, err = t.Explain(text)
	}
	if err == nil {
		err = json.Unmarshal(text, &explained)
	}
	if err != nil {
		return nil
	}
	return explained
}

// rules returns the gate's rules. Each has the fields of the top level that it does not replace.
func (g gate) rules() []object {
	if g.explained != nil {
		return g.explained.list("match")
	}
	list := g.config.list("match")
	if len(list) == 0 {
		list = []object{{}}
	}
	all := make([]object, len(list))
	for i, own := range list {
		rule := object{}
		maps.Copy(rule, g.config)
		delete(rule, "match")
		for name, v := range own {
			if fields, ok := v.(map[string]any); ok { // objects are merged, lists are replaced
				merged := map[string]any{}
				maps.Copy(merged, rule.at(name))
				maps.Copy(merged, fields)
				v = merged
			}
			rule[name] = v
		}
		all[i] = rule
	}
	return all
}

// body reports whether a rule of the gate needs bodies.
func (g gate) body() bool {
	return slices.ContainsFunc(g.rules(), func(rule object) bool { return rule.text("mode") == "body" })
}

// asksManagers reports whether a rule of the gate has its ledger at a manager.
func (g gate) asksManagers() bool {
	return slices.ContainsFunc(g.rules(), object.asksManager)
}

// asksManager reports whether a rule has its ledger at a manager.
func (o object) asksManager() bool { return o.text("ledger") == "" || o.text("ledger") == "manager" }

// shadowed looks for rules that never match, because an earlier rule takes all of their requests.
func (g gate) shadowed(r *report) {
	rules := g.rules()
	before := len(r.findings)
	for i, later := range rules {
		if first := slices.IndexFunc(rules[:i], func(earlier object) bool { return covers(earlier, later) }); first >= 0 {
			r.warn(checkRules, fmt.Sprintf("%s: match[%d] never counts, because match[%d] takes all of its requests", g.place(), i, first),
				"put the narrower rule first: the first rule that matches counts")
		}
	}
	r.okUnless(before, checkRules, "%s: each takes requests that no earlier one does", g.place())
}

// covers reports whether a rule takes all requests of another one. It returns false where it cannot know.
func covers(a, b object) bool {
	methods := func(rule object) []string {
		if list := rule.texts("methods"); len(list) > 0 {
			return list
		}
		return []string{"POST", "PATCH"}
	}
	own := methods(a)
	for _, m := range methods(b) {
		if own[0] != "*" && !slices.Contains(own, m) {
			return false
		}
	}
	exact, pattern := a.text("path"), a.text("path_pattern")
	switch {
	case exact != "":
		return b.text("path") == exact
	case pattern != "":
		if p := b.text("path"); p != "" {
			return matchesPattern(pattern, p)
		}
		if p := b.text("path_pattern"); p != "" {
			return p == pattern
		}
		return matchesAllBelow(pattern, prefixOf(b))
	}
	start := b.text("path")
	if p := b.text("path_pattern"); p != "" {
		start, _, _ = strings.Cut(p, "*")
	} else if start == "" {
		start = prefixOf(b)
	}
	return strings.HasPrefix(start, prefixOf(a))
}

func prefixOf(rule object) string {
	if p := rule.text("path_prefix"); p != "" {
		return p
	}
	return "/"
}

// matchesPattern compares segment by segment, as the gate does.
func matchesPattern(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i, w := range want {
		switch {
		case w == "**":
			return len(have) > i
		case i >= len(have), w == "*" && have[i] == "", w != "*" && w != have[i]:
			return false
		}
	}
	return len(have) == len(want)
}

// matchesAllBelow reports whether a pattern matches each path with a prefix.
func matchesAllBelow(pattern, prefix string) bool {
	start, rest := strings.CutSuffix(pattern, "**")
	return rest && strings.HasSuffix(prefix, "/") && strings.Count(prefix, "/") >= strings.Count(start, "/") && matchesPattern(pattern, prefix)
}

// perTry are headers that have another value in each try of a request, because proxies, tracers or clients set them for each.
var perTry = []string{
	"x-request-id", "traceparent", "tracestate", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "uber-trace-id", "x-amzn-trace-id",
	"x-cloud-trace-context", "x-datadog-trace-id", "x-datadog-parent-id", "x-ot-span-context", "cf-ray", "date", "x-envoy-attempt-count",
	"x-request-start", "x-envoy-expected-rq-timeout-ms",
}

// perWay are headers that differ when a client or a proxy takes another way.
var perWay = []string{"x-forwarded-for", "forwarded", "x-real-ip", "x-envoy-external-address"}

// headersOfTries looks for headers in scopes and fingerprints that a retry does not repeat.
func (g gate) headersOfTries(r *report) {
	before := len(r.findings)
	reported := map[string]bool{}
	for _, rule := range g.rules() {
		for _, part := range rule.texts("scope") {
			name, _ := strings.CutPrefix(strings.ToLower(strings.TrimSuffix(part, "?")), "header:")
			switch {
			case name == part || reported[part]:
			case slices.Contains(perTry, name):
				r.fail(checkScope, fmt.Sprintf("%s: scope names %q, which differs in each try: a retry is another key, and its work runs again", g.place(), oneLine(part)),
					"name in scope what all tries of a caller share, such as header:authorization")
			case slices.Contains(perWay, name):
				r.warn(checkScope, fmt.Sprintf("%s: scope names %q, which changes with the client's address and the proxies before Envoy: its retry then runs again", g.place(), oneLine(part)),
					"name in scope what all tries of a caller share, such as header:authorization")
			}
			reported[part] = true
		}
		for _, name := range rule.at("fingerprint").texts("headers") {
			if slices.Contains(perTry, strings.ToLower(name)) && !reported["fingerprint "+name] {
				reported["fingerprint "+name] = true
				r.fail(checkScope, fmt.Sprintf("%s: fingerprint.headers names %q, which differs in each try: retries get 422", g.place(), oneLine(name)), "remove it")
			}
		}
	}
	r.okUnless(before, checkScope, "%s: retries repeat the headers that it names", g.place())
}
