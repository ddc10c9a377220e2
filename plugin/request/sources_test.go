package request

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// keyOf reads a request's key from sources.
func keyOf(t *testing.T, fields string, h Headers, body string, properties map[string]string) (string, *Error) {
	t.Helper()
	c, err := config.Parse([]byte(`{"mode":"body","key":{` + fields + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	k := &c.Route("POST", "/").Key
	parts, bad := HeaderParts(k, h, func(path ...string) ([]byte, bool) {
		v, ok := properties[strings.Join(path, " ")]
		return []byte(v), ok
	})
	if bad != nil {
		return "", bad
	}
	if bad := BodyParts(k, parts, []byte(body), true); bad != nil {
		return "", bad
	}
	key, bad := JoinParts(k, parts)
	if bad == nil && key.Value != "" && !api.ValidKey(key.Value) {
		t.Errorf("%s: %q is no key", fields, key.Value)
	}
	return key.Value, bad
}

func TestSources(t *testing.T) {
	properties := map[string]string{
		"metadata filter_metadata envoy.filters.http.jwt_authn payload sub": "alice,b",
		"metadata filter_metadata my.ns a":                                  "-",
	}
	h := with(":path", "/v1/payments//7?a=%41+b&b=1&b=2&c=&d&e=+x", "x-key", `"quoted"`, "cookie", "s=1; t=a=b;u=", "x-tenant", "Acme, Inc", "x-empty", "", "x-blank", " a b ", "x-blanks", `"a \"b\" c"`)
	h = append(h, [2]string{"cookie", "v=2"}, [2]string{"twice", "1"}, [2]string{"twice", "2"})
	for _, c := range []struct{ fields, body, key, bad string }{
		{`"sources":["header:X-Key"]`, ``, `quoted`, ``},
		{`"sources":["query:d2"]`, ``, ``, ``},
		{`"sources":["query:a"]`, ``, `A b`, ``},
		{`"sources":["query:e"]`, ``, ``, `query:e: a blank at an end; allowed: blanks between other bytes`},
		{`"sources":["header:x-blank"]`, ``, `a b`, ``},
		{`"sources":["header:x-blanks"]`, ``, `a "b" c`, ``},
		{`"sources":["header:x-tenant"]`, ``, ``, `header:x-tenant: a list; allowed: one key, in quotes if it has a comma`},
		{`"sources":["query:b"]`, ``, ``, `query:b: sent 2 times; allowed: once`},
		{`"sources":["query:c"]`, ``, ``, `query:c: empty; allowed: a value, or none`},
		{`"sources":["query:d"]`, ``, ``, `query:d: empty; allowed: a value, or none`},
		{`"sources":["header:twice"]`, ``, ``, `header:twice: sent 2 times; allowed: once`},
		{`"sources":["header:x-empty"]`, ``, ``, `header:x-empty: empty; allowed: a value, or none`},
		{`"sources":["cookie:t"]`, ``, `a=b`, ``},
		{`"sources":["cookie:v"]`, ``, `2`, ``},
		{`"sources":["cookie:u"]`, ``, ``, `cookie:u: empty; allowed: a value, or none`},
		{`"sources":["path:0"]`, ``, `v1`, ``},
		{`"sources":["path:2"]`, ``, ``, ``},
		{`"sources":["path:3"]`, ``, `7`, ``},
		{`"sources":["path:4"]`, ``, ``, ``},
		{`"sources":["json:a.0"]`, `{"a":[12.0]}`, `12.0`, ``},
		{`"sources":["json:a"]`, `{"a":[12]}`, ``, `json:a: neither a string nor a number`},
		{`"sources":["json:a"]`, `{"a":null}`, ``, ``},
		{`"sources":["json:a"]`, `{"a":"1","\u0061":"1"}`, ``, `json:a: there more than once; allowed: once`},
		{`"sources":["json:a.b"]`, `{"a":{"b":"1"},"a":{}}`, ``, `json:a.b: there more than once; allowed: once`},
		{`"sources":["json:a.b"]`, `{"c":1,"c":2,"a":{"b":"1","c":{"b":2,"b":3}}}`, `1`, ``},
		{`"sources":["json:a.1.b"]`, `{"a":[{"b":1,"b":1},{"b":"2"}]}`, `2`, ``},
		{`"sources":["json:a"]`, `not JSON`, ``, ``},
		{`"sources":["jwt:payload.sub"]`, ``, `alice,b`, ``},
		{`"sources":["jwt:payload.other"]`, ``, ``, ``},
		{`"sources":["metadata:my.ns:a"]`, ``, `-`, ``},
		// Joined.
		{`"sources":["header:x-key","jwt:payload.sub","path:3"]`, ``, `quoted,alice%2Cb,7`, ``},
		{`"sources":["header:x-tenant","query:a","json:n"]`, `{"n":"é%"}`, `Acme%2C%20Inc,A%20b,%C3%A9%25`, ``},
		{`"sources":["header:x-blank","query:e"]`, ``, `a%20b,%20x`, ``},
		{`"sources":["header:x-key","query:no?","metadata:my.ns:a"]`, ``, `quoted,-,%2D`, ``},
		{`"sources":["header:x-key","query:no"]`, ``, ``, `a part of the idempotency key is missing; expected query:no`},
		{`"sources":["header:none","query:b"]`, ``, ``, `query:b: sent 2 times; allowed: once`},
		{`"sources":["header:none","path:0"]`, ``, ``, ``},
		// What a client sends to name its request is a key in any order, what comes with every request does not.
		{`"sources":["path:0","header:none"]`, ``, ``, ``},
		{`"sources":["jwt:payload.sub","header:x-key"]`, ``, `alice%2Cb,quoted`, ``},
		{`"sources":["jwt:payload.other","header:x-key"]`, ``, ``, `a part of the idempotency key is missing; expected jwt:payload.other`},
		{`"sources":["jwt:payload.sub","cookie:s","header:none"]`, ``, ``, ``},
		{`"sources":["header:none","query:d2","query:b2"]`, ``, ``, ``},
		{`"sources":["header:none","json:n"]`, `{"n":1}`, ``, `a part of the idempotency key is missing; expected header:none`},
		{`"sources":["header:none?","cookie:s"]`, ``, `-,1`, ``},
		{`"sources":["header:x-key?","jwt:payload.other"]`, ``, ``, ``},
		{`"sources":["jwt:payload.other","path:0"]`, ``, ``, `a part of the idempotency key is missing; expected jwt:payload.other`},
		{`"format":"uuid","sources":["header:none?","header:x-key"]`, ``, `-,quoted`, ``},
		{`"sources":["json:x","path:0"]`, `{"x":"` + strings.Repeat("x", 260) + `"}`, `sha256:a1bcd82a`, ``},
		// The format is that of the first part.
		{`"format":"uuid","sources":["header:x-key","path:0"]`, ``, ``, `header:x-key: not a UUID; allowed: 32 hex digits in groups of 8-4-4-4-12`},
		{`"format":"uuid","sources":["json:x","path:0"]`, `{"x":"123E4567-e89b-12d3-a456-426614174000"}`, `123e4567-e89b-12d3-a456-426614174000,v1`, ``},
		{`"format":"pattern","pattern":"q*d","sources":["header:x-key"]`, ``, `quoted`, ``},
		{`"format":"pattern","pattern":"x*","sources":["header:x-key"]`, ``, ``, `header:x-key: does not match the pattern of this route's keys`},
		{`"format":"structured","sources":["header:x-key"]`, ``, ``, `header:x-key: not of the form {client_id}:{sequence}:{nonce}, with a decimal sequence and a nonce of 16 hex digits`},
	} {
		key, bad := keyOf(t, c.fields, h, c.body, properties)
		if strings.HasPrefix(c.key, "sha256:") && len(key) == 71 {
			key, c.key = key[:7], "sha256:"
		}
		if key != c.key || (bad == nil) != (c.bad == "") || bad != nil && bad.Detail != c.bad {
			t.Errorf("%s %s: %q, %v; want %q, %q", c.fields, c.body, key, bad, c.key, c.bad)
		}
	}
}

// Different parts never give the same key.
func FuzzJoinedKeys(f *testing.F) {
	f.Add("a", "b", "a,b", "")
	f.Add("-", "", "%2D", "")
	f.Add("a%2C", "b", "a,", "b")
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		k := &config.Key{Sources: []config.Source{{Text: "1"}, {Text: "2", Optional: true}}}
		one := []Part{{a1, true}, {b1, b1 != ""}}
		two := []Part{{a2, true}, {b2, b2 != ""}}
		if a1 == "" || a2 == "" {
			return
		}
		x, bad := JoinParts(k, one)
		y, worse := JoinParts(k, two)
		if bad != nil || worse != nil {
			t.Fatal(bad, worse)
		}
		if (x.Value == y.Value) != (a1 == a2 && b1 == b2) || !api.ValidKey(x.Value) {
			t.Errorf("%q and %q of %q", x.Value, y.Value, []string{a1, b1, a2, b2})
		}
	})
}
