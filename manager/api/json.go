package api

import (
	"bytes"
	"strconv"

	"github.com/tidwall/gjson"
)

// MaxJSONDepth bounds the nesting of JSON that CheckJSON accepts.
const MaxJSONDepth = 64

// CheckJSON reports whether b is one JSON value nested at most maxDepth deep.
func CheckJSON(b []byte, maxDepth int) error {
	if err := CheckDepth(b, maxDepth); err != nil {
		return err
	}
	if !gjson.ValidBytes(b) {
		return &FieldError{"body", "", "must be one valid JSON value"}
	}
	return nil
}

// CheckDepth reports whether a JSON value is nested at most maxDepth deep. It bounds the stack that a parser may need
// before the parser sees b, which need not be JSON.
func CheckDepth(b []byte, maxDepth int) error {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = endOfString(b, i+1)
		case '{', '[':
			depth++
			if depth > maxDepth {
				return &FieldError{"body", "", "must be JSON nested at most " + strconv.Itoa(maxDepth) + " deep"}
			}
		case '}', ']':
			depth--
		}
	}
	return nil
}

// endOfString returns the index of the quote that ends the string whose text begins at i, len(b) when
// none does. It reads each byte a bounded number of times, however many escapes there are.
func endOfString(b []byte, i int) int {
	for quote := i; ; quote++ { // after an escaped one
		n := bytes.IndexByte(b[quote:], '"')
		if n < 0 {
			return len(b)
		}
		quote += n
		for i < quote {
			escape := bytes.IndexByte(b[i:quote], '\\')
			if escape < 0 {
				return quote
			}
			i += escape + 2
		}
		if i == quote {
			return quote
		}
	}
}
