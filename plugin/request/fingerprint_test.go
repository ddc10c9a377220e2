package request

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/plugin/config"
)

// settings parses a route with fingerprint settings.
func settings(t *testing.T, fields string) *config.Fingerprint {
	t.Helper()
	c, err := config.Parse([]byte(`{"mode":"body",` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return &c.Route("POST", "/").Fingerprint
}

// printOf is the fingerprint of a request with a body of at most 100 bytes that counts.
func printOf(f *config.Fingerprint, h Headers, body string) string {
	d := NewDigester("")
	b := d.NewBody(f, h, 100, config.DeriveNone)
	b.Write([]byte(body))
	d.Canonical(b, []byte(body), f)
	p := d.BodyFingerprint(b)
	return p.String()
}

// Configurations without settings give the fingerprints of earlier releases, which stand in ledgers.
func TestDefaultFingerprintsStay(t *testing.T) {
	digest := with("content-digest", "sha-256=:x:")
	long := strings.Repeat("x", 101)
	for _, fields := range []string{`"ledger":"manager"`, `"fingerprint":{}`, `"fingerprint":{"body":"raw","include":[],"exclude":[],"headers":[]}`} {
		f := settings(t, fields)
		for name, c := range map[string][2]string{
			"headers":     {headersPrint(f, sample), goldenHeaders},
			"body":        {printOf(f, sample, `{"amount":100}`), goldenBody},
			"digest":      {printOf(f, digest, `{"amount":100}`), goldenDigest},
			"long":        {printOf(f, sample, long), goldenLong},
			"odd query":   {printOf(f, with(":path", "/p?b=1&a=2&b#x"), ""), goldenQuery},
			"no type":     {headersPrint(f, with("content-type", "-")), goldenNoType},
			"not escaped": {headersPrint(f, with(":path", "/%70?%61=+")), goldenEscapes},
		} {
			if c[0] != c[1] {
				t.Errorf("%s: %s is %s, want %s", fields, name, c[0], c[1])
			}
		}
	}
}

func headersPrint(f *config.Fingerprint, h Headers) string {
	p := NewDigester("").Fingerprint(f, h)
	return p.String()
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
		if same := printOf(f, c.a, c.x) == printOf(f, c.b, c.y); same != c.same {
			t.Errorf("%s: %v %q and %v %q are the same: %v", c.fields, c.a, c.x, c.b, c.y, same)
		}
	}
	none := settings(t, `"fingerprint":{"body":"none"}`)
	if headersPrint(none, sample) != headersPrint(none, length) {
		t.Error("body: none in headers mode: the length counts")
	}
}

// Fingerprints that the release before the settings made of the requests in TestDefaultFingerprintsStay.
const (
	goldenHeaders = "Ca0fpEQ0-9TZv6npwZQW29xJu8YQAON3gg-mDn_c4cI"
	goldenBody    = "u7L4IeSEt-dyATlFGUU39N_PmKMFynMl3c5etlEUuJg"
	goldenDigest  = "CwNK5yoWfMYMrKh47CIiRtkGsdK-VsTeHgrzJHiXhas"
	goldenLong    = "GtTUVBmSO4o0dLLcJLWE2UvS-qlnX_UClJ8kRfurHBA"
	goldenQuery   = "FwNT4y8NSlYoxJCYcGKIOpOaiBD61bpTJXk_R6tV2xQ"
	goldenNoType  = "65l3qzUP-BKLuSNzNoWo0dkjOoKguhHtzQugyUZZ8Lo"
	goldenEscapes = "yYrEHcQp7X_FamcQzbhFxBccjDDY7HQMQtVwEkmFRAE"
)
