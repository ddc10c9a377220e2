package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// reference is RFC 8785 written with encoding/json, with the exception that appendCanonical documents.
func reference(body []byte) (string, error) {
	if !json.Valid(body) || !utf8.Valid(body) || loneSurrogate(body) {
		return "", errors.New("not I-JSON")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return referenceValue(d, 0)
}

func referenceValue(d *json.Decoder, depth int) (string, error) {
	token, err := d.Token()
	if err != nil {
		return "", err
	}
	if depth > jsonguard.MaxDepth {
		return "", errors.New("too deep")
	}
	switch v := token.(type) {
	case json.Delim:
		if depth == jsonguard.MaxDepth {
			return "", errors.New("too deep")
		}
		var parts, names []string
		values := map[string]string{}
		for d.More() {
			if v == '[' {
				s, err := referenceValue(d, depth+1)
				if err != nil {
					return "", err
				}
				parts = append(parts, s)
				continue
			}
			name, err := d.Token()
			if err != nil {
				return "", err
			}
			s, err := referenceValue(d, depth+1)
			if err != nil {
				return "", err
			}
			if _, twice := values[name.(string)]; twice {
				return "", errors.New("twice")
			}
			names, values[name.(string)] = append(names, name.(string)), s
		}
		if _, err := d.Token(); err != nil {
			return "", err
		}
		if v == '[' {
			return "[" + strings.Join(parts, ",") + "]", nil
		}
		slices.SortFunc(names, func(a, b string) int { return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) })
		for _, name := range names {
			parts = append(parts, referenceText(name)+":"+values[name])
		}
		return "{" + strings.Join(parts, ",") + "}", nil
	case string:
		return referenceText(v), nil
	case json.Number:
		return referenceNumber(string(v))
	case nil:
		return "null", nil
	default:
		return fmt.Sprint(v), nil
	}
}

func referenceText(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

func referenceNumber(s string) (string, error) {
	f, err := strconv.ParseFloat(s, 64)
	if !strings.ContainsAny(s, ".eE") && s != "-0" {
		if exact := strconv.FormatFloat(f, 'f', -1, 64); err != nil || exact != s {
			return s, nil
		}
	}
	if err != nil {
		return "", err
	}
	// encoding/json writes numbers as ECMAScript does, except for the sign of zero.
	text, err := json.Marshal(math.Abs(f))
	if f < 0 {
		return "-" + string(text), err
	}
	return string(text), err
}

// loneSurrogate looks for escapes of half a character, for which encoding/json takes U+FFFD.
func loneSurrogate(body []byte) bool {
	unit := func(i int) rune {
		if i+6 > len(body) || body[i] != '\\' || body[i+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(body[i+2:i+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		u := unit(i)
		switch {
		case u < 0:
			i++
		case !utf16.IsSurrogate(u):
			i += 5
		case utf16.DecodeRune(u, unit(i+6)) == utf8.RuneError:
			return true
		default:
			i += 11
		}
	}
	return false
}

// whole is the setting that compares the whole body as JSON.
var whole = &config.Fingerprint{Body: config.BodyCanonicalJSON, Query: config.QueryAll}

// The examples of RFC 8785, and what has no canonical form.
func TestCanonicalJSON(t *testing.T) {
	for body, want := range map[string]string{
		"{\n\"numbers\": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],\n" +
			`"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}`: `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		` 5 `: `5`, `-0`: `0`, `-0.0`: `0`, `1.0`: `1`, `1e2`: `100`, `0.0000001`: `1e-7`, `1E-10`: `1e-10`, `123456789012345678e3`: `123456789012345680000`,
		`999999999999999999999.0`: `1e+21`, `1e21`: `1e+21`, `1000000000000000000000`: `1e+21`, `5e-324`: `5e-324`, `1.7976931348623157e308`: `1.7976931348623157e+308`,
		// A whole number that a double does not hold keeps its digits.
		`9007199254740993`: `9007199254740993`, `-9007199254740993`: `-9007199254740993`, `9007199254740992`: `9007199254740992`,
		`1` + strings.Repeat("0", 400): `1` + strings.Repeat("0", 400),
		`{}`:                           `{}`, `[ ]`: `[]`, `{"b":{"d":1,"c":[]},"a":""}`: `{"a":"","b":{"c":[],"d":1}}`, `"\u007f\/"`: "\"\x7f/\"",
		strings.Repeat("[", 64) + strings.Repeat("]", 64): strings.Repeat("[", 64) + strings.Repeat("]", 64),
		// No canonical form.
		``: "", `{`: "", `{"a":1,"a":1}`: "", `{"a":1,"\u0061":2}`: "", `{"x":[{"b":0,"a":1,"b":2}]}`: "", `1e400`: "", `[-1E999]`: "",
		`"\ud800"`: "", `"\ud800\u0041"`: "", `"\udc00"`: "", "\"\xff\"": "", `{} {}`: "", `01`: "", `"` + "\n" + `"`: "",
		strings.Repeat("[", 65) + strings.Repeat("]", 65): "",
		`[` + strings.Repeat("1e20,", 5000) + `1]`:        "",
	} {
		got, ok := appendCanonical([]byte("before"), []byte(body), whole)
		if ok != (want != "") {
			t.Errorf("%.80q: canonical form %v", body, ok)
		} else if ok && string(got) != "before"+want {
			t.Errorf("%.80q: %q, want %q", body, got, want)
		}
	}
}

func TestPartsOfBodies(t *testing.T) {
	for _, c := range []struct {
		include, exclude, body, want string
	}{
		{`[]`, `["ts","meta.id","items.1","list.0.x"]`, `{"ts":1,"a":{"ts":2},"meta":{"id":3,"b":4},"items":[1,2,3],"list":[{"x":1,"y":2},{"x":3}]}`, `{"a":{"ts":2},"items":[1,3],"list":[{"y":2},{"x":3}],"meta":{"b":4}}`},
		{`["a","m.b"]`, `[]`, `{"m":{"c":1,"b":{"z":1,"y":2}},"a":5,"x":6}`, `{"a":5,"m":{"b":{"y":2,"z":1}}}`},
		{`["a"]`, `["a.ts"]`, `{"a":{"ts":1,"b":2},"ts":3}`, `{"a":{"b":2}}`},
		{`["l.1.id"]`, `[]`, `{"l":[{"id":1},{"id":2},{"id":3}]}`, `{"l":[1:{"id":2}]}`},
		{`["l.1"]`, `[]`, `{"l":{"1":"x","0":"y"}}`, `{"l":{"1":"x"}}`},
		{`["a"]`, `[]`, `{"b":1}`, ``},
		{`["a"]`, `[]`, `5`, ``},
		{`["a.b"]`, `[]`, `{"a":{}}`, ``},
		{`["a"]`, `[]`, `{"a":{}}`, `{"a":{}}`},
		{`["a\\.b"]`, `[]`, `{"a.b":1,"a":{"b":2}}`, `{"a.b":1}`},
		{`[]`, `["a"]`, `{"\u0061":1}`, `{}`},
	} {
		cfg, err := config.Parse([]byte(`{"mode":"body","fingerprint":{"body":"canonical_json","include":` + c.include + `,"exclude":` + c.exclude + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := appendCanonical(nil, []byte(c.body), &cfg.Route("POST", "/").Fingerprint)
		if !ok || string(got) != c.want {
			t.Errorf("include %s, exclude %s of %s: %v %s, want %s", c.include, c.exclude, c.body, ok, got, c.want)
		}
		// A repeated name counts wherever it stands.
		twice := strings.Replace(c.body, "{", `{"q":1,"q":1,`, 1)
		if _, ok := appendCanonical(nil, []byte(strings.Replace(twice, ",}", "}", 1)), &cfg.Route("POST", "/").Fingerprint); ok && twice != c.body {
			t.Errorf("%s has a canonical form", twice)
		}
	}
}

// FuzzCanonical compares with the reference, which has no limits of size.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		`{"b":[1.50,-0,1e21,9007199254740993,{"\u00e9":null}],"a":"\ud83d\ude00\n"}`, `{"a":1,"a":2}`, `"\ud800"`, `[[[[]]]]`, ` {"\ufb33":0,"😀":1,"":2}`,
		`0.1`, `1e-7`, `123456789012345678901234567890`, `-1E400`, "\"\x7f\u2028\"", `{"a":{"a":{"a":[true,false]}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 64<<10 {
			return
		}
		want, err := reference(body)
		got, ok := appendCanonical(nil, body, whole)
		if len(want) > 2*len(body)+4096 {
			err = io.ErrShortBuffer
		}
		if ok != (err == nil) {
			t.Fatalf("%q: canonical form %v, reference %v", body, ok, err)
		}
		if !ok {
			return
		}
		if string(got) != want {
			t.Fatalf("%q: %q, want %q", body, got, want)
		}
		if again, ok := appendCanonical(nil, got, whole); !ok || !bytes.Equal(again, got) {
			t.Fatalf("%q: the canonical form %q has the form %q", body, got, again)
		}
		// Parts of a body never have a form that the whole has not.
		part := &config.Fingerprint{Body: config.BodyCanonicalJSON, Include: [][]string{{"a"}, {"b", "0"}}, Exclude: [][]string{{"a", "a"}, {"0"}}}
		if _, ok := appendCanonical(nil, body, part); !ok {
			t.Fatalf("%q: no form of its parts", body)
		}
	})
}
