package config

import "strconv"

// Callers says whether the scope has a part that may tell callers apart.
func (t *Route) Callers() bool {
	for i := range t.Scope {
		if t.Scope[i].Kind == ScopeHeader {
			return true
		}
	}
	return false
}

// OneScope returns the rules whose scope is the same for all callers, as an error would name them.
func (c *Config) OneScope() (names []string) {
	for i := range c.rules {
		if t := &c.rules[i].route; !t.Callers() {
			names = append(names, "match["+strconv.Itoa(t.Index)+"]")
		}
	}
	return names
}
