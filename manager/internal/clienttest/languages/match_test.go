package languages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// match compares a value with a pattern, both as JSON, and returns what differs, "" for nothing. A pattern's object matches an
// object with at least its members, and null matches a missing member. A pattern's text that begins with "~" matches a text
// that has the rest of it, and "*" matches any value but null.
func match(pattern, value string) string {
	p, err := decode(pattern)
	if err != nil {
		return fmt.Sprintf("the pattern %s: %v", pattern, err)
	}
	v, err := decode(value)
	if err != nil {
		return fmt.Sprintf("no JSON: %v", err)
	}
	return differs(p, v, "")
}

func decode(text string) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func differs(pattern, value any, at string) string {
	switch p := pattern.(type) {
	case map[string]any:
		v, ok := value.(map[string]any)
		if !ok {
			break
		}
		for name, member := range p {
			if d := differs(member, v[name], at+"."+name); d != "" {
				return d
			}
		}
		return ""
	case []any:
		v, ok := value.([]any)
		if !ok || len(v) != len(p) {
			break
		}
		for i := range p {
			if d := differs(p[i], v[i], fmt.Sprintf("%s[%d]", at, i)); d != "" {
				return d
			}
		}
		return ""
	case string:
		v, ok := value.(string)
		part, contains := strings.CutPrefix(p, "~")
		if p == "*" && value != nil || contains && ok && strings.Contains(v, part) {
			return ""
		}
	}
	if reflect.DeepEqual(pattern, value) {
		return ""
	}
	return fmt.Sprintf("%s is %v, want %v", at, value, pattern)
}

// find returns the value at a path such as ok.0.id, as text.
func find(t *testing.T, text, path string) string {
	t.Helper()
	v, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(at) {
				t.Fatalf("%s: nothing at %s", text, path)
			}
			v = at[i]
		}
	}
	if v == nil {
		t.Fatalf("%s: nothing at %s", text, path)
	}
	return fmt.Sprint(v)
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, value string
		same           bool
	}{
		{`{"a":1}`, `{"a":1,"b":2}`, true},
		{`{"a":1}`, `{"a":2}`, false},
		{`{"a":1}`, `{}`, false},
		{`{"a":null}`, `{}`, true},
		{`{"a":"*"}`, `{"a":0}`, true},
		{`{"a":"*"}`, `{}`, false},
		{`[{"a":"~b"}]`, `[{"a":"abc"}]`, true},
		{`[{"a":"~d"}]`, `[{"a":"abc"}]`, false},
		{`[1]`, `[1,2]`, false},
		{`{"a":1}`, `[]`, false},
		{`1`, `no`, false},
	} {
		if got := match(c.pattern, c.value); (got == "") != c.same {
			t.Errorf("%s and %s: %q", c.pattern, c.value, got)
		}
	}
}
