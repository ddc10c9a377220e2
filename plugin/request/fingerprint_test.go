package request

import (
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
)

// settings parses a route with fingerprint settings.
func settings(t testing.TB, fields string) *config.Fingerprint {
	t.Helper()
	c, err := config.Parse([]byte(`{"mode":"body",` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return &c.Route("POST", "/").Fingerprint
}

// printOf is the fingerprint of a request with a body of at most 100 bytes that counts.
func printOf(f *config.Fingerprint, h Headers, body string) Fingerprint {
	d := NewDigester("")
	b := d.NewBody(f, h, 100, config.DeriveNone)
	b.Write([]byte(body))
	d.Canonical(b, []byte(body), f)
	return d.BodyFingerprint(b)
}

func headersPrint(f *config.Fingerprint, h Headers) Fingerprint {
	return NewDigester("").Fingerprint(f, h, false)
}

func sameRequest(a, b Fingerprint) bool { return api.SameRequest(a.String(), b.String()) }

// Settings that say what the defaults say give the same fingerprints.
func TestEmptySettingsChangeNothing(t *testing.T) {
	for _, fields := range []string{`"ledger":"manager"`, `"fingerprint":{}`, `"fingerprint":{"body":"raw","include":[],"exclude":[],"headers":[]}`} {
		f := settings(t, fields)
		for name, h := range map[string]Headers{
			"sample": sample, "digest": with("content-digest", "sha-256=:x:"), "odd query": with(":path", "/p?b=1&a=2&b#x"),
			"no type": with("content-type", "-"), "not escaped": with(":path", "/%70?%61=+"),
		} {
			if headersPrint(f, h) != headersPrint(byDefault, h) || printOf(f, h, "body") != printOf(byDefault, h, "body") {
				t.Errorf("%s: another fingerprint of %s", fields, name)
			}
		}
	}
}

// TestBothModesMatch: the fingerprint of headers mode is part of that of body mode.
func TestBothModesMatch(t *testing.T) {
	chunked := with("content-length", "-")
	for _, c := range []struct {
		name          string
		headers, body Fingerprint
		same          bool
	}{
		{"declared", headersPrint(byDefault, sample), printOf(byDefault, sample, "12345678901234567"), true},
		{"chunked, then declared", headersPrint(byDefault, chunked), printOf(byDefault, sample, "12345678901234567"), true},
		{"declared, then chunked", headersPrint(byDefault, sample), printOf(byDefault, chunked, "12345678901234567"), true},
		{"another length", headersPrint(byDefault, sample), printOf(byDefault, chunked, "1"), false},
		{"too long", headersPrint(byDefault, with("content-length", "101")), printOf(byDefault, with("content-length", "101"), strings.Repeat("x", 101)), true},
		{"too long and chunked", headersPrint(byDefault, with("content-length", "101")), printOf(byDefault, chunked, strings.Repeat("x", 101)), true},
		{"too long, another length", headersPrint(byDefault, with("content-length", "102")), printOf(byDefault, with("content-length", "101"), strings.Repeat("x", 101)), false},
		{"no body", NewDigester("").Fingerprint(byDefault, chunked, true), printOf(byDefault, chunked, ""), true},
		{"no body, length 0", headersPrint(byDefault, with("content-length", "0")), printOf(byDefault, chunked, ""), true},
		{"no body, then one", NewDigester("").Fingerprint(byDefault, chunked, true), printOf(byDefault, chunked, "1"), false},
		{"canonical", headersPrint(byDefault, with(":path", "/p")), printOf(settings(t, `"fingerprint":{"body":"canonical_json"}`), with(":path", "/p"), "{}"), true},
		{"none", headersPrint(settings(t, `"fingerprint":{"body":"none"}`), sample), printOf(settings(t, `"fingerprint":{"body":"none"}`), chunked, "{}"), true},
		{"another path", headersPrint(byDefault, with(":path", "/p")), printOf(byDefault, sample, "12345678901234567"), false},
	} {
		if sameRequest(c.headers, c.body) != c.same {
			t.Errorf("%s: %s and %s are the same: %v", c.name, c.headers.String(), c.body.String(), !c.same)
		}
		x, y := cache.Fingerprint(c.headers.Short()), cache.Fingerprint(c.body.Short())
		if x.Matches(&y) != c.same {
			t.Errorf("%s: in the cache %x and %x are the same: %v", c.name, x, y, !c.same)
		}
	}
}

// TestForms: what each kind of request has of the parts.
func TestForms(t *testing.T) {
	canonical, none := settings(t, `"fingerprint":{"body":"canonical_json"}`), settings(t, `"fingerprint":{"body":"none"}`)
	chunked, long := with("content-length", "-"), strings.Repeat("x", 101)
	for _, c := range []struct {
		name string
		got  Fingerprint
		want string // digits of the parts
	}{
		{"headers, declared", headersPrint(byDefault, sample), "32 8"},
		{"headers, chunked", headersPrint(byDefault, chunked), "32"},
		{"headers, two lengths", headersPrint(byDefault, append(with(), [2]string{"content-length", "17"})), "32"},
		{"headers, no number", headersPrint(byDefault, with("content-length", "+1")), "32"},
		{"headers, too large a number", headersPrint(byDefault, with("content-length", "9223372036854775808")), "32"},
		{"headers, none", headersPrint(none, sample), "32"},
		{"body", printOf(byDefault, chunked, "x"), "32 8 32"},
		{"no body", printOf(byDefault, chunked, ""), "32 8 32"},
		{"long, declared", printOf(byDefault, sample, long), "32 8 32"},
		{"long, chunked", printOf(byDefault, chunked, long), "32 0 32"},
		{"canonical", printOf(canonical, sample, "{}"), "32 0 32"},
		{"not canonical", printOf(canonical, sample, "{"), "32 8 32"},
		{"long canonical, chunked", printOf(canonical, chunked, long), "32 0 32"},
		{"none", printOf(none, sample, "x"), "32"},
	} {
		var digits []string
		for _, part := range strings.Split(c.got.String(), ".") {
			digits = append(digits, strconv.Itoa(len(part)))
		}
		if got := strings.Join(digits, " "); got != c.want {
			t.Errorf("%s: %s has the digits %s, want %s", c.name, c.got.String(), got, c.want)
		}
		short := c.got.Short()
		for part, b := range map[int][]byte{0: short[:8], 1: short[8:11], 2: short[11:]} {
			if has := part < len(digits) && digits[part] != "0"; has == (strings.Trim(string(b), "\x00") == "") {
				t.Errorf("%s: in the cache it is %x", c.name, short)
			}
		}
	}
	zeros := Fingerprint{hasLength: true, hasBody: true}
	if got := zeros.Short(); got != [16]byte{7: 1, 10: 1, 15: 1} {
		t.Errorf("zeros become %x", got)
	}
}

// TestChosenFingerprint: what a route chooses separates requests, and nothing else does.
func TestChosenFingerprint(t *testing.T) {
	length := with("content-length", "99", "content-digest", "sha-256=:y:")
	for _, c := range []struct {
		fields string
		a, b   Headers
		x, y   string // bodies
		same   bool
	}{
		{`"fingerprint":{"body":"canonical_json"}`, sample, length, `{"a":1,"b":[1.0]}`, ` {"b":[1],"\u0061":1}`, true},
		{`"fingerprint":{"body":"canonical_json"}`, sample, sample, `{"a":1}`, `{"a":2}`, false},
		{`"fingerprint":{"body":"canonical_json"}`, sample, sample, `{"a":1,"a":2}`, `{"a":2}`, false},
		{`"fingerprint":{"body":"canonical_json"}`, sample, sample, `{"a":1,"a":2}`, `{"a":1, "a":2}`, false},
		{`"fingerprint":{"body":"canonical_json"}`, sample, sample, `{"a":`, `{"a": `, false},
		{`"fingerprint":{"body":"canonical_json"}`, sample, with("content-type", "text/plain"), `1`, `1`, false},
		{`"fingerprint":{"body":"canonical_json"}`, sample, length, strings.Repeat(" ", 101) + "1", strings.Repeat(" ", 101) + "1", false},
		{`"fingerprint":{"exclude":["ts"]}`, sample, sample, `{"a":1,"ts":1}`, `{"a":1}`, true},
		{`"fingerprint":{"exclude":["ts"]}`, sample, sample, `{"a":1,"ts":1,"ts":2}`, `{"a":1}`, false},
		{`"fingerprint":{"include":["a"]}`, sample, sample, `{"a":1,"ts":1}`, `{"a":1,"b":[]}`, true},
		{`"fingerprint":{"include":["a"]}`, sample, sample, `{"a":1}`, `{"a":"1"}`, false},
		{`"fingerprint":{"exclude":["ts"]},"match":[{"fingerprint":{"exclude":[]}}]`, sample, sample, `{"a":1,"ts":1}`, `{"a":1}`, false},
		{`"fingerprint":{"body":"none"}`, sample, length, `x`, `yy`, true},
		{`"fingerprint":{"body":"none"}`, sample, with(":path", "/payments?dry=2"), ``, ``, false},
		{`"fingerprint":{"query":"none"}`, sample, with(":path", "/payments?dry=2&x"), ``, ``, true},
		{`"fingerprint":{"query":"none"}`, sample, with(":path", "/payments"), ``, ``, true},
		{`"fingerprint":{"query":"none"}`, sample, with(":path", "/other"), ``, ``, false},
		{`"fingerprint":{"query":"none"}`, sample, sample, `{"a":1}`, `{"a": 1}`, false},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a=1&b=2&a=3"), with(":path", "/p?b=2&&a=1&a=3"), ``, ``, true},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a=1&b=2&a=3"), with(":path", "/p?b=2&a=3&a=1"), ``, ``, false},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a=1"), with(":path", "/p?a=1&b"), ``, ``, false},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a"), with(":path", "/p?a="), ``, ``, false},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a%5Fb+c=1"), with(":path", "/p?a_b%20c=1"), ``, ``, true},
		{`"fingerprint":{"query":"all"}`, with(":path", "/p?a=1&b=2"), with(":path", "/p?a=1%26b=2"), ``, ``, false},
		{`"fingerprint":{"query":["dry"]}`, with(":path", "/payments?x=1&dry=1&y"), sample, ``, ``, true},
		{`"fingerprint":{"query":["dry"]}`, with(":path", "/payments?dr%79=2"), sample, ``, ``, false},
		{`"fingerprint":{"query":[]}`, with(":path", "/payments?dry=2"), sample, ``, ``, true},
		{`"fingerprint":{"headers":["X-T"]}`, with("x-t", "1"), with("x-t", "2"), ``, ``, false},
		{`"fingerprint":{"headers":["X-T"]}`, with("x-t", ""), sample, ``, ``, false},
		{`"fingerprint":{"headers":["X-T"]}`, with("x-t", "1", "x-u", "2"), with("x-t", "1", "x-u", "3"), ``, ``, true},
	} {
		f := settings(t, c.fields)
		if same := sameRequest(printOf(f, c.a, c.x), printOf(f, c.b, c.y)); same != c.same {
			t.Errorf("%s: %v %q and %v %q are the same: %v", c.fields, c.a, c.x, c.b, c.y, same)
		}
	}
	none := settings(t, `"fingerprint":{"body":"none"}`)
	if headersPrint(none, sample) != headersPrint(none, length) {
		t.Error("body: none in headers mode: the length counts")
	}
}
