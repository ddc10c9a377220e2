package request

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/plugin/config"
)

var (
	defaultScope = []config.ScopePart{{Kind: config.ScopeHost}, {Kind: config.ScopePath}, {Kind: config.ScopeHeader, Name: "authorization"}}

	byDefault = new(config.Fingerprint)

	sample = Headers{
		{":authority", "API.example.com"}, {":method", "POST"}, {":path", "/payments?dry=1"},
		{"authorization", "Bearer secret"}, {"content-type", "application/json"}, {"content-length", "17"},
	}
)

// with returns a copy of the sample with some headers replaced, or removed when
// the value is "-".
func with(pairs ...string) Headers {
	h := append(Headers{}, sample...)
	for i := 0; i < len(pairs); i += 2 {
		kept := h[:0:0]
		for _, p := range h {
			if p[0] != pairs[i] {
				kept = append(kept, p)
			}
		}
		h = kept
		if pairs[i+1] != "-" {
			h = append(h, [2]string{pairs[i], pairs[i+1]})
		}
	}
	return h
}

// l is a length-prefixed string.
func l(s string) string { return num(len(s)) + s }

func num(n int) string { return string(binary.AppendUvarint(nil, uint64(n))) }

func sha(s string) string { sum := sha256.Sum256([]byte(s)); return string(sum[:]) }

func digitsOf(digest string) string { return fmt.Sprintf("%x", digest) }

func text(digest string) string { return base64.RawURLEncoding.EncodeToString([]byte(digest)) }

// TestDigestInputsAreAsDocumented builds the inputs of the digests a second time, from the package's
// documentation. Gates of different builds share a ledger, so these encodings may
// change only together with the labels.
func TestDigestInputsAreAsDocumented(t *testing.T) {
	d := NewDigester("")
	scopeInput := "og scope 1" +
		"\x00" + l("api.example.com") +
		"\x01" + l("/payments") +
		"\x04" + l("authorization") + num(1) + l("Bearer secret")
	scope := func(d *Digester, parts []config.ScopePart) string {
		s := d.Scope(parts, sample, nil)
		return s.String()
	}
	if got, want := scope(d, defaultScope), text(sha(scopeInput)); got != want {
		t.Errorf("scope %s, want %s", got, want)
	}
	mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
	mac.Write([]byte(scopeInput))
	keyed := NewDigester("0123456789abcdef")
	if got, want := scope(keyed, defaultScope), text(string(mac.Sum(nil))); got != want {
		t.Errorf("keyed scope %s, want %s", got, want)
	}
	all := []config.ScopePart{{Kind: config.ScopePathAndQuery}, {Kind: config.ScopeMethod}, {Kind: config.ScopeHeader, Name: "x-none"}}
	if got, want := scope(d, all), text(sha("og scope 1"+"\x02"+l("/payments?dry=1")+"\x03"+l("POST")+"\x04"+l("x-none")+num(0))); got != want {
		t.Errorf("scope %s, want %s", got, want)
	}

	// Of all parameters, as sent, or none.
	query := settings(t, `"fingerprint":{"query":"all","headers":["x-t"]}`)
	for _, c := range []struct {
		f    *config.Fingerprint
		h    Headers
		tail string
	}{
		{byDefault, sample, l("/payments") + num(1) + l("?dry=1") + num(1) + l("application/json") + num(0)},
		{byDefault, with(":path", "/p#x", "content-digest", "d"), l("/p") + num(1) + l("#x") + num(1) + l("application/json") + num(1) + l("d")},
		{byDefault, with(":path", "/p", "content-type", "-"), l("/p") + num(0) + num(0) + num(0)},
		{query, with("x-t", "1"), l("/payments") + num(1) + l("dry") + l("=1") + num(1) + l("application/json") + num(0) + l("x-t") + num(1) + l("1")},
	} {
		head := "og print 1" + l("POST") + c.tail
		mac.Reset()
		mac.Write([]byte(head))
		for digester, sum := range map[*Digester]string{d: sha(head), keyed: string(mac.Sum(nil))} {
			base, rest := digitsOf(sum[:16]), sum[16:]
			lengthOf := func(n int) string { return digitsOf(sha(rest + "l" + num(n))[:4]) }
			bodyOf := func(text string) string { return digitsOf(sha(rest + text)[:16]) }
			fp := digester.Fingerprint(c.f, c.h, false)
			if got, want := fp.String(), base+"."+lengthOf(17); got != want {
				t.Errorf("fingerprint %s, want %s", got, want)
			}
			whole := bodyPrint(digester, c.f, c.h, 99, `{"amount": 1}`)
			if got, want := whole.String(), base+"."+lengthOf(13)+"."+bodyOf(`b{"amount": 1}w`); got != want {
				t.Errorf("fingerprint with body %s, want %s", got, want)
			}
			long := bodyPrint(digester, c.f, c.h, 4, `{"amount": 1}`)
			if got, want := long.String(), base+"."+lengthOf(17)+"."+bodyOf(`b{"amt`); got != want {
				t.Errorf("fingerprint with a long body %s, want %s", got, want)
			}
		}
	}
	canonical := settings(t, `"fingerprint":{"body":"canonical_json"}`)
	sum := sha("og print 1" + l("POST") + l("/p") + num(0) + num(1) + l("application/json") + num(0))
	asJSON := printOf(canonical, with(":path", "/p", "content-digest", "d"), `{"b": 1, "a": 2.0}`)
	if got, want := asJSON.String(), digitsOf(sum[:16])+".."+digitsOf(sha(sum[16:] + `c{"a":2,"b":1}w`)[:16]); got != want {
		t.Errorf("canonical fingerprint %s, want %s", got, want)
	}
	fp, keyedPrint := d.Fingerprint(byDefault, sample, false), keyed.Fingerprint(byDefault, sample, false)
	some := Scope{1, 2, 3}
	if got, want := d.EntryHash(&some, "key"), sha(string(some[:16]) + "key")[:16]; string(got[:]) != want {
		t.Errorf("entry hash %x, want %x", got, want)
	}
	// Golden values of the results, so that this test cannot drift either.
	for name, c := range map[string][2]string{
		"scope":             {scope(d, defaultScope), "oqLyhL7wy2qTfpbqLvV0JO_IiccovbZhZawjOYYQ1ro"},
		"keyed scope":       {scope(keyed, defaultScope), "8umBsE5CgU2grb7r0NaktdNRmRy87VOWXXouib1Leuw"},
		"fingerprint":       {fp.String(), "bb0ba516743c8a0596b77004c45f2233.fc7ff0de"},
		"keyed fingerprint": {keyedPrint.String(), "0c93ae4f84d8051eecf9d1154eaeb2e5.5585fb63"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %s, want %s", name, c[0], c[1])
		}
	}
}

// TestScopeSeparates: requests that differ in what the scope names have
// different scopes; all others share one.
func TestScopeSeparates(t *testing.T) {
	d, keyed := NewDigester(""), NewDigester("0123456789abcdef")
	base := d.Scope(defaultScope, sample, nil)
	for name, h := range map[string]Headers{
		"same":             with(),
		"host in capitals": with(":authority", "api.EXAMPLE.com"),
		"other query":      with(":path", "/payments?dry=2"),
		"no query":         with(":path", "/payments"),
		"fragment":         with(":path", "/payments#x?y"),
		"other method":     with(":method", "PATCH"),
		"other body":       with("content-length", "99"),
		"HTTP/1 host":      with(":authority", "-", "host", "api.example.com"),
		"port":             with(":authority", "api.example.com:80"),
		"another port":     with(":authority", "API.example.com:8443"),
		"no port":          with(":authority", "api.example.com:"),
		"trailing dot":     with(":authority", "api.example.com."),
		"dot and port":     with(":authority", "Api.Example.Com.:443"),
	} {
		if got := d.Scope(defaultScope, h, nil); got != base {
			t.Errorf("%s: another scope", name)
		}
	}
	if d.Scope(defaultScope, with(":path", "/%c3%aa"), nil) != d.Scope(defaultScope, with(":path", "/%C3%Aa"), nil) {
		t.Error("escapes in lower case give another scope")
	}
	seen := map[Scope]string{base: "sample"}
	for name, h := range map[string]Headers{
		"other host":       with(":authority", "api.example.org"),
		"two dots":         with(":authority", "api.example.com.."),
		"no number":        with(":authority", "api.example.com:http"),
		"other path":       with(":path", "/payments/"),
		"path in capitals": with(":path", "/Payments"),
		"other credential": with("authorization", "Bearer secrets"),
		"no credential":    with("authorization", "-"),
		"empty credential": with("authorization", ""),
		"two credentials":  append(with(), [2]string{"authorization", "Bearer secret"}),
		"one joined":       with("authorization", "Bearer secretBearer secret"),
		"escape":           with(":path", "/payment%73"),
		"another escape":   with(":path", "/payment%7a"),
		"moved boundary":   with(":authority", "api.example.com/pay", ":path", "ments"),
	} {
		got := d.Scope(defaultScope, h, nil)
		if other, dup := seen[got]; dup {
			t.Errorf("%s and %s share a scope", name, other)
		}
		seen[got] = name
	}
	if keyed.Scope(defaultScope, sample, nil) == base || NewDigester("0123456789abcdeg").Scope(defaultScope, sample, nil) == keyed.Scope(defaultScope, sample, nil) {
		t.Error("the secret does not change the scope")
	}
	if d.Scope(nil, sample, nil) == d.Scope(defaultScope[:1], sample, nil) || d.Scope(nil, nil, nil) == (Scope{}) {
		t.Error("an empty scope is not a separate scope")
	}
	for _, scope := range []Scope{base, keyed.Scope(defaultScope, sample, nil)} {
		if strings.Contains(scope.String(), "secret") {
			t.Errorf("%s shows the credential", scope)
		}
	}
}

func TestBareHost(t *testing.T) {
	for host, want := range map[string]string{
		"": "", ":": "", ":80": "", ".": ".", ".:80": ".", "h": "h", "h.": "h", "h:1": "h", "h.:1": "h", "h:1.": "h:1",
		"192.0.2.1:80": "192.0.2.1", "[::1]": "[::1]", "[::1]:443": "[::1]", "::1": "::1", "2001:db8::2:443": "2001:db8::2:443",
		"h:80a": "h:80a", "80": "80",
	} {
		if got := bareHost(host); got != want {
			t.Errorf("%q becomes %q, want %q", host, got, want)
		}
	}
}

// TestFingerprintSeparates: a retry has the same fingerprint, another request
// under the same key another one.
func TestFingerprintSeparates(t *testing.T) {
	d := NewDigester("")
	body := func(limit int, pieces ...string) Fingerprint {
		return bodyPrint(d, byDefault, sample, limit, pieces...)
	}
	print := func(pairs ...string) Fingerprint { return d.Fingerprint(byDefault, with(pairs...), false) }
	base := print()
	for name, h := range map[string]Headers{
		"same":             with(),
		"other order":      append(Headers{{"content-type", "application/json"}}, with("content-type", "-")...),
		"other credential": with("authorization", "Bearer renewed"),
		"other host":       with(":authority", "other"),
		"tracing header":   with("traceparent", "00-1-2-3"),
	} {
		if d.Fingerprint(byDefault, h, false) != base {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	prints := map[string]Fingerprint{
		"sample": base, "method": print(":method", "PATCH"), "query": print(":path", "/payments?dry=2"),
		"moved query": print(":path", "/payments", "content-type", "?dry=1"), "type": print("content-type", "text/plain"),
		"no type": print("content-type", "-"), "empty type": print("content-type", ""), "length": print("content-length", "18"),
		"digest": print("content-digest", "sha-256=:x:"),
	}
	separate := func() {
		t.Helper()
		for name, f := range prints {
			for other, g := range prints {
				if name != other && sameRequest(f, g) {
					t.Errorf("%s and %s are the same request", name, other)
				}
			}
		}
	}
	separate()
	prints = map[string]Fingerprint{
		"body": body(100, "a"), "other body": body(100, "b"), "empty body": body(100), "long body": body(2, "abc"),
		"long body, other length": bodyPrint(d, byDefault, with("content-length", "18"), 2, "abc"),
		"long body, other start":  body(2, "acc"), "whole body of that start": body(2, "ab"),
		"body that ends like a long one": body(100, "abt"),
	}
	separate()

	same := func(name string, a, b Fingerprint) {
		t.Helper()
		if !sameRequest(a, b) {
			t.Errorf("%s: another request", name)
		}
	}
	whole := body(100, "hello world")
	same("pieces", whole, body(100, "hel", "", "lo", " world"))
	same("chunked", whole, bodyPrint(d, byDefault, with("content-length", "-"), 100, "hello world"))
	same("exactly the limit", whole, body(11, "hello world"))
	same("a declared length is known", base, print("content-length", "-"))
	// Of a body beyond the limit only the declared length counts.
	same("beyond the limit", body(5, "hello world"), body(5, "hel", "lo there"))
	same("beyond the limit, chunked", body(5, "hello world"), bodyPrint(d, byDefault, with("content-length", "-"), 5, "hello you"))
}

// bodyPrint is the fingerprint of a request with a body.
func bodyPrint(d *Digester, f *config.Fingerprint, h Headers, limit int, pieces ...string) Fingerprint {
	b := d.NewBody(f, h, limit, config.DeriveNone)
	defer d.Recycle(b)
	for _, p := range pieces {
		b.Write([]byte(p))
	}
	return d.BodyFingerprint(b)
}

// TestBodiesAreRecycled: no byte of a request gets into another one's digests, in
// whatever order bodies come and go. The number of kept bodies is bounded.
func TestBodiesAreRecycled(t *testing.T) {
	d, fresh := NewDigester(""), func() *Digester { return NewDigester("") }
	lengths := []Headers{sample, with("content-length", "-"), with("content-length", "18")}
	for round := range 3 {
		var bodies []*Body
		for i := range 2 * maxSpares {
			limit, derive := 1+i%7, config.Derive(i%3)
			b := d.NewBody(byDefault, lengths[(i+round)%3], limit, derive)
			b.Write([]byte("abc"[:i%4]))
			bodies = append(bodies, b)
		}
		for i, b := range bodies {
			want := fresh().NewBody(byDefault, lengths[(i+round)%3], 1+i%7, config.Derive(i%3))
			want.Write([]byte("abc"[:i%4]))
			if b.Len() != want.Len() || b.hexDigest() != want.hexDigest() || d.BodyFingerprint(b) != fresh().BodyFingerprint(want) {
				t.Fatalf("round %d, body %d differs from one that is new", round, i)
			}
			d.Recycle(b)
		}
		if len(d.spares) != maxSpares {
			t.Fatalf("%d bodies are kept, want %d", len(d.spares), maxSpares)
		}
	}
	d.Recycle(nil)
}

func TestBodyCounts(t *testing.T) {
	b := NewDigester("").NewBody(byDefault, sample, 4, config.DeriveNone)
	for _, step := range []struct {
		piece     string
		n         int64
		truncated bool
	}{{"", 0, false}, {"abc", 3, false}, {"d", 4, false}, {"", 4, false}, {"e", 5, true}, {"fgh", 8, true}} {
		b.Write([]byte(step.piece))
		if b.Len() != step.n || b.Truncated() != step.truncated {
			t.Errorf("after %q: %d, %v; want %+v", step.piece, b.Len(), b.Truncated(), step)
		}
	}
}

// TestEntryHash: each pair of scope and key has its own hash, which never changes.
func TestEntryHash(t *testing.T) {
	d := NewDigester("")
	seen := map[[16]byte]bool{}
	for _, scope := range []Scope{{}, {15: 'a'}, {'a'}} {
		for _, key := range []string{"", "a", "aa", "ab"} {
			h := d.EntryHash(&scope, key)
			if seen[h] {
				t.Errorf("%x %q shares its hash", scope, key)
			}
			seen[h] = true
			if d.EntryHash(&scope, key) != h {
				t.Errorf("%x %q has two hashes", scope, key)
			}
		}
	}
}

// TestBufferForgets: nothing of a credential stays in the reused buffer.
func TestBufferForgets(t *testing.T) {
	d := NewDigester("0123456789abcdef")
	d.Scope(defaultScope, sample, nil)
	if strings.Contains(string(d.buf[:cap(d.buf)]), "secret") {
		t.Error("the credential is still there")
	}
}

func TestDigestAllocates(t *testing.T) {
	d := NewDigester("0123456789abcdef")
	scope := d.Scope(defaultScope, sample, nil)
	if n := testing.AllocsPerRun(100, func() { d.Scope(defaultScope, sample, nil) }); n != 0 {
		t.Errorf("%v allocations per scope, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { d.Fingerprint(byDefault, sample, false) }); n != 0 {
		t.Errorf("%v allocations per fingerprint, want 0", n)
	}
	piece := []byte("body")
	if n := testing.AllocsPerRun(100, func() {
		b := d.NewBody(byDefault, sample, 100, config.DeriveNone)
		b.Write(piece)
		d.BodyFingerprint(b)
		d.Recycle(b)
	}); n != 0 {
		t.Errorf("%v allocations per fingerprint with a body, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { d.EntryHash(&scope, "key") }); n != 0 {
		t.Errorf("%v allocations per entry hash, want 0", n)
	}
	h := keyHeaders("c:1:a1b2c3d4e5f6a7b8")
	if n := testing.AllocsPerRun(100, func() { _, _ = HeaderKey(&fromHeader, h) }); n != 0 {
		t.Errorf("%v allocations per key, want 0", n)
	}
}

// FuzzScope: two requests share a scope only when everything in it is equal.
func FuzzScope(f *testing.F) {
	f.Add("h", "/p", "a", "h", "/p", "a")
	f.Add("h", "/p", "", "h/p", "", "")
	f.Add("h", "/%c3%2%aG%%c3", "a", "h", "/%C3%2%aG%%C3", "a")
	f.Add("h\x00", "/p?", "a", "H\x00", "/p#x", "a")
	d := NewDigester("")
	f.Fuzz(func(t *testing.T, host1, path1, auth1, host2, path2, auth2 string) {
		scope := func(host, path, auth string) Scope {
			return d.Scope(defaultScope, Headers{{":authority", host}, {":path", path}, {"authorization", auth}}, nil)
		}
		escape := regexp.MustCompile("%[0-9a-fA-F]{2}")
		cut := func(s string) string {
			if i := strings.IndexAny(s, "?#"); i >= 0 {
				s = s[:i]
			}
			return escape.ReplaceAllStringFunc(s, strings.ToUpper)
		}
		fold := func(s string) string { return string(asciiLower([]byte(bareHost(s)))) }
		equal := fold(host1) == fold(host2) && cut(path1) == cut(path2) && auth1 == auth2
		if got := scope(host1, path1, auth1) == scope(host2, path2, auth2); got != equal {
			t.Errorf("%q %q %q and %q %q %q share a scope: %v", host1, path1, auth1, host2, path2, auth2, got)
		}
	})
}

func asciiLower(b []byte) []byte {
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 32
		}
	}
	return b
}

func BenchmarkIdentify(b *testing.B) {
	d := NewDigester("0123456789abcdef")
	b.ReportAllocs()
	for b.Loop() {
		scope := d.Scope(defaultScope, sample, nil)
		d.Fingerprint(byDefault, sample, false)
		d.EntryHash(&scope, "8e03978e-40d5-43e8-bc93-6894a57f9324")
	}
}
