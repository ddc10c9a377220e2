package config

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
	if len(r.methods) > 0 {
		found := false
		for _, m := range r.methods {
			if m == method {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	switch r.kind {
	case matchExact:
		return path == r.path
	case matchPattern:
		return r.matchPattern(path)
	}
	return len(path) >= len(r.path) && path[:len(r.path)] == r.path
}

// matchPattern compares segment by segment. Segments are what lies between
// slashes, so "/a" and "/a/" differ.
func (r *rule) matchPattern(path string) bool {
	if len(path) == 0 || path[0] != '/' {
		return false
	}
	path = path[1:]
	for i, want := range r.pattern {
		end := 0
		for end < len(path) && path[end] != '/' {
			end++
		}
		if want == "*" {
			if end == 0 {
				return false
			}
		} else if path[:end] != want {
			return false
		}
		if end == len(path) {
			// The path ends here: so must the pattern, and ** wants a slash.
			return i == len(r.pattern)-1 && !r.rest
		}
		path = path[end+1:]
	}
	return r.rest
}
