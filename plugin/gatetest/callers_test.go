package gatetest

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Callers that the scope does not tell apart.

// Without shared, no caller gets another's answer because both lack the header that the scope names.
func TestCallersThatTheScopeDoesNotTellApartAreRefused(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			headers      []string
			refused      bool
		}{
			{"api key", `{}`, []string{"x-api-key: alice"}, true},
			{"cookie", `{}`, []string{"cookie: session=alice"}, true},
			{"forwarded certificate", `{}`, []string{"x-forwarded-client-cert: Hash=1"}, true},
			{"empty authorization", `{}`, []string{"authorization: ", "x-api-key: alice"}, true},
			{"two empty ones after the credential", `{}`, []string{"x-api-key: alice", "authorization: ", "authorization: "}, true},
			{"the credential twice, one empty", `{}`, []string{"x-api-key: ", "x-api-key: alice"}, true},
			{"another header than the scope's", `{"scope":["path","header:x-api-key"]}`, []string{"cookie: a=1"}, true},
			{"body mode", `{"mode":"body"}`, []string{"cookie: a=1"}, true},
			{"no manager", `{"ledger":"none"}`, []string{"cookie: a=1"}, true},
			{"shared top level, not the rule", `{"shared":true,"match":[{"shared":false}]}`, []string{"cookie: a=1"}, true},
			{"shared", `{"match":[{"shared":true}]}`, []string{"cookie: a=1"}, false},
			{"authorization and cookie", `{}`, []string{"cookie: a=1", "authorization: Bearer a"}, false},
			{"a value after an empty one", `{}`, []string{"authorization: ", "cookie: a=1", "authorization: Bearer a"}, false},
			{"no credential", `{}`, nil, false},
			{"an empty credential", `{}`, []string{"cookie: ", "x-api-key: "}, false},
			{"the scope names it", `{"scope":["path","header:X-Api-Key","header:cookie"]}`, []string{"x-api-key: alice"}, false},
			{"one scope by choice", `{"scope":["host","path"]}`, []string{"cookie: a=1"}, false},
		} {
			r := NewRig(t, guest, Options{Config: c.config, BodyMode: strings.Contains(c.config, "body")})
			x := r.Send(Request{Key: "k", Body: "b", Headers: c.headers})
			if !c.refused {
				x.Answer(201, "answer")
				want(t, c.name, x.Response().Status, "201")
				continue
			}
			want(t, c.name, x.Response().Problem(t), "scope-ambiguous")
			want(t, c.name, x.Response().Status, "400")
			want(t, c.name+": upstream called", x.Upstream.Begun(), false)
			want(t, c.name+": calls", calls(r), "")
			want(t, c.name+": shows the credential", strings.Contains(x.Response().Body, "alice"), false)
			// Without a key nothing is shared.
			y := r.Send(Request{Body: "b", Headers: c.headers})
			y.Answer(201, "unprotected")
			want(t, c.name, y.Response().Body, "unprotected")
		}
	})
}

// Headers that a scope does not name do not change it.
func TestStrangersHeadersDoNotChooseAScope(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`{}`, `{"shared":true}`} {
			r := NewRig(t, guest, Options{Config: config})
			x := r.Send(Request{Key: "k", Headers: []string{"authorization: Bearer alice"}})
			x.Answer(201, "hers")
			x.Response()
			for _, more := range []string{"cookie: a=1", "x-api-key: b", "x-forwarded-client-cert: c", "x-scope: d"} {
				a := r.Send(Request{Key: "k", Headers: []string{more, "authorization: Bearer alice", more}}).Response()
				want(t, config+": a retry with "+more, a.Body+" "+a.Header("idempotent-replayed"), "hers true")
			}
			for _, other := range [][]string{{"authorization: Bearer alice", "authorization: Bearer bob"}, {"authorization: Bearer alice, Bearer bob"}, {"authorization: "}, nil} {
				y := r.Send(Request{Key: "k", Headers: other})
				y.Answer(201, "another")
				want(t, config+": "+strings.Join(other, "|"), y.Response().Body, "another")
			}
		}
	})
}

// The key may come from the body: the refusal waits for it.
func TestKeysInBodiesOfUnknownCallersAreRefused(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"mode":"body","key":{"header":"","json_path":"id"}}`, BodyMode: true})
		q := Request{Body: `{"id":"k"}`, Headers: []string{"x-api-key: alice"}}
		x := r.Send(q)
		want(t, "problem", x.Response().Problem(t), "scope-ambiguous")
		want(t, "upstream called", x.Upstream.Begun(), false)
		q.Body = `{"no":"k"}`
		x = r.Send(q)
		x.Answer(200, "no key")
		want(t, "without a key", x.Response().Body, "no key")
	})
}

func TestStartNamesRoutesWithOneScope(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const line = "the scope is the same for all callers in match[0], match[2]"
		r := NewRig(t, guest, Options{Config: `{"match":[{"path":"/a","scope":["path"]},{"path":"/b","shared":true},{"scope":[]}]}`})
		want(t, "said", strings.Contains(r.log.String(), line), true)
		r = NewRig(t, guest, Options{})
		want(t, "said", strings.Contains(r.log.String(), "the same for all callers"), false)
	})
}
