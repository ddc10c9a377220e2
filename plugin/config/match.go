package config

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// matchKind says how a rule compares paths.
type matchKind uint8

const (
	matchPrefix matchKind = iota
	matchExact
	matchPattern
)

// rule is one element of match.
type rule struct {
	methods []string // empty: any method
	kind    matchKind
	path    string // for matchPrefix and matchExact
	pattern []string
	rest    bool // the pattern ends in **
	route   Route
}

// matches compares a method and a path without query.
func (r *rule) matches(method, path string) bool {
	if !r.matchMethod(method) {
		return false
	}
	switch r.kind {
	case matchExact:
		return path == r.path
	case matchPattern:
		return r.matchPattern(path)
	}
	return strings.HasPrefix(path, r.path)
}

func (r *rule) matchMethod(method string) bool {
	return len(r.methods) == 0 || slices.Contains(r.methods, method)
}

// matchPattern compares segment by segment. A slash separates two segments, so
// "/a" and "/a/" differ.
func (r *rule) matchPattern(path string) bool {
	path, more := strings.CutPrefix(path, "/")
	if !more {
		return false
	}
	for i, want := range r.pattern {
		var segment string
		segment, path, more = strings.Cut(path, "/")
		if segment != want && (want != "*" || segment == "") {
			return false
		}
		if !more {
			// The path ends here, so the pattern must end here too. ** needs a slash.
			return i == len(r.pattern)-1 && !r.rest
		}
	}
	return r.rest
}

// defaultRule returns a rule without any field: it matches the methods that are not
// idempotent by themselves, on every path.
func defaultRule() rule {
	return rule{methods: []string{"POST", "PATCH"}, path: "/", route: defaultRoute()}
}

// matchFields are the fields that select requests. where gets the name of the path
// field that was given.
func matchFields(r *reader, rl *rule, where *string) []field {
	path := func(name string, set func(path, value string, v gjson.Result)) field {
		return field{name, func(path string, v gjson.Result) {
			value := r.text(path, v, plainPathAllowed, plainPath)
			if *where != "" {
				r.fail(path, "given together with "+*where+"; allowed: one of path, path_prefix and path_pattern")
			}
			*where = name
			if r.err == nil {
				set(path, value, v)
			}
		}}
	}
	return []field{
		methodsField(r, rl),
		path("path", func(_, value string, _ gjson.Result) { rl.kind, rl.path = matchExact, value }),
		path("path_prefix", func(_, value string, _ gjson.Result) { rl.kind, rl.path = matchPrefix, value }),
		path("path_pattern", func(path, value string, v gjson.Result) {
			var ok bool
			rl.kind = matchPattern
			if rl.pattern, rl.rest, ok = parsePattern(value); !ok {
				r.refuse(path, v, `segments of plain text, "*" for any one segment, and "**" as the last segment for the rest`)
			}
		}),
	}
}

func methodsField(r *reader, rl *rule) field {
	return field{"methods", func(path string, v gjson.Result) { rl.methods = readMethods(r, path, v) }}
}

// readMethods reads a list of methods. The list with "*" alone means any method and gives nil.
func readMethods(r *reader, path string, v gjson.Result) []string {
	var methods []string
	anyMethod := false
	r.list(path, v, 1, maxMethods, "methods", func(path string, v gjson.Result) {
		m := r.text(path, v, `a method in upper case, or "*" alone for any`, func(s string) bool {
			return token(s, 32) && s == strings.ToUpper(s) && !anyMethod && (s != "*" || len(methods) == 0)
		})
		if m == "*" {
			anyMethod = true
			return
		}
		methods = append(methods, m)
	})
	return methods
}

const plainPathAllowed = `a path of 1 to 2048 bytes of visible ASCII that starts with "/" and has no "?" or "#"`

func plainPath(s string) bool {
	return api.Visible(s, 1, 2048) && s[0] == '/' && !strings.ContainsAny(s, "?#")
}

// readPlainPath reads a path, or "".
func readPlainPath(r *reader, path string, v gjson.Result) string {
	return r.text(path, v, `"" or `+plainPathAllowed, func(s string) bool { return s == "" || plainPath(s) })
}

// parsePattern splits a pattern that starts with a slash into its segments.
func parsePattern(s string) (segments []string, rest, ok bool) {
	segments = strings.Split(s[1:], "/")
	if last := len(segments) - 1; segments[last] == "**" {
		segments, rest = segments[:last], true
	}
	for _, segment := range segments {
		if segment != "*" && strings.Contains(segment, "*") {
			return nil, false, false
		}
	}
	return segments, rest, true
}
