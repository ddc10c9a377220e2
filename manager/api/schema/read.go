package schema

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// maxMembers bounds the members of an object of the API, which keeps the search for duplicates cheap.
const maxMembers = 64

// eachMember calls field for each member of the value of the field parent, "" for the whole body, in order. It refuses anything
// but an object, and members that are given twice. Errors are *api.FieldError.
func eachMember(parent string, object gjson.Result, field func(name string, v gjson.Result) error) error {
	what, prefix := "body", ""
	if parent != "" {
		what, prefix = parent, parent+"."
	}
	if !object.IsObject() {
		return &api.FieldError{Field: what, Allowed: "must be a JSON object"}
	}
	var err error
	var seenBuf [16]string
	seen := seenBuf[:0]
	object.ForEach(func(k, v gjson.Result) bool {
		name, ok := text(k)
		if !ok {
			err = &api.FieldError{Field: clip(prefix + name), Allowed: "must have a name of Unicode text"}
			return false
		}
		for _, s := range seen {
			if s == name {
				err = &api.FieldError{Field: clip(prefix + name), Allowed: "given twice"}
				return false
			}
		}
		if len(seen) == maxMembers {
			err = &api.FieldError{Field: what, Allowed: "must have at most " + strconv.Itoa(maxMembers) + " members"}
			return false
		}
		seen = append(seen, name)
		err = field(name, v)
		return err == nil
	})
	return err
}

// stringField returns a member that must be a string. The error is an *api.FieldError.
func stringField(name string, v gjson.Result) (string, error) {
	if v.Type != gjson.String {
		return "", &api.FieldError{Field: name, Value: clip(v.Raw), Allowed: "must be a string"}
	}
	return v.String(), nil
}

// text returns a string, and whether it is what the JSON says: nothing in it was replaced. Bytes that are not UTF-8 and escapes of
// half a surrogate pair become U+FFFD, which may make two ids one.
func text(v gjson.Result) (s string, ok bool) {
	s, raw := v.String(), v.Raw
	if !utf8.ValidString(s) {
		return strings.ToValidUTF8(s, "\uFFFD"), false
	}
	if !strings.Contains(s, "\uFFFD") {
		return s, true
	}
	for at := strings.IndexByte(raw, '\\'); at >= 0 && at+1 < len(raw); {
		n := 2
		if r := escaped(raw[at:]); utf16.IsSurrogate(r) {
			if n = 12; utf16.DecodeRune(r, escaped(raw[min(at+6, len(raw)):])) == utf8.RuneError {
				return s, false
			}
		}
		next := strings.IndexByte(raw[at+n:], '\\')
		if next < 0 {
			break
		}
		at += n + next
	}
	return s, true
}

// escaped returns the character of an escape with four digits at the beginning of a string, 0 when there is none.
func escaped(raw string) rune {
	if len(raw) < 6 || raw[:2] != `\u` {
		return 0
	}
	n, err := strconv.ParseUint(raw[2:6], 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}

// whole reads a number that is whole. A fraction of zeros is passed by, because JSON does not tell 1 from 1.0.
func whole(v gjson.Result) (int64, bool) {
	raw := v.Raw
	if digits, fraction, ok := strings.Cut(raw, "."); ok && fraction != "" && strings.Trim(fraction, "0") == "" {
		raw = digits
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	return n, err == nil && v.Type == gjson.Number
}
