// Package jsonguard validates untrusted JSON before gjson reads it.
//
// gjson's validator recurses once for each level of nesting, and the filter has a
// stack of 64 KiB. A body of a few thousand brackets would overflow it and trap the
// VM. So the package first measures the depth, without recursion.
package jsonguard

import "github.com/tidwall/gjson"

// MaxDepth is the deepest nesting of arrays and objects that is accepted.
const MaxDepth = 64

// Valid reports whether b is one JSON value with at most MaxDepth levels.
func Valid(b []byte) bool { return shallow(b) && gjson.ValidBytes(b) }

// shallow reports whether at most MaxDepth brackets are open at any point. For input
// that is not JSON, true only means that it is safe to validate.
func shallow(b []byte) bool {
	depth := 0
	inString := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		if inString {
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
			continue
		}
		switch c {
		case '"':
			inString = true
		case '[', '{':
			if depth++; depth > MaxDepth {
				return false
			}
		case ']', '}':
			depth--
		}
	}
	return true
}
