package request

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

var fromHeader = config.Key{Header: "idempotency-key"}

func keyHeaders(values ...string) Headers {
	h := Headers{{":method", "POST"}, {":path", "/"}}
	for _, v := range values {
		h = append(h, [2]string{"idempotency-key", v})
	}
	return h
}

func TestHeaderKey(t *testing.T) {
	long := strings.Repeat("k", api.MaxKeyBytes)
	for in, want := range map[string]string{
		"a":                                    "a",
		"8e03978e-40d5-43e8-bc93-6894a57f9324": "8e03978e-40d5-43e8-bc93-6894a57f9324",
		" \ta ":                                "a",
		" a b \t":                              "a b",
		`"a b"`:                                "a b",
		`"a  \"b\" \\ c";v="x y" `:             `a  "b" \ c`,
		`a "b`:                                 `a "b`,
		`"a"`:                                  "a",
		`"8e03978e"`:                           "8e03978e",
		`"a\"b\\c"`:                            `a"b\c`,
		`"\\"`:                                 `\`,
		`a"b"`:                                 `a"b"`,
		`"a,b"`:                                `a,b`,
		`a;c=d`:                                `a;c=d`,
		`"a";p=1;q="x, \",y"`:                  `a`,
		"!~":                                   "!~",
		long:                                   long,
		`"` + long + `"`:                       long,
	} {
		got, err := HeaderKey(&fromHeader, keyHeaders(in))
		if err != nil || got.Value != want {
			t.Errorf("%q: %q, %v; want %q", in, got.Value, err, want)
		}
	}
	for _, h := range []Headers{nil, keyHeaders(), {{"x-idempotency-key", "a"}}} {
		if got, err := HeaderKey(&fromHeader, h); err != nil || got != (Key{}) {
			t.Errorf("%q: %+v, %v; want none", h, got, err)
		}
	}
	if got, err := HeaderKey(&config.Key{JSONPath: "id"}, keyHeaders("a", "b")); err != nil || got != (Key{}) {
		t.Errorf("a header that is not a source: %+v, %v", got, err)
	}
}

func TestUUIDsAreComparedByValue(t *testing.T) {
	k := &config.Key{Header: "idempotency-key", Format: config.FormatUUID}
	for _, in := range []string{"123e4567-e89b-12d3-a456-42661417abcd", `"123E4567-E89B-12D3-A456-42661417ABCD"`} {
		if got, err := HeaderKey(k, keyHeaders(in)); err != nil || got.Value != "123e4567-e89b-12d3-a456-42661417abcd" {
			t.Errorf("%s: %q, %v", in, got.Value, err)
		}
	}
}

func TestHeaderKeyRefused(t *testing.T) {
	const printable = "; allowed: printable ASCII (0x20 to 0x7e)"
	const ends = "a blank at an end; allowed: blanks between other bytes"
	const list = "a list; allowed: one key, in quotes if it has a comma"
	for in, want := range map[string]string{
		"":                                   "empty; allowed: 1 to 255 bytes of printable ASCII",
		"  ":                                 "empty; allowed: 1 to 255 bytes of printable ASCII",
		`""`:                                 "empty; allowed: 1 to 255 bytes of printable ASCII",
		strings.Repeat("k", 256):             "256 bytes; allowed: 1 to 255",
		`"` + strings.Repeat("k", 256) + `"`: "256 bytes; allowed: 1 to 255",
		`" a"`:                               ends,
		`"a "`:                               ends,
		`" "`:                                ends,
		"a\tb":                               "byte 2 is 0x09" + printable,
		"\"a\tb\"":                           "byte 2 is 0x09" + printable,
		"a\x00":                              "byte 2 is 0x00" + printable,
		"\x7f":                               "byte 1 is 0x7f" + printable,
		"a\nb":                               "byte 2 is 0x0a" + printable,
		"ké":                                 "byte 2 is 0xc3" + printable,
		"a, b":                               list,
		"k,k":                                list,
		`"`:                                  "the closing quote is missing",
		`"a`:                                 "the closing quote is missing",
		`"a\"`:                               "the closing quote is missing",
		`"a\b"`:                              `a backslash that escapes neither " nor \`,
		`"a\`:                                `a backslash that escapes neither " nor \`,
		`"a"b`:                               "text after the closing quote; allowed: one quoted string, and parameters",
		`"a" ;p`:                             "text after the closing quote; allowed: one quoted string, and parameters",
		`"a", "b"`:                           list,
		`"a";p=1, "b"`:                       list,
	} {
		got, err := HeaderKey(&fromHeader, keyHeaders(in))
		if err == nil {
			t.Errorf("%q: accepted as %q", in, got.Value)
			continue
		}
		if err.Code != api.CodeInvalidKey || err.Detail != "header idempotency-key: "+want || got != (Key{}) {
			t.Errorf("%q: %s %q, want %q", in, err.Code, err.Detail, want)
		}
		if p := err.Problem(); p.Status != 400 || p.Code != api.CodeInvalidKey || p.Detail != err.Detail || p.Title == "" {
			t.Errorf("%q: problem %+v", in, p)
		}
	}
	if _, err := HeaderKey(&fromHeader, keyHeaders("a", "a")); err == nil || err.Detail != "header idempotency-key: sent 2 times; allowed: once" {
		t.Errorf("two headers: %v", err)
	}
}

func TestJSONKey(t *testing.T) {
	k := &config.Key{JSONPath: "a.id"}
	for body, want := range map[string]string{
		`{"a": {"id": "x-1"}}`:                "x-1",
		`{"a": {"id": "\u0078"}}`:             "x",
		`{"a": {"id": "a b"}}`:                "a b",
		`{"a": {"id": 12345678901234567890}}`: "12345678901234567890",
		`{"a": {"id": 1.50}}`:                 "1.50",
		`{"a": {"id": -1e9}}`:                 "-1e9",
		`{"a": {"id": "x"}, "b": 1, "b": 2}`:  "x",
		`{"a": {"id": null}}`:                 "",
		`{"a": {}}`:                           "",
		`{"a": 1}`:                            "",
		`[]`:                                  "",
		``:                                    "",
		`{"a": {"id": "x"`:                    "",
		`{"a": {"id": "x"}} trailing`:         "",
		strings.Repeat(`{"a":`, 100000):       "",
		`{"a": {"id": "x"}, "b": ` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`: "",
	} {
		got, err := JSONKey(k, []byte(body), true)
		if err != nil || got.Value != want {
			t.Errorf("%.60s: %q, %v; want %q", body, got.Value, err, want)
		}
	}
	for body, want := range map[string]string{
		`{"a": {"id": ""}}`:   "empty; allowed: 1 to 255 bytes of printable ASCII",
		`{"a": {"id": " a"}}`: "a blank at an end; allowed: blanks between other bytes",
		`{"a": {"id": "\n"}}`: "byte 1 is 0x0a; allowed: printable ASCII (0x20 to 0x7e)",
		`{"a": {"id": true}}`: "neither a string nor a number",
		`{"a": {"id": {}}}`:   "neither a string nor a number",
		// An upstream may take the other one, and then run the work of one key under another.
		`{"a": {"id": "first", "id": "second"}}`: "there more than once; allowed: once",
		`{"a": {"id": ["x"]}}`:                   "neither a string nor a number",
	} {
		got, err := JSONKey(k, []byte(body), true)
		if err == nil || err.Code != api.CodeInvalidKey || err.Detail != "body field a.id: "+want || got != (Key{}) {
			t.Errorf("%s: %+v, %v; want %q", body, got, err, want)
		}
	}
	if got, err := JSONKey(k, []byte(`{"a": {"id": "x"}}`), false); err != nil || got != (Key{}) {
		t.Errorf("an incomplete body: %+v, %v", got, err)
	}
	if got, err := JSONKey(&fromHeader, []byte(`{"a": {"id": "x"}}`), true); err != nil || got != (Key{}) {
		t.Errorf("a body that is not a source: %+v, %v", got, err)
	}
	list := &config.Key{JSONPath: `items.1.k\.x`}
	if got, err := JSONKey(list, []byte(`{"items": [0, {"k.x": "yes"}]}`), true); err != nil || got.Value != "yes" {
		t.Errorf("position and escape: %+v, %v", got, err)
	}
}

func TestDerivedKey(t *testing.T) {
	for _, c := range []struct {
		derive config.Derive
		pieces []string
		want   string
	}{
		// RFC 1321 and FIPS 180.
		{config.DeriveMD5, []string{"abc"}, "900150983cd24fb0d6963f7d28e17f72"},
		{config.DeriveMD5, []string{"a", "", "bc"}, "900150983cd24fb0d6963f7d28e17f72"},
		{config.DeriveSHA256, []string{"ab", "c"}, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{config.DeriveSHA256, []string{"abcdefgh"}, "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"},
		{config.DeriveMD5, []string{"abcdefghi"}, ""}, // beyond the limit of 8
		{config.DeriveMD5, []string{"abcdefgh", "i"}, ""},
		{config.DeriveMD5, []string{""}, ""},
		{config.DeriveMD5, nil, ""},
		{config.DeriveNone, []string{"abc"}, ""},
	} {
		b := NewDigester("").NewBody(byDefault, sample, 8, c.derive)
		for _, p := range c.pieces {
			b.Write([]byte(p))
		}
		if got := DerivedKey(&config.Key{Derive: c.derive}, b); got.Value != c.want {
			t.Errorf("derive %d of %q = %q, want %q", c.derive, c.pieces, got.Value, c.want)
		}
	}
	// NewBody was not asked for a digest, so there is none.
	b := NewDigester("").NewBody(byDefault, sample, 8, config.DeriveNone)
	b.Write([]byte("abc"))
	if got := DerivedKey(&config.Key{Derive: config.DeriveMD5}, b); got.Value != "" {
		t.Errorf("derived %q", got.Value)
	}
}

func TestMissingKeyNamesItsPlace(t *testing.T) {
	if err := Missing(&config.Key{Header: "x"}); err != nil {
		t.Errorf("not required: %v", err)
	}
	for want, k := range map[string]config.Key{
		"no idempotency key; expected header x":                                                             {Header: "x", Required: true},
		"no idempotency key; expected body field a.b":                                                       {JSONPath: "a.b", Required: true},
		"no idempotency key; expected header x or body field a or a body of at most max_request_body_bytes": {Header: "x", JSONPath: "a", Derive: config.DeriveMD5, Required: true},
	} {
		err := Missing(&k)
		if err == nil || err.Detail != want || err.Code != api.CodeKeyRequired || err.Error() != want || err.Problem().Status != 400 {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
}

func TestParseStructured(t *testing.T) {
	const nonce = "a1b2c3d4e5f6a7b8"
	for in, want := range map[string]api.StructuredKey{
		"host1.dc1:12345:42:" + nonce:     {Client: "host1.dc1:12345", Sequence: 42, Nonce: nonce},
		"host 1:42:" + nonce:              {Client: "host 1", Sequence: 42, Nonce: nonce},
		"c:0:" + nonce:                    {Client: "c", Sequence: 0, Nonce: nonce},
		"c:18446744073709551615:" + nonce: {Client: "c", Sequence: 1<<64 - 1, Nonce: nonce},
		":::1:" + nonce:                   {Client: "::", Sequence: 1, Nonce: nonce},
		"c:1:A1B2C3D4E5F6A7B8":            {Client: "c", Sequence: 1, Nonce: "A1B2C3D4E5F6A7B8"},
		"a:b:7:" + nonce + ":9:" + nonce:  {Client: "a:b:7:" + nonce, Sequence: 9, Nonce: nonce},
	} {
		if got, ok := api.ParseStructuredKey(in); !ok || got != want {
			t.Errorf("%s: %+v, %v", in, got, ok)
		}
		// The parts must give the key again, so no key has two readings.
		k, err := HeaderKey(&config.Key{Header: "idempotency-key", Format: config.FormatStructured}, keyHeaders(in))
		if err != nil || !k.Structured || k.Value != in || k.StructuredKey != want {
			t.Errorf("%s: %+v, %v", in, k, err)
		}
	}
	for _, in := range []string{
		"", "plain", nonce, ":" + nonce, "1:" + nonce, ":1:" + nonce, "c:" + nonce, "c::" + nonce,
		"c:01:" + nonce, "c:00:" + nonce, "c:-1:" + nonce, "c:+1:" + nonce, "c:1.0:" + nonce, "c:1a:" + nonce, "c:a1:" + nonce,
		"c:18446744073709551616:" + nonce, "c:99999999999999999999:" + nonce, "c:111111111111111111111:" + nonce,
		"c:1:" + nonce[1:], "c:1:0" + nonce, "c:1:g" + nonce[1:], "c:1:" + nonce + ":", "c:1" + nonce, "c1:" + nonce,
		"c: 1:" + nonce, "c:1 :" + nonce, "c:1: " + nonce[1:],
	} {
		if got, ok := api.ParseStructuredKey(in); ok || got != (api.StructuredKey{}) {
			t.Errorf("%q: %+v, %v; want none", in, got, ok)
		}
		if in == "" {
			continue
		}
		k, err := HeaderKey(&fromHeader, keyHeaders(in))
		if err != nil || k.Structured || k.Value != in {
			t.Errorf("%q is not a plain key: %+v, %v", in, k, err)
		}
		if _, err := HeaderKey(&config.Key{Header: "idempotency-key", Format: config.FormatStructured}, keyHeaders(in)); err == nil ||
			err.Detail != "header idempotency-key: not of the form {client_id}:{sequence}:{nonce}, with a decimal sequence and a nonce of 16 hex digits" {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// FuzzHeaderKey: a key that is accepted is within the ledger's bounds, has one
// quoted form with the same meaning, and its parts make it again.
func FuzzHeaderKey(f *testing.F) {
	for _, s := range []string{"", "a", `"a\"b"`, `"`, "c:1:a1b2c3d4e5f6a7b8", "a b", strings.Repeat("k", 256), "\"\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := HeaderKey(&fromHeader, keyHeaders(s))
		if err != nil {
			if k != (Key{}) || err.Detail == "" || len(err.Detail) > 500 {
				t.Errorf("%q: %+v with %q", s, k, err.Detail)
			}
			return
		}
		if !aKey(k.Value) {
			t.Errorf("%q was accepted as %q", s, k.Value)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(k.Value) + `"`
		if again, err := HeaderKey(&fromHeader, keyHeaders(quoted)); err != nil || again != k {
			t.Errorf("%q gives %+v, but %q gives %+v, %v", s, k, quoted, again, err)
		}
		if k.Structured && k.Client+":"+decimal64(k.Sequence)+":"+k.Nonce != k.Value {
			t.Errorf("%q has the parts %+v", s, k)
		}
	})
}

func aKey(s string) bool {
	return s != "" && len(s) <= api.MaxKeyBytes && strings.Trim(s, " ") == s && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

func decimal64(n uint64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return decimal64(n/10) + string(rune('0'+n%10))
}

// FuzzJSONKey: no body panics, and what is accepted is a key.
func FuzzJSONKey(f *testing.F) {
	for _, s := range []string{"", `{"a":{"id":"x"}}`, `{"a":[1,{"id":2}]}`, `{"a":{"id":"\ud800"}}`, strings.Repeat("[", 1000)} {
		f.Add([]byte(s), "a.id")
	}
	f.Fuzz(func(t *testing.T, body []byte, path string) {
		if _, err := config.Parse([]byte(`{"mode": "body", "key": {"json_path": "` + path + `"}}`)); err != nil {
			return // such a path never gets here
		}
		k, err := JSONKey(&config.Key{JSONPath: path}, body, true)
		if err == nil && k.Value != "" && !aKey(k.Value) {
			t.Errorf("%q at %q was accepted as %q", body, path, k.Value)
		}
	})
}
