package api

import (
	"bytes"
	"strings"
	"testing"
)

// TestDepthCountsOutsideOfStrings: brackets in strings are no nesting, whatever is escaped there.
// It tries all short texts.
func TestDepthCountsOutsideOfStrings(t *testing.T) {
	const alphabet, length = `"\[]a`, 7
	text := make([]byte, length)
	var try func(at int)
	try = func(at int) {
		if at == length {
			err := CheckJSON(text, 1)
			if got, want := err != nil && strings.Contains(err.Error(), "nested"), deeperThanOne(text); got != want {
				t.Fatalf("%s: %v; too deep is %v", text, err, want)
			}
			return
		}
		for i := range len(alphabet) {
			text[at] = alphabet[i]
			try(at + 1)
		}
	}
	try(0)
}

// deeperThanOne looks at one byte after the other.
func deeperThanOne(b []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[':
			if depth++; depth > 1 {
				return true
			}
		case c == ']':
			depth--
		}
	}
	return false
}

// A body of escapes is read in one go. It took minutes if each of them looked for
// the end of the string again.
func TestEscapesAreReadInLinearTime(t *testing.T) {
	for _, escape := range []string{`\\`, `\"`} {
		b := []byte(`"` + string(bytes.Repeat([]byte(escape), 2<<20)) + `"`)
		if err := CheckJSON(b, 1); err != nil {
			t.Error(err)
		}
	}
}
