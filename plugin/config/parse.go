package config

// Parse reads a configuration. Every field is optional and an empty input is
// the default configuration. Unknown, repeated, mistyped and out-of-range
// fields are refused with an *Error.
func Parse(json []byte) (*Config, error) { return parse(json) }

// Error says what is wrong with a configuration.
type Error struct {
	// Path is the field's full path, such as match[1].key.header; empty for the
	// document as a whole.
	Path string
	// Reason says what was found and what is allowed.
	Reason string
}

// Error returns "path: reason".
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + ": " + e.Reason
}

func parse([]byte) (*Config, error) { return nil, &Error{Reason: "not read yet"} }
