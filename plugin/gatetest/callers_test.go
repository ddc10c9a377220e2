package gatetest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// Callers that the scope does not distinguish.

// No caller gets another's answer because both lack what the scope names.
func TestCallersThatTheScopeDoesNotTellApartAreRefused(t *testing.T) {
	const certificate = `{"scope":["path","certificate:uri_san?","jwt:payload.sub?","filter_state:caller?"]}`
	properties := func(name, value string) map[string][]byte { return map[string][]byte{name: []byte(value)} }
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, c := range []struct {
			name, config string
			headers      []string
			properties   map[string][]byte
			lacks        string // "": the request is executed
		}{
			{"nothing", `{}`, nil, nil, "header:authorization"},
			{"another credential", `{}`, []string{"x-api-key: alice", "cookie: a=1", "proxy-authorization: Basic YWxpY2U="}, nil, "header:authorization"},
			{"an empty one", `{}`, []string{"authorization: "}, nil, "header:authorization"},
			{"two empty ones", `{}`, []string{"authorization: ", "authorization: "}, nil, "header:authorization"},
			{"a value after an empty one", `{}`, []string{"authorization: ", "authorization: Bearer alice"}, nil, ""},
			{"authorization and cookie", `{}`, []string{"cookie: a=1", "authorization: Bearer alice"}, nil, ""},
			{"body mode", `{"mode":"body"}`, nil, nil, "header:authorization"},
			{"no manager", `{"ledger":"none"}`, nil, nil, "header:authorization"},
			{"a name with a mistake", `{"scope":["path","header:autorization"]}`, []string{"authorization: Bearer alice"}, nil, "header:autorization"},
			{"the tenant alone", `{"scope":["path","header:authorization","header:x-tenant-id"]}`, []string{"x-tenant-id: a"}, nil, "header:authorization"},
			{"no tenant", `{"scope":["path","header:authorization","header:x-tenant-id"]}`, []string{"authorization: Bearer alice"}, nil, "header:x-tenant-id"},
			{"an optional tenant", `{"scope":["path","header:authorization","header:x-tenant-id?"]}`, []string{"authorization: Bearer alice"}, nil, ""},
			{"only the optional tenant", `{"scope":["path","header:authorization","header:x-tenant-id?"]}`, []string{"x-tenant-id: a"}, nil, "header:authorization"},
			{"one of two", `{"scope":["path","header:X-Api-Key?","header:cookie?"]}`, []string{"x-api-key: alice"}, nil, ""},
			{"none of two", `{"scope":["path","header:X-Api-Key?","header:cookie?"]}`, []string{"x-api-key: "}, nil, "header:x-api-key or header:cookie"},
			{"no property", certificate, nil, nil, "certificate:uri_san or jwt:payload.sub or filter_state:caller"},
			{"an empty property", certificate, nil, properties("connection.uri_san_peer_certificate", ""), "certificate:uri_san or jwt:payload.sub or filter_state:caller"},
			{"a certificate", certificate, nil, properties("connection.uri_san_peer_certificate", "spiffe://alice"), ""},
			{"a claim", certificate, nil, properties("metadata.filter_metadata.envoy.filters.http.jwt_authn.payload.sub", "alice"), ""},
			{"filter state", certificate, nil, properties("filter_state.caller", "alice"), ""},
			{"shared at the top level, not in the rule", `{"anonymous":"shared","match":[{"anonymous":"refuse"}]}`, nil, nil, "header:authorization"},
			{"shared in the rule", `{"anonymous":"refuse","match":[{"anonymous":"shared"}]}`, nil, nil, ""},
			{"one scope by choice", `{"scope":["host","path"],"anonymous":"shared"}`, []string{"cookie: a=1"}, nil, ""},
		} {
			if !strings.Contains(c.config, "anonymous") {
				c.config = strings.Replace(`{"anonymous":"refuse",`+c.config[1:], ",}", "}", 1)
			}
			r := NewRig(t, guest, Options{Config: c.config, BodyMode: strings.Contains(c.config, "body")})
			x := r.Send(Request{Key: "k", Body: "b", Headers: c.headers, Properties: c.properties})
			if c.lacks == "" {
				x.Answer(201, "answer")
				want(t, c.name, x.Response().Status, "201")
				continue
			}
			want(t, c.name, x.Response().Problem(t), "scope-ambiguous")
			want(t, c.name, x.Response().Status, "400")
			want(t, c.name+": says what is missing", strings.Contains(x.Response().Body, "It lacks "+c.lacks+", by which"), true)
			want(t, c.name+": logged", strings.Contains(r.log.String(), "lacks "+c.lacks+";"), true)
			want(t, c.name+": counted", r.Metric("oncegate_gate_requests_scope_ambiguous_total"), int64(1))
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

// What the proxy knows of the caller is part of the scope.
func TestCallersThatTheProxyKnowsHaveTheirOwnKeys(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for part, property := range map[string]string{
			"jwt:payload.sub": "metadata.filter_metadata.envoy.filters.http.jwt_authn.payload.sub", "metadata:my.auth:user": "metadata.filter_metadata.my.auth.user",
			"filter_state:caller": "filter_state.caller", "certificate:uri_san": "connection.uri_san_peer_certificate",
			"certificate:dns_san": "connection.dns_san_peer_certificate", "certificate:subject": "connection.subject_peer_certificate",
			"certificate:sha256": "connection.sha256_peer_certificate_digest",
		} {
			r := NewRig(t, guest, Options{Config: `{"anonymous":"refuse","scope":["host","` + part + `"]}`})
			tokens := 0
			of := func(caller string) Request {
				tokens++
				return Request{Key: "k", Headers: []string{"authorization: Bearer " + strconv.Itoa(tokens)}, Properties: map[string][]byte{property: []byte(caller)}}
			}
			for _, caller := range []string{"alice", "bob"} {
				x := r.Send(of(caller))
				x.Answer(201, "for "+caller)
				want(t, part+": the first request", x.Response().Body, "for "+caller)
			}
			a := r.Send(of("alice")).Response()
			want(t, part+": a retry with another token", a.Body+" "+a.Header("idempotent-replayed"), "for alice true")
		}
	})
}

// Headers that a scope does not name do not change it.
func TestStrangersHeadersDoNotChooseAScope(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`{"anonymous":"refuse"}`, `{"anonymous":"shared"}`} {
			r := NewRig(t, guest, Options{Config: config})
			x := r.Send(Request{Key: "k", Headers: []string{"authorization: Bearer alice"}})
			x.Answer(201, "hers")
			x.Response()
			for _, more := range []string{"cookie: a=1", "x-api-key: b", "x-forwarded-client-cert: c", "x-scope: d"} {
				a := r.Send(Request{Key: "k", Headers: []string{more, "authorization: Bearer alice", more}}).Response()
				want(t, config+": a retry with "+more, a.Body+" "+a.Header("idempotent-replayed"), "hers true")
			}
			others := [][]string{{"authorization: Bearer alice", "authorization: Bearer bob"}, {"authorization: Bearer alice, Bearer bob"}}
			if strings.Contains(config, "shared") {
				others = append(others, []string{"authorization: "}, nil)
			}
			for _, other := range others {
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
		r := NewRig(t, guest, Options{Config: `{"anonymous":"refuse","mode":"body","key":{"header":"","json_path":"id"}}`, BodyMode: true})
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

func TestStartNamesSharedRoutes(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const line = "in match[0], match[2]"
		r := NewRig(t, guest, Options{Config: `{"anonymous":"refuse","match":[{"path":"/a","scope":["path"],"anonymous":"shared"},{"path":"/b"},{"anonymous":"shared"}]}`})
		want(t, "said", strings.Contains(r.log.String(), line), true)
		r = NewRig(t, guest, Options{Config: `{"anonymous":"refuse"}`})
		want(t, "said", strings.Contains(r.log.String(), "share their keys"), false)
	})
}
