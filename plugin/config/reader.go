package config

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// reader reads typed values from parsed JSON and keeps the first error. After an
// error its methods return zero values, so callers need not check each one.
type reader struct{ err *Error }

func (r *reader) fail(path, reason string) {
	if r.err == nil {
		r.err = &Error{Path: path, Reason: reason}
	}
}

// refuse reports a value that is not allowed.
func (r *reader) refuse(path string, v gjson.Result, allowed string) {
	r.fail(path, show(v.Raw)+"; allowed: "+allowed)
}

// field is one member of an object.
type field struct {
	name string
	read func(path string, v gjson.Result)
}

// object reads an object's members. It refuses repeated and unknown members.
func (r *reader) object(path string, v gjson.Result, fields []field) {
	if !v.IsObject() {
		r.refuse(path, v, "an object")
		return
	}
	seen := make([]bool, len(fields))
	v.ForEach(func(key, value gjson.Result) bool {
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Str })
		switch {
		case at < 0:
			r.fail(join(path, printable(key.Str)), "unknown field; allowed: "+names(fields))
		case seen[at]:
			r.fail(join(path, key.Str), "given twice; allowed: once")
		default:
			seen[at] = true
			fields[at].read(join(path, key.Str), value)
		}
		return r.err == nil
	})
}

// list reads an array of min to max elements.
func (r *reader) list(path string, v gjson.Result, min, max int, what string, read func(path string, v gjson.Result)) {
	allowed := "a list of " + strconv.Itoa(min) + " to " + strconv.Itoa(max) + " " + what
	if !v.IsArray() {
		r.refuse(path, v, allowed)
		return
	}
	n := 0
	v.ForEach(func(_, value gjson.Result) bool {
		if n == max {
			r.fail(path, "more than "+strconv.Itoa(max)+" elements; allowed: "+allowed)
			return false
		}
		read(path+"["+strconv.Itoa(n)+"]", value)
		n++
		return r.err == nil
	})
	if r.err == nil && n < min {
		r.refuse(path, v, allowed)
	}
}

// text reads a string; ok reports whether its content is allowed.
func (r *reader) text(path string, v gjson.Result, allowed string, ok func(string) bool) string {
	if v.Type != gjson.String || !ok(v.Str) {
		r.refuse(path, v, allowed)
		return ""
	}
	return v.Str
}

// secret is text for values that must not appear in errors.
func (r *reader) secret(path string, v gjson.Result, allowed string, ok func(string) bool) string {
	if v.Type != gjson.String || !ok(v.Str) {
		r.fail(path, "(value not shown); allowed: "+allowed)
		return ""
	}
	return v.Str
}

// variable reads the name of an environment variable, or "". It is not shown, because a secret may be here by mistake.
func (r *reader) variable(path string, v gjson.Result) string {
	return r.secret(path, v, `"" or a name of up to 255 upper-case letters, digits and _ that does not begin with a digit`, func(s string) bool {
		return s == "" || variableName(s)
	})
}

// choice reads one of a few names and returns its position.
func (r *reader) choice(path string, v gjson.Result, choices ...string) int {
	if v.Type == gjson.String {
		if at := slices.Index(choices, v.Str); at >= 0 {
			return at
		}
	}
	r.refuse(path, v, `"`+strings.Join(choices, `", "`)+`"`)
	return 0
}

func (r *reader) boolean(path string, v gjson.Result) bool {
	if !v.IsBool() {
		r.refuse(path, v, "true or false")
		return false
	}
	return v.Bool()
}

// integer reads a whole number. It may be written as 8.0 or 1e+06, as some control planes do.
func (r *reader) integer(path string, v gjson.Result, min, max int) int {
	if v.Type == gjson.Number && v.Num == math.Trunc(v.Num) && v.Num >= float64(min) && v.Num <= float64(max) {
		return int(v.Num)
	}
	r.refuse(path, v, "an integer from "+strconv.Itoa(min)+" to "+strconv.Itoa(max))
	return 0
}

func (r *reader) millis(path string, v gjson.Result, min, max int) time.Duration {
	return time.Duration(r.integer(path, v, min, max)) * time.Millisecond
}

// seconds reads a number of seconds, rounded to milliseconds.
func (r *reader) seconds(path string, v gjson.Result, max int) time.Duration {
	if v.Type == gjson.Number && v.Num >= 0.001 && v.Num <= float64(max) {
		return time.Duration(math.Round(v.Num*1000)) * time.Millisecond
	}
	r.refuse(path, v, "a number of seconds from 0.001 to "+strconv.Itoa(max))
	return 0
}

// secondsOrNone reads a number of seconds, where 0 is allowed and means none.
func (r *reader) secondsOrNone(path string, v gjson.Result, max int) time.Duration {
	switch {
	case v.Type == gjson.Number && v.Num == 0:
		return 0
	case v.Type == gjson.Number && v.Num >= 0.001 && v.Num <= float64(max):
		return r.seconds(path, v, max)
	}
	r.refuse(path, v, "0 or a number of seconds from 0.001 to "+strconv.Itoa(max))
	return 0
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func names(fields []field) string {
	s := ""
	for i := range fields {
		if i > 0 {
			s += ", "
		}
		s += fields[i].name
	}
	return s
}

// maxShown bounds how much of an input an error repeats.
const maxShown = 80

// show prepares a raw value for an error. It leaves out the contents of objects and
// lists, which may be a secret in the wrong field.
func show(raw string) string {
	if len(raw) > 2 && raw[0] == '{' {
		return "{...}"
	}
	if len(raw) > 2 && raw[0] == '[' {
		return "[...]"
	}
	if len(raw) > maxShown {
		return printable(raw[:maxShown]) + "..."
	}
	return printable(raw)
}

// printable replaces bytes that could disturb a log line and cuts long values.
func printable(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "..."
	}
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}

// token reports whether s is an HTTP token (RFC 9110) of at most max bytes.
func token(s string, max int) bool {
	if len(s) == 0 || len(s) > max {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !letter(c) && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return true
}
