package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

func TestMissingFieldsHaveDefaults(t *testing.T) {
	for _, text := range []string{"", " \r\n\t", "{}", ` { } `} {
		c := mustParse(t, text)
		want := Config{
			Manager:          Manager{Shards: []string{"oncegate_manager"}, Authority: "oncegate-manager", Timeout: 5 * time.Second},
			CommitRetry:      CommitRetry{Initial: 200 * time.Millisecond, Max: 5 * time.Second, MaxQueued: 16384},
			MaxEntries:       100000,
			MaxBytes:         67108864,
			MaxWaiters:       1024,
			MaxUpstreamCalls: 1000,
			CleanupInterval:  10 * time.Second,
		}
		got := *c
		got.rules = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
		r := c.Route("POST", "/anything?x=1")
		if r == nil {
			t.Fatalf("%q: POST does not match", text)
		}
		outcomes := r.Outcomes
		plain := *r
		plain.Outcomes = Outcomes{}
		wantRoute := Route{
			Key:             Key{Header: "idempotency-key"},
			Scope:           []ScopePart{{Kind: ScopeHost, Text: "host"}, {Kind: ScopePath, Text: "path"}, {Kind: ScopeHeader, Name: "authorization", Text: "header:authorization"}},
			PendingTTL:      time.Minute,
			CommittedTTL:    ManagersTTL,
			RejectedTTL:     ManagersTTL,
			UnknownTTL:      ManagersTTL,
			ClientAbort:     AbortCancel,
			WaitForPending:  true,
			PendingWait:     30 * time.Second,
			MaxRequestBody:  524288,
			MaxResponseBody: 524288,
			StreamedTypes:   []string{"text/event-stream", "application/grpc*"},
			Fingerprint:     Fingerprint{},
			Upstream:        Upstream{Timeout: 15 * time.Second},
			Response:        Response{KeepHeaders: []string{"*"}, DropHeaders: []string{"set-cookie"}},
			ReplayHeader:    "idempotent-replayed",
			Problems:        Problems{TypeBase: "urn:oncegate:problem:", MediaType: "application/problem+json"},
		}
		if !reflect.DeepEqual(plain, wantRoute) {
			t.Errorf("%q: %+v, want %+v", text, plain, wantRoute)
		}
		checkOutcomes(t, &outcomes, map[string]Outcome{
			"200": OutcomeCommit, "302": OutcomeCommit, "400": OutcomeReject, "500": OutcomeCommit, "503": OutcomeCommit,
			"408": OutcomeRelease, "425": OutcomeRelease, "429": OutcomeRelease,
			"503 r": OutcomeRelease, "500 r": OutcomeCommit, "200 r": OutcomeCommit,
		})
	}
}

// everyField sets each field to something else than its default, as far as they fit together.
const everyField = `{
		"manager": {"cluster": "c", "authority": "a", "timeout_ms": 7, "auth_token": "t"},
		"commit_retry": {"initial_ms": 11, "max_ms": 12, "max_queued": 13},
		"max_entries": 16.0, "max_bytes": 7e+04, "max_waiters": 3, "max_upstream_calls": 4, "cleanup_interval_seconds": 1.5,
		"scope_secret": "0123456789abcdef", "lookup": {"path": "/lost"},
		"ledger": "upstream", "mode": "body",
		"key": {"header": "X-Key", "json_path": "a.0.b\\.c", "derive": "sha256", "required": true, "format": "any"},
		"scope": ["method", "path_and_query", "header:X-Tenant?", "jwt:payload.sub"],
		"fingerprint": {"body": "canonical_json", "include": ["a", "b.0.c\\.d"], "exclude": ["a.x"], "query": ["q"], "headers": ["X-A", "b"]},
		"pending_ttl_seconds": 1, "committed_ttl_seconds": 2, "rejected_ttl_seconds": 3.0005, "unknown_ttl_seconds": 7,
		"wait_for_pending": false, "pending_wait_timeout": 0.25,
		"max_request_body_bytes": 5, "max_response_body_bytes": 6,
		"failure_mode": "open", "commit": "async", "unsupported": "pass", "client_abort": "continue", "incomplete_upload": "release", "upstream": {"cluster": "u", "timeout_ms": 9}, "streamed_types": ["Application/X-NDJSON", "text/*"],
		"outcomes": {"commit": ["2xx"], "reject": ["3xx", "4xx"], "release": ["5xx"]}, "outcome_header": "X-Outcome", "jsonrpc": true, "lifetime_path": "/v1/config", "resumable": false,
		"response": {"keep_headers": ["X-*", "etag"], "drop_headers": [], "body": "none", "echo_key": true, "ttl_header": "X-TTL"}, "replay": {"header": "X-Replayed"},
		"problems": {"type_base": "https://docs.test/", "docs_url": "http://docs.test/keys", "media_type": "Application/X", "body": {"s": "{status}"}, "status": {"key-required": 401}, "codes": {"*": "c"}, "types": {"key-required": "k"}}, "anonymous": "shared",
		"forward": {"key_header": "X-Key", "attempt_header": "X-Attempt", "token_header": "X-Token", "scope_header": "X-Scope"},
		"match": [{"methods": ["PUT"], "path": "/p"}]
	}`

func TestEveryFieldIsRead(t *testing.T) {
	c := mustParse(t, everyField)
	r := c.Route("PUT", "/p")
	if r == nil {
		t.Fatal("no match")
	}
	rules := c.rules
	c.rules = nil
	if want := (Config{
		Manager:          Manager{[]string{"c"}, false, nil, "a", 7 * time.Millisecond, "t", ""},
		CommitRetry:      CommitRetry{11 * time.Millisecond, 12 * time.Millisecond, 13},
		MaxEntries:       16,
		MaxBytes:         70000,
		MaxWaiters:       3,
		MaxUpstreamCalls: 4,
		CleanupInterval:  1500 * time.Millisecond,
		ScopeSecret:      "0123456789abcdef",
		Lookup:           "/lost",
	}); !reflect.DeepEqual(*c, want) {
		t.Errorf("%+v, want %+v", *c, want)
	}
	outcomes := r.Outcomes
	rules[0].route.Outcomes = Outcomes{}
	if want := (Route{
		Ledger: LedgerUpstream, Mode: ModeBody,
		Key: Key{Header: "x-key", JSONPath: `a.0.b\.c`, Derive: DeriveSHA256, Required: true},
		Scope: []ScopePart{
			{Kind: ScopeMethod, Text: "method"}, {Kind: ScopePathAndQuery, Text: "path_and_query"},
			{Kind: ScopeHeader, Name: "x-tenant", Text: "header:x-tenant", Optional: true},
			{Kind: ScopeProperty, Name: "jwt:payload.sub", Text: "jwt:payload.sub", Property: []string{"metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "payload", "sub"}},
		},
		Fingerprint: Fingerprint{
			Body: BodyCanonicalJSON, Include: [][]string{{"a"}, {"b", "0", "c.d"}}, Exclude: [][]string{{"a", "x"}},
			Query: QueryNamed, QueryNames: []string{"q"}, Headers: []string{"x-a", "b"},
		},
		PendingTTL: time.Second, CommittedTTL: 2 * time.Second, RejectedTTL: 3001 * time.Millisecond, UnknownTTL: 7 * time.Second,
		PendingWait:    250 * time.Millisecond,
		MaxRequestBody: 5, MaxResponseBody: 6,
		StreamedTypes: []string{"application/x-ndjson", "text/*"},
		FailureMode:   FailOpen, Unsupported: UnsupportedPass, Commit: CommitAsync,
		ClientAbort: AbortContinue, FreeIncomplete: true, Upstream: Upstream{"u", 9 * time.Millisecond}, OutcomeHeader: "x-outcome",
		Response:     Response{KeepHeaders: []string{"x-*", "etag"}, NoBody: true, EchoKey: true, TTLHeader: "x-ttl"},
		ReplayHeader: "x-replayed", Problems: Problems{"https://docs.test/", "http://docs.test/keys", "Application/X", `{"s": "{status}"}`, []problemChange{{"key-required", 401, "", "k"}, {"*", 0, "c", ""}}}, JSONRPC: true, LifetimePath: "/v1/config", Anonymous: AnonymousShared,
		Forward: Forward{"x-key", "x-attempt", "x-token", "x-scope"},
	}); !reflect.DeepEqual(*r, want) {
		t.Errorf("%+v, want %+v", *r, want)
	}
	checkOutcomes(t, &outcomes, map[string]Outcome{"204": OutcomeCommit, "301": OutcomeReject, "408": OutcomeReject, "500": OutcomeRelease, "503 r": OutcomeRelease})
}

// Only the manager, as the ledger, has its own TTLs.
func TestTTLs(t *testing.T) {
	for text, want := range map[string][3]time.Duration{
		`{}`:                              {ManagersTTL, ManagersTTL, ManagersTTL},
		`{"committed_ttl_seconds": 9}`:    {9 * time.Second, ManagersTTL, 9 * time.Second},
		`{"unknown_ttl_seconds": 0}`:      {ManagersTTL, ManagersTTL, 0},
		`{"ledger": "none"}`:              {300 * time.Second, 60 * time.Second, 300 * time.Second},
		`{"ledger": "upstream"}`:          {300 * time.Second, 60 * time.Second, 300 * time.Second},
		`{"match": [{"ledger": "none"}]}`: {300 * time.Second, 60 * time.Second, 300 * time.Second},
		`{"ledger": "none", "match": [{"ledger": "manager", "rejected_ttl_seconds": 5}]}`: {ManagersTTL, 5 * time.Second, ManagersTTL},
	} {
		r := mustParse(t, text).Route("POST", "/")
		if got := [3]time.Duration{r.CommittedTTL, r.RejectedTTL, r.UnknownTTL}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// TestDurability: it may differ between rules, and needs a manager.
func TestDurability(t *testing.T) {
	c := mustParse(t, `{"durability": "region", "match": [{"path": "/g", "durability": "global"}, {"path": "/l", "ledger": "none", "durability": "local"}, {"path": "/r"}]}`)
	for path, want := range map[string]api.Durability{"/g": api.DurabilityGlobal, "/l": api.DurabilityLocal, "/r": api.DurabilityRegion} {
		if got := c.Route("POST", path).Durability; got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// TestRulesOverrideTheTopLevel: a rule's field beats the top level's, wherever match stands;
// objects merge by field, lists are replaced, and rules do not see each other.
func TestRulesOverrideTheTopLevel(t *testing.T) {
	c := mustParse(t, `{
		"match": [
			{"path": "/a", "key": {"required": false}, "scope": ["host"], "anonymous": "shared", "pending_ttl_seconds": 5},
			{"path": "/b", "outcomes": {"reject": ["4xx", "500"]}},
			{"path": "/c", "mode": "body", "key": {"header": "", "derive": "md5"}}
		],
		"key": {"header": "x-key", "required": true},
		"scope": ["host", "header:x-caller"],
		"pending_ttl_seconds": 9
	}`)
	a, b, cc := c.Route("POST", "/a"), c.Route("POST", "/b"), c.Route("POST", "/c")
	if a.Index != 0 || b.Index != 1 || cc.Index != 2 {
		t.Errorf("indexes %d, %d, %d", a.Index, b.Index, cc.Index)
	}
	if want := (Key{Header: "x-key"}); !reflect.DeepEqual(a.Key, want) || len(a.Scope) != 1 || a.PendingTTL != 5*time.Second {
		t.Errorf("/a: %+v", a)
	}
	if want := (Key{Header: "x-key", Required: true}); !reflect.DeepEqual(b.Key, want) || len(b.Scope) != 2 || b.PendingTTL != 9*time.Second {
		t.Errorf("/b: %+v", b)
	}
	if want := (Key{Derive: DeriveMD5, Required: true}); !reflect.DeepEqual(cc.Key, want) || cc.Mode != ModeBody {
		t.Errorf("/c: %+v", cc)
	}
	checkOutcomes(t, &a.Outcomes, map[string]Outcome{"500": OutcomeCommit})
	checkOutcomes(t, &b.Outcomes, map[string]Outcome{"500": OutcomeReject, "501": OutcomeCommit, "429": OutcomeRelease})
}

// TestMistakesAreRefused: every mistake is refused with the field's full path, what was
// found and what is allowed.
func TestMistakesAreRefused(t *testing.T) {
	const pathAllowed = `a path of 1 to 2048 bytes of visible ASCII that starts with "/" and has no "?" or "#"`
	const patternAllowed = `segments of plain text, "*" for any one segment, and "**" as the last segment for the rest`
	const streamedAllowed = `a media type of up to 127 bytes without parameters, such as "text/event-stream"; a "*" at its end stands for any rest`
	const methodAllowed = `a method in upper case, or "*" alone for any`
	notJSON := "configuration: not valid JSON; allowed: one JSON object, nested at most 64 deep, in Envoy as a google.protobuf.StringValue"
	for text, want := range map[string]string{
		`{`:      notJSON,
		`{} {}`:  notJSON,
		`{"a":}`: notJSON,
		"\x00":   notJSON,
		"{\"problems\": {\"codes\": {\"*\": \"\xff\"}}}": notJSON,
		`[]`:                               "configuration: []; allowed: an object",
		`null`:                             "configuration: null; allowed: an object",
		`"x"`:                              `configuration: "x"; allowed: an object`,
		`{"nope": 1}`:                      "nope: unknown field; allowed: manager, commit_retry, max_entries, max_bytes, max_waiters, max_upstream_calls, cleanup_interval_seconds, scope_secret, scope_secret_env, lookup, match, protocol, ledger, durability, mode, key, scope, fingerprint, pending_ttl_seconds, committed_ttl_seconds, rejected_ttl_seconds, unknown_ttl_seconds, wait_for_pending, pending_wait_timeout, max_request_body_bytes, max_response_body_bytes, failure_mode, client_abort, respond_async, incomplete_upload, upstream, unsupported, grpc, streamed_types, commit, outcomes, forward, outcome_header, response, replay, problems, lifetime_path, resumable, jsonrpc, anonymous",
		`{"mode": "body", "mode": "body"}`: "mode: given twice; allowed: once",
		`{"key": {"header": "Content-Type"}, "response": {"echo_key": true}}`: `response.echo_key: true, but "content-type" has another meaning in answers; allowed: false with this "key.header"`,
		`{"response": {"echo_key": true, "ttl_header": "idempotency-key"}}`:   `response.ttl_header: "idempotency-key" has another meaning in answers; allowed: another header name`,
		`{"response": {"ttl_header": "Idempotent-Replayed"}}`:                 `response.ttl_header: "idempotent-replayed" has another meaning in answers; allowed: another header name`,
		`{"mode": "heders"}`:                                            `mode: "heders"; allowed: "headers", "body"`,
		`{"mode": null}`:                                                `mode: null; allowed: "headers", "body"`,
		`{"mode": 1}`:                                                   `mode: 1; allowed: "headers", "body"`,
		`{"ledger": "Manager"}`:                                         `ledger: "Manager"; allowed: "manager", "upstream", "none"`,
		`{"unsupported": "open"}`:                                       `unsupported: "open"; allowed: "refuse", "pass"`,
		`{"streamed_types": "text/plain"}`:                              `streamed_types: "text/plain"; allowed: a list of 0 to 32 media types`,
		`{"streamed_types": ["a/b", "a/*", "text"]}`:                    `streamed_types[2]: "text"; allowed: ` + streamedAllowed,
		`{"streamed_types": ["*/*"]}`:                                   `streamed_types[0]: "*/*"; allowed: ` + streamedAllowed,
		`{"streamed_types": ["a/*b"]}`:                                  `streamed_types[0]: "a/*b"; allowed: ` + streamedAllowed,
		`{"streamed_types": ["a/b; c=d"]}`:                              `streamed_types[0]: "a/b; c=d"; allowed: ` + streamedAllowed,
		`{"streamed_types": ["/"]}`:                                     `streamed_types[0]: "/"; allowed: ` + streamedAllowed,
		`{"failure_mode": ""}`:                                          `failure_mode: ""; allowed: "closed", "open"`,
		`{"commit": false}`:                                             `commit: false; allowed: "before_reply", "async"`,
		`{"wait_for_pending": "true"}`:                                  `wait_for_pending: "true"; allowed: true or false`,
		`{"max_entries": 7}`:                                            "max_entries: 7; allowed: an integer from 8 to 10000000",
		`{"max_entries": 8.5}`:                                          "max_entries: 8.5; allowed: an integer from 8 to 10000000",
		`{"max_entries": 1e999}`:                                        "max_entries: 1e999; allowed: an integer from 8 to 10000000",
		`{"max_entries": 99999999999999999999}`:                         "max_entries: 99999999999999999999; allowed: an integer from 8 to 10000000",
		`{"pending_ttl_seconds": 1e999}`:                                "pending_ttl_seconds: 1e999; allowed: a number of seconds from 0.001 to 31622400",
		`{"pending_ttl_seconds": -1}`:                                   "pending_ttl_seconds: -1; allowed: a number of seconds from 0.001 to 31622400",
		`{"manager": []}`:                                               "manager: []; allowed: an object",
		`{"manager": {"cluster": ""}}`:                                  `manager.cluster: ""; allowed: a string of 1 to 255 bytes of visible ASCII`,
		`{"manager": {"authority": "a b"}}`:                             `manager.authority: "a b"; allowed: a string of 1 to 255 bytes of visible ASCII`,
		`{"manager": {"port": 1}}`:                                      "manager.port: unknown field; allowed: cluster, shards, previous_shards, authority, timeout_ms, auth_token, auth_token_env",
		`{"manager": {"auth_token": "a", "auth_token_env": "A"}}`:       "manager.auth_token_env: given together with auth_token; allowed: one of the two",
		`{"scope_secret": "0123456789abcdef", "scope_secret_env": "A"}`: "scope_secret_env: given together with scope_secret; allowed: one of the two",
		`{"manager": {"shards": []}}`:                                   "manager.shards: []; allowed: a list of 1 to 64 names",
		`{"manager": {"shards": ["a", "b", "a"]}}`:                      `manager.shards[2]: "a"; allowed: each name once`,
		`{"manager": {"shards": ["a", ""]}}`:                            `manager.shards[1]: ""; allowed: a string of 1 to 255 bytes of visible ASCII without a comma`,
		`{"manager": {"shards": ["a,b"]}}`:                              `manager.shards[0]: "a,b"; allowed: a string of 1 to 255 bytes of visible ASCII without a comma`,
		`{"manager": {"shards": ["a"], "cluster": "a"}}`:                "manager.shards: given together with cluster; allowed: one of the two",
		`{"manager": {"previous_shards": ["a"]}}`:                       "manager.previous_shards: given without shards; allowed: together with shards, the list that replaces it",
		`{"manager": {"shards": ["a"], "previous_shards": []}}`:         "manager.previous_shards: []; allowed: a list of 1 to 64 names",
		`{"manager": {"shards": ["a"], "previous_shards": ["b", "b"]}}`: `manager.previous_shards[1]: "b"; allowed: each name once`,
		`{"manager": {"cluster": "a", "previous_shards": ["b"]}}`:       "manager.previous_shards: given without shards; allowed: together with shards, the list that replaces it",
		`{"commit_retry": {"initial_ms": 50, "max_ms": 49}}`:            "commit_retry.max_ms: 49 is less than initial_ms; allowed: 50 to 600000",
		`{"key": {"hedaer": "x"}}`:                                      "key.hedaer: unknown field; allowed: header, json_path, derive, required, format, pattern, sources",
		`{"key": {"header": "a b"}}`:                                    `key.header: "a b"; allowed: "" or a header name of up to 128 bytes`,
		`{"key": {"header": ":path"}}`:                                  `key.header: ":path"; allowed: "" or a header name of up to 128 bytes`,
		`{"key": {"header": ""}}`:                                       "key: no source; allowed: at least one of header, json_path, derive and sources",
		`{"key": {"json_path": "id"}}`:                                  `key.json_path: "id" needs the body; allowed: "" unless "mode" is "body"`,
		`{"key": {"derive": "md5"}}`:                                    `key.derive: needs the body; allowed: "" unless "mode" is "body"`,
		`{"client_abort": "continue"}`:                                  `client_abort: "continue" needs the whole body before the decision; allowed: "cancel" unless "mode" is "body"`,
		`{"client_abort": "continue", "mode": "body", "match": [{}, {"mode": "headers"}]}`:                                                           `match[1].client_abort: "continue" needs the whole body before the decision; allowed: "cancel" unless "mode" is "body"`,
		`{"mode": "body", "client_abort": "continue", "respond_async": true}`:                                                                        `respond_async: the client looks up the answer; allowed: false unless "lookup.path" is given`,
		`{"lookup": {"path": "/l"}, "mode": "body", "match": [{"client_abort": "continue"}, {"respond_async": true}]}`:                               `match[1].respond_async: the request runs on when it is answered; allowed: false unless "client_abort" is "continue" and "ledger" is not "upstream"`,
		`{"lookup": {"path": "/l"}, "mode": "body", "ledger": "upstream", "client_abort": "continue", "respond_async": true}`:                        `respond_async: the request runs on when it is answered; allowed: false unless "client_abort" is "continue" and "ledger" is not "upstream"`,
		`{"lookup": {"path": "/l"}, "mode": "body", "client_abort": "continue", "respond_async": true, "key": {"sources": ["header:k", "json:id"]}}`: `respond_async: a look-up has no body; allowed: false when a part of the key is in the body`,
		`{"client_abort": "abort"}`:                                          `client_abort: "abort"; allowed: "cancel", "continue"`,
		`{"upstream": {"cluster": "a b"}}`:                                   `upstream.cluster: "a b"; allowed: "" or 1 to 255 bytes of visible ASCII`,
		`{"upstream": {"timeout": 1}}`:                                       `upstream.timeout: unknown field; allowed: cluster, timeout_ms`,
		`{"key": {"derive": "md4"}}`:                                         `key.derive: "md4"; allowed: "", "md5", "sha256"`,
		`{"mode": "body", "key": {"derive": "md5", "format": "structured"}}`: `key.derive: a derived key is not structured; allowed: "" when "key.format" is "structured"`,
		`{"scope": "host"}`:                                                  `scope: "host"; allowed: a list of 1 to 16 parts`,
		`{"scope": []}`:                                                      `scope: []; allowed: a list of 1 to 16 parts`,
		`{"scope": ["host?"]}`:                                               `scope[0]: "host?"; allowed: ` + scopeAllowed,
		`{"scope": ["certificate:issuer"]}`:                                  `scope[0]: "certificate:issuer"; allowed: ` + scopeAllowed,
		`{"scope": ["filter_state:"]}`:                                       `scope[0]: "filter_state:"; allowed: ` + scopeAllowed,
		`{"scope": ["jwt:a.*"]}`:                                             `scope[0]: "jwt:a.*"; allowed: ` + scopeAllowed,
		`{"scope": ["metadata:a"]}`:                                          `scope[0]: "metadata:a"; allowed: ` + scopeAllowed,
		`{"scope": ["header:a", "header:A?"]}`:                               `scope[1]: "header:A?" is listed twice; allowed: once`,
		`{"scope": ["host", "path"]}`:                                        `scope: has no part that tells callers apart; allowed: one of "header:", "jwt:", "metadata:", "filter_state:" or "certificate:", or "anonymous": "shared"`,
		`{"anonymous": true}`:                                                `anonymous: true; allowed: "refuse", "shared"`,
		`{"scope": ["hsot"]}`:                                                `scope[0]: "hsot"; allowed: ` + scopeAllowed,
		`{"scope": ["host", 1]}`:                                             `scope[1]: 1; allowed: ` + scopeAllowed,
		`{"scope": ["header:"]}`:                                             `scope[0]: "header:"; allowed: ` + scopeAllowed,
		`{"scope": ["header::path"]}`:                                        `scope[0]: "header::path"; allowed: ` + scopeAllowed,
		`{"scope": ["header:A", "header:a"]}`:                                `scope[1]: "header:a" is listed twice; allowed: once`,
		`{"scope": [` + strings.Repeat(`"host",`, 17) + `"host"]}`:           `scope[1]: "host" is listed twice; allowed: once`,
		`{"match": {}}`:                                                      "match: {}; allowed: a list of 1 to 256 rules",
		`{"match": []}`:                                                      "match: []; allowed: a list of 1 to 256 rules",
		`{"match": [1]}`:                                                     "match[0]: 1; allowed: an object",
		`{"match": [{}, {"key": {"hedaer": ""}}]}`:                           "match[1].key.hedaer: unknown field; allowed: header, json_path, derive, required, format, pattern, sources",
		`{"durability": "planet"}`:                                           `durability: "planet"; allowed: "local", "region", "global"`,
		`{"match": [{"ledger": "none", "durability": "global"}]}`:            `match[0].durability: "global" is asked of the manager; allowed: "local" unless "ledger" is "manager"`,
		`{"match": [{"max_entries": 9}]}`:                                    "match[0].max_entries: unknown field; allowed: methods, path, path_prefix, path_pattern, protocol, ledger, durability, mode, key, scope, fingerprint, pending_ttl_seconds, committed_ttl_seconds, rejected_ttl_seconds, unknown_ttl_seconds, wait_for_pending, pending_wait_timeout, max_request_body_bytes, max_response_body_bytes, failure_mode, client_abort, respond_async, incomplete_upload, upstream, unsupported, grpc, streamed_types, commit, outcomes, forward, outcome_header, response, replay, problems, lifetime_path, resumable, jsonrpc, anonymous",
		`{"match": [{}, {"key": {"derive": "md5"}}]}`:                        `match[1].key.derive: needs the body; allowed: "" unless "mode" is "body"`,
		`{"match": [{"path": "/a", "path_prefix": "/b"}]}`:                   "match[0].path_prefix: given together with path; allowed: one of path, path_prefix and path_pattern",
		`{"match": [{"path": "a"}]}`:                                         `match[0].path: "a"; allowed: ` + pathAllowed,
		`{"match": [{"path": "/a?b"}]}`:                                      `match[0].path: "/a?b"; allowed: ` + pathAllowed,
		`{"match": [{"path_prefix": ""}]}`:                                   `match[0].path_prefix: ""; allowed: ` + pathAllowed,
		`{"match": [{"path_pattern": "/a*"}]}`:                               `match[0].path_pattern: "/a*"; allowed: ` + patternAllowed,
		`{"match": [{"path_pattern": "/**/a"}]}`:                             `match[0].path_pattern: "/**/a"; allowed: ` + patternAllowed,
		`{"match": [{"path_pattern": 1}]}`:                                   `match[0].path_pattern: 1; allowed: ` + pathAllowed,
		`{"match": [{"methods": []}]}`:                                       "match[0].methods: []; allowed: a list of 1 to 32 methods",
		`{"match": [{"methods": ["post"]}]}`:                                 `match[0].methods[0]: "post"; allowed: ` + methodAllowed,
		`{"match": [{"methods": ["POST", "*"]}]}`:                            `match[0].methods[1]: "*"; allowed: ` + methodAllowed,
		`{"match": [{"methods": ["*", "POST"]}]}`:                            `match[0].methods[1]: "POST"; allowed: ` + methodAllowed,
		`{"match": [{"methods": ["PO ST"]}]}`:                                `match[0].methods[0]: "PO ST"; allowed: ` + methodAllowed,
		`{"outcomes": {"commit": ["2xx", "2xx"]}}`:                           `outcomes.commit[1]: "2xx" is listed twice; allowed: once, in one list`,
		`{"outcomes": {"commit": ["2xx"], "reject": ["2xx"]}}`:               `outcomes.reject[0]: "2xx" is listed twice; allowed: once, in one list`,
		`{"outcomes": {"commit": ["2xx"]}}`:                                  `outcomes: "3xx" is in no list; allowed: each of "2xx", "3xx", "4xx" and "5xx" in one of commit, reject, release and hold`,
		`{"outcomes": {"release": ["1xx"]}}`:                                 `outcomes.release[0]: "1xx"; allowed: ` + termAllowed,
		`{"outcomes": {"release": ["600"]}}`:                                 `outcomes.release[0]: "600"; allowed: ` + termAllowed,
		`{"outcomes": {"release": [503]}}`:                                   `outcomes.release[0]: 503; allowed: ` + termAllowed,
		`{"outcomes": {"release": ["503+retry"]}}`:                           `outcomes.release[0]: "503+retry"; allowed: ` + termAllowed,
		`{"outcomes": {"release": ["2xX"]}}`:                                 `outcomes.release[0]: "2xX"; allowed: ` + termAllowed,
		`{"outcomes": {"release": ["+retry-after"]}}`:                        `outcomes.release[0]: "+retry-after"; allowed: ` + termAllowed,
		`{"fingerprint": {"body": "json"}}`:                                  `fingerprint.body: "json"; allowed: "auto", "raw", "canonical_json", "form", "none"`,
		`{"fingerprint": {"body": "canonical_json"}}`:                        `fingerprint.body: "canonical_json" needs the body; allowed: "auto", "raw" or "none" unless "mode" is "body"`,
		`{"mode": "body", "fingerprint": {"body": "canonical_json"}, "match": [{}, {"mode": "headers"}]}`: `match[1].fingerprint.body: "canonical_json" needs the body; allowed: "auto", "raw" or "none" unless "mode" is "body"`,
		`{"fingerprint": {"include": ["a"]}}`:                                                               `fingerprint.include: needs the body; allowed: [] unless "mode" is "body"`,
		`{"match": [{"fingerprint": {"exclude": ["a"]}}]}`:                                                  `match[0].fingerprint.exclude: needs the body; allowed: [] unless "mode" is "body"`,
		`{"mode": "body", "fingerprint": {"exclude": ["a"], "body": "raw"}}`:                                `fingerprint.exclude: needs the body as JSON; allowed: [] unless "fingerprint.body" is "canonical_json"`,
		`{"mode": "body", "fingerprint": {"exclude": ["a"]}, "match": [{"fingerprint": {"body": "none"}}]}`: `match[0].fingerprint.exclude: needs the body as JSON; allowed: [] unless "fingerprint.body" is "canonical_json"`,
		`{"fingerprint": {"exclude": ["a", ""]}}`:                                                           `fingerprint.exclude[1]: ""; allowed: field names and array positions joined by dots, 1 to 255 bytes of letters, digits, "_", "-" and "\"`,
		`{"fingerprint": {"exclude": ["a.#.b"]}}`:                                                           `fingerprint.exclude[0]: "a.#.b"; allowed: field names and array positions joined by dots, 1 to 255 bytes of letters, digits, "_", "-" and "\"`,
		`{"fingerprint": {"include": ["a", "a"]}}`:                                                          `fingerprint.include[1]: "a" is listed twice; allowed: once`,
		`{"fingerprint": {"include": "a"}}`:                                                                 `fingerprint.include: "a"; allowed: a list of 0 to 32 paths`,
		`{"fingerprint": {"query": "some"}}`:                                                                `fingerprint.query: "some"; allowed: "all", "none" or a list of names`,
		`{"fingerprint": {"query": [""]}}`:                                                                  `fingerprint.query[0]: ""; allowed: a parameter's name of 1 to 128 bytes`,
		`{"fingerprint": {"headers": ["a", ":path"]}}`:                                                      `fingerprint.headers[1]: ":path"; allowed: a header name of up to 128 bytes`,
		`{"fingerprint": {"headers": ["a", "A"]}}`:                                                          `fingerprint.headers[1]: "A" is listed twice; allowed: once`,
		`{"fingerprint": {"bodies": 1}}`:                                                                    `fingerprint.bodies: unknown field; allowed: body, content_type, include, exclude, query, headers`,
		`{"forward": {"header": "x"}}`:                                                                      "forward.header: unknown field; allowed: key_header, attempt_header, token_header, scope_header",
		`{"forward": {"key_header": ":path"}}`:                                                              `forward.key_header: ":path"; allowed: "" or a header name of up to 128 bytes`,
		`{"forward": {"token_header": "Content-Length"}}`:                                                   `forward.token_header: "content-length" is the proxy's own; allowed: another header name`,
		`{"forward": {"token_header": "Idempotency-Key"}}`:                                                  `forward.token_header: "idempotency-key" is "key.header"; allowed: another header name`,
		`{"match": [{}, {"forward": {"attempt_header": "a", "token_header": "A"}}]}`:                        `match[1].forward.token_header: "a" is also "forward.attempt_header"; allowed: a name for each`,
		`{"key": {"sources": ["header"]}}`:                                                                  `key.sources[0]: "header"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["header:a", "path:64"]}}`:                                                     `key.sources[1]: "path:64"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["path:01"]}}`:                                                                 `key.sources[0]: "path:01"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["query:"]}}`:                                                                  `key.sources[0]: "query:"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["jwt:a.#"]}}`:                                                                 `key.sources[0]: "jwt:a.#"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["metadata:sub"]}}`:                                                            `key.sources[0]: "metadata:sub"; allowed: ` + sourcesAllowed,
		`{"key": {"sources": ["header:a", "header:a?"]}}`:                                                   `key.sources[1]: "header:a?" is listed twice; allowed: once`,
		`{"key": {"sources": ["header:a?"]}}`:                                                               `key.sources: all sources are optional; allowed: at least one without "?", which says whether a request has a key`,
		`{"key": {"sources": "header:a"}}`:                                                                  `key.sources: "header:a"; allowed: a list of 0 to 8 sources`,
		`{"key": {"sources": ["header:a", "json:id"]}}`:                                                     `key.sources[1]: "json:id" needs the body; allowed: other sources unless "mode" is "body"`,
		`{"key": {"sources": ["path:1"]}, "match": [{"key": {"header": "x-key"}}]}`:                         `match[0].key.header: given together with sources, which may be inherited; allowed: a source "header:NAME", or this with "sources": []`,
		`{"mode": "body", "key": {"sources": ["json:id"], "derive": "md5"}}`:                                `key.sources: given together with json_path or derive; allowed: one of them`,
		`{"key": {"format": "guid"}}`:                                                                       `key.format: "guid"; allowed: "any", "uuid", "structured", "pattern"`,
		`{"key": {"format": "pattern"}}`:                                                                    `key.pattern: not given; allowed: a pattern when "key.format" is "pattern"`,
		`{"match": [{"key": {"pattern": "a*"}}]}`:                                                           `match[0].key.pattern: given; allowed: "" unless "key.format" is "pattern"`,
		`{"key": {"format": "pattern", "pattern": "^a+$"}}`:                                                 `key.pattern: "^a+$"; allowed: ` + keyPatternAllowed,
		`{"mode": "body", "key": {"derive": "md5", "format": "uuid"}}`:                                      `key.derive: a derived key is a digest; allowed: "" unless "key.format" is "any"`,
		`{"outcomes": "stripe"}`:                                                                            `outcomes: "stripe"; allowed: an object`,
		`{"match": [{"outcomes": []}]}`:                                                                     `match[0].outcomes: []; allowed: an object`,
		`{"match": [{"outcome_header": "a b"}]}`:                                                            `match[0].outcome_header: "a b"; allowed: "" or a header name of up to 128 bytes`,
		`{"outcome_header": null}`:                                                                          `outcome_header: null; allowed: "" or a header name of up to 128 bytes`,
		`{"outcomes": {"keep": []}}`:                                                                        "outcomes.keep: unknown field; allowed: commit, reject, release, hold",
		`{"mode": "` + strings.Repeat("m", 100) + `"}`:                                                      `mode: "` + strings.Repeat("m", 79) + `...; allowed: "headers", "body"`,
		"{\"mode\": \"\u2028\x7f\"}":                                                                        `mode: "????"; allowed: "headers", "body"`,
		`{"\u0000\n": 1}`:                                                                                   "",
		strings.Repeat("[", 65) + strings.Repeat("]", 65):                                                   notJSON,
		strings.Repeat(`{"manager":`, 90000):                                                                notJSON,
		strings.Repeat(" ", maxConfigBytes+1):                                                               "configuration: 1048577 bytes; allowed: up to 1048576",
		`{"lookup": {"path": "lost?x"}}`:                                                                    `lookup.path: "lost?x"; allowed: "" or a path of 1 to 2048 bytes of visible ASCII that starts with "/" and has no "?" or "#"`,
		`{"response": {"body": "head"}}`:                                                                    `response.body: "head"; allowed: "full", "none"`,
		`{"response": {"keep_headers": "x"}}`:                                                               `response.keep_headers: "x"; allowed: a list of 0 to 64 header names`,
		`{"response": {"keep_headers": ["a*b"]}}`:                                                           `response.keep_headers[0]: "a*b"; allowed: a header name of up to 128 bytes; a "*" at its end stands for any rest`,
		`{"response": {"drop_headers": ["Content-Encoding"]}}`:                                              `response.drop_headers[0]: "Content-Encoding"; allowed: a header name of up to 128 bytes; a "*" at its end stands for any rest; not content-type and content-encoding, without which the body cannot be read`,
		`{"protocol": "rest"}`:                                                                              `protocol: "rest"; allowed: "ietf", "acp", "ucp", "iceberg", "jsonrpc", "stripe-v1", "stripe-v2"`,
		`{"match": [{"protocol": 1}]}`:                                                                      `match[0].protocol: 1; allowed: "ietf", "acp", "ucp", "iceberg", "jsonrpc", "stripe-v1", "stripe-v2"`,
		`{"protocol": "ietf", "protocol": "acp"}`:                                                           `protocol: given twice; allowed: once`,
		`{"protocol": "acp", "mode": "headers"}`:                                                            `fingerprint.body: "canonical_json" needs the body; allowed: "auto", "raw" or "none" unless "mode" is "body"`,
		`{"lifetime_path": "/v1/config"}`:                                                                   `lifetime_path: has no lifetime to say; allowed: "" unless "committed_ttl_seconds" is given, at least 1`,
		`{"jsonrpc": true}`:                                                                                 `jsonrpc: true needs the body; allowed: false unless "mode" is "body"`,
		`{"resumable": true, "unknown_ttl_seconds": 5}`:                                                     `unknown_ttl_seconds: given, but with "resumable" an unknown outcome frees the key; allowed: 0 unless "resumable" is false`,
		`{"problems": {"status": {"key-required": 200}}}`:                                                   `problems.status.key-required: 200; allowed: an integer from 400 to 599`,
		`{"problems": {"codes": {"key-required": ""}}}`:                                                     `problems.codes.key-required: ""; allowed: a string of 1 to 128 bytes`,
		`{"problems": {"media_type": "text/*"}}`:                                                            `problems.media_type: "text/*"; allowed: a media type of up to 127 bytes`,
		`{"problems": {"body": "x"}}`:                                                                       `problems.body: "x"; allowed: an object of up to 4096 bytes without blanks, whose strings may have {code}, {type}, {title}, {detail}, {status} and {id}; {} for RFC 9457`,
		`{"problems": {"body": {"a": "{message}"}}}`:                                                        `problems.body: {message}; allowed: {code}, {type}, {title}, {detail}, {status} and {id}`,
		`{"problems": {"body": {"{status}": "a"}}}`:                                                         `problems.body: {...}; allowed: placeholders in values only, not in members' names`,
		`{"response": {"ttl_header": "date"}}`:                                                              `response.ttl_header: "date"; allowed: a header name of up to 128 bytes that has no other meaning in answers`,
		`{"response": {"echo_key": 1}}`:                                                                     `response.echo_key: 1; allowed: true or false`,
		`{"replay": {"header": ""}}`:                                                                        `replay.header: ""; allowed: a header name of up to 128 bytes that has no other meaning in answers`,
		`{"replay": {"header": "Date"}}`:                                                                    `replay.header: "Date"; allowed: a header name of up to 128 bytes that has no other meaning in answers`,
		`{"problems": {"type_base": "problems/"}}`:                                                          `problems.type_base: "problems/"; allowed: the beginning of a URI, of 1 to 1024 bytes, such as "https://docs.example.com/problems/"`,
		`{"problems": {"type_base": "a:\"b"}}`:                                                              `problems.type_base: "a:\"b"; allowed: the beginning of a URI, of 1 to 1024 bytes, such as "https://docs.example.com/problems/"`,
		`{"problems": {"docs_url": "https://a/>b"}}`:                                                        `problems.docs_url: "https://a/>b"; allowed: "" or an http or https URL of up to 1024 bytes`,
		`{"match": [{"problems": {"docs_url": "ftp://a"}}]}`:                                                `match[0].problems.docs_url: "ftp://a"; allowed: "" or an http or https URL of up to 1024 bytes`,
	} {
		c, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%.100s: accepted as %+v", text, c)
			continue
		}
		var typed *Error
		if !errors.As(err, &typed) {
			t.Errorf("%.100s: %T", text, err)
		}
		got := err.Error()
		if want == "" {
			want = "??: unknown field; allowed: " + got[strings.Index(got, "manager, "):]
		}
		if got != want {
			t.Errorf("%.100s:\n got %s\nwant %s", text, got, want)
		}
	}
}
