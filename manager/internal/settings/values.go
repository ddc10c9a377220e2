package settings

import (
	"slices"
	"strings"
)

// Value is a setting as it was given, for people to read.
type Value struct {
	// Name of the flag.
	Name string
	// Value is empty if nothing was given and there is no default, and where Hidden is set.
	Value string
	// From is "flag", the name of a variable, "file", or empty for a default.
	From string
	// Hidden: the value may hold a password.
	Hidden bool
}

// secret are the settings whose values may hold a password. Tokens and keys are in files, whose names tell nothing.
var secret = []string{"store-dsn"}

// note remembers a setting for Values.
func (s *Settings) note(st *setting, value, from string) {
	v := Value{Name: st.name, Value: value, From: from}
	if value != "" && (slices.Contains(secret, st.name) || strings.Contains(value, "://") && strings.ContainsAny(value, "@?")) {
		v.Value, v.Hidden = "", true
	}
	s.values = append(s.values, v)
}

// Values returns all settings by name, without what may be a password.
func (s *Settings) Values() []Value {
	all := slices.Clone(s.values)
	slices.SortFunc(all, func(a, b Value) int { return strings.Compare(a.Name, b.Name) })
	return all
}
