package jobs

import (
	"slices"
	"strings"
)

// NameOf returns the name on the wire of a value that counts from 1, "invalid" for an unknown one. names[0] is unused.
func NameOf[T ~uint8](names []string, v T) string {
	if v == 0 || int(v) >= len(names) {
		return "invalid"
	}
	return names[v]
}

// ParseName is the inverse of NameOf. Other names are a *FieldError for field.
func ParseName[T ~uint8](names []string, field, name string) (T, error) {
	allowed := strings.Join(names[1:], ", ")
	switch i := slices.Index(names, name); {
	case name == "":
		return 0, &FieldError{Field: field, Allowed: allowed}
	case i < 0:
		return 0, invalid(field, name, allowed)
	default:
		return T(i), nil
	}
}
