package jsonguard

import (
	"encoding/json"
	"strings"
	"testing"
)

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func TestNestingAndSyntaxAreChecked(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: true, ` [1, "x"] `: true, `null`: true, `"[[["`: true, `"\"[["`: true, `"\\"`: true,
		``: false, `{`: false, `]`: false, `{} {}`: false, `"`: false, `"\`: false,
		nested(MaxDepth): true, nested(MaxDepth + 1): false,
		`{"a":` + nested(MaxDepth-1) + `}`: true, `{"a":` + nested(MaxDepth) + `}`: false,
		`["` + strings.Repeat("[", 1000) + `"]`:  true,
		strings.Repeat("[", 1<<20):               false,
		strings.Repeat("]", 1000) + nested(1):    false,
		strings.Repeat("]", 1000) + nested(1000): false,
		`[` + strings.Repeat("[],", 1000) + `1]`: true, // wide is not deep
	} {
		if got := Valid([]byte(text)); got != want {
			t.Errorf("Valid(%.40q) = %v, want %v", text, got, want)
		}
	}
}

// FuzzValid: what is accepted, the standard library accepts as well, within the
// depth.
func FuzzValid(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":"\u00e9"}]}`, `"]"`, nested(64), nested(65), `]]][[[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if Valid(b) && !json.Valid(b) {
			t.Errorf("%q is not JSON", b)
		}
		if json.Valid(b) && !Valid(b) && shallow(b) {
			t.Errorf("%q was refused", b)
		}
	})
}
