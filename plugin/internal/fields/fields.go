// Package fields reads header fields as HTTP writes them. Names are in lower case, as hosts hand them over.
package fields

import (
	"strconv"
	"strings"
	"time"
)

// Value returns the first value of a header.
func Value(headers [][2]string, name string) (string, bool) {
	for i := range headers {
		if headers[i][0] == name {
			return headers[i][1], true
		}
	}
	return "", false
}

// Joined returns all values of a list header as one value.
func Joined(headers [][2]string, name string) (list string) {
	for i := range headers {
		if headers[i][0] != name {
			continue
		}
		if list == "" {
			list = headers[i][1]
		} else {
			list += "," + headers[i][1]
		}
	}
	return list
}

// ConnectionNames returns the names that the connection headers declare to be hop-by-hop, in lower case.
func ConnectionNames(headers [][2]string) []string {
	var names []string
	for i := range headers {
		if headers[i][0] != "connection" {
			continue
		}
		EachToken(headers[i][1], func(token string) bool {
			names = append(names, Lower(token))
			return true
		})
	}
	return names
}

// EachToken calls f with the elements of a comma-separated list, without spaces and empty ones, until f returns false.
func EachToken(list string, f func(string) bool) {
	for list != "" {
		var token string
		token, list, _ = strings.Cut(list, ",")
		if token = Trim(token); token != "" && !f(token) {
			return
		}
	}
}

// MediaType returns the media type of a content-type value, without its parameters and in lower case.
func MediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return Lower(Trim(media))
}

// Decimal reads a non-negative decimal number of at most 18 digits.
func Decimal(s string) (int64, bool) {
	if len(s) > 18 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}

// Trim removes spaces and tabs at both ends.
func Trim(s string) string {
	for s != "" && Blank(s[0]) {
		s = s[1:]
	}
	for s != "" && Blank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// Blank reports whether a byte is the white space that may be around a value.
func Blank(c byte) bool { return c == ' ' || c == '\t' }

// Lower returns s with its ASCII letters in lower case. It does not copy s if nothing changes.
func Lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return string(AppendLower(make([]byte, 0, len(s)), s))
		}
	}
	return s
}

// AppendLower appends s with its ASCII letters in lower case.
func AppendLower(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// Date formats nanoseconds since 1970 as HTTP does: Thu, 01 Jan 1970 00:00:00 GMT.
func Date(ns int64) string {
	t := time.Unix(ns/1e9, 0).UTC()
	year, month, day := t.Date()
	hour, minute, sec := t.Clock()
	b := make([]byte, 0, len("Thu, 01 Jan 1970 00:00:00 GMT"))
	b = append(b, "SunMonTueWedThuFriSat"[3*t.Weekday():][:3]...)
	b = append(b, ", "...)
	b = append(twoDigits(b, day), ' ')
	b = append(b, "JanFebMarAprMayJunJulAugSepOctNovDec"[3*(month-1):][:3]...)
	b = append(b, ' ')
	b = append(twoDigits(twoDigits(b, year/100), year%100), ' ')
	b = append(twoDigits(b, hour), ':')
	b = append(twoDigits(b, minute), ':')
	return string(append(twoDigits(b, sec), " GMT"...))
}

// twoDigits appends the last two digits of n.
func twoDigits(b []byte, n int) []byte { return append(b, byte('0'+n/10%10), byte('0'+n%10)) }

// Accepts reports whether an Accept-Encoding allows all codings of a Content-Encoding. A request without the header accepts
// none: its client may not be able to decode.
func Accepts(accept, encoding string) bool {
	all := true
	EachToken(encoding, func(coding string) bool {
		all = acceptsOne(accept, coding)
		return all
	})
	return all
}

func acceptsOne(accept, coding string) bool {
	coding = Lower(coding)
	if coding == "identity" {
		return true
	}
	named, rest := -1, -1 // what the list says of the coding and of *; -1: nothing, 0: no, 1: yes
	EachToken(accept, func(element string) bool {
		name, allowed := weigh(element)
		switch {
		case name == coding, "x-"+name == coding, name == "x-"+coding:
			named = allowed
		case name == "*":
			rest = allowed
		}
		return true
	})
	return named == 1 || named < 0 && rest == 1
}

// weigh parses an element of Accept-Encoding. It returns the coding, and 0 when a weight of zero refuses it, else 1.
func weigh(element string) (name string, allowed int) {
	name, q, _ := strings.Cut(element, ";")
	name, q = Lower(Trim(name)), Trim(q)
	if len(q) < 3 || q[0]|0x20 != 'q' || q[1] != '=' || strings.ContainsAny(q[2:], "123456789") {
		return name, 1
	}
	return name, 0
}
