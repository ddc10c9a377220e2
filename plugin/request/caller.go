package request

import "github.com/oncegate/oncegate/plugin/config"

// Property returns a property of the host.
type Property func(path ...string) ([]byte, bool)

// CallerPart returns the part of the route's scope that the request lacks, as configured. Without it the scope may be
// that of another caller. It is empty if the request has every part that is not optional, and at least one, or if the
// route shares its scope.
func CallerPart(t *config.Route, h Headers, property Property) (lacks string) {
	if t.Anonymous == config.AnonymousShared {
		return ""
	}
	found := false
	for i := range t.Scope {
		p := &t.Scope[i]
		switch {
		case !p.Caller():
		case p.Kind == config.ScopeHeader && has(h, p.Name):
			found = true
		case p.Kind == config.ScopeProperty && hasProperty(p, property):
			found = true
		case !p.Optional:
			return p.Text
		case lacks != "":
			lacks += " or " + p.Text
		default:
			lacks = p.Text
		}
	}
	if found {
		return ""
	}
	return lacks
}

func hasProperty(p *config.ScopePart, property Property) bool {
	value, ok := property(p.Property...)
	return ok && len(value) > 0
}

// has reports whether some value of the header is not empty.
func has(h Headers, name string) bool {
	for i := range h {
		if h[i][0] == name && h[i][1] != "" {
			return true
		}
	}
	return false
}
