package config

import (
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// maxTTLSeconds is the longest time that a route may ask of the ledger: 366 days.
const maxTTLSeconds = 366 * 24 * 3600

// ManagersTTL as a TTL of a Route means that the route has none, so the manager's counts.
const ManagersTTL time.Duration = -1

// The TTLs of routes whose ledger is not the manager, if they are not given.
const (
	committedTTL = 300 * time.Second
	rejectedTTL  = 60 * time.Second
)

// defaultRoute returns the built-in values of the fields that may differ between rules.
func defaultRoute() Route {
	return Route{
		Key:             Key{Header: "idempotency-key"},
		Scope:           []ScopePart{{Kind: ScopeHost, Text: "host"}, {Kind: ScopePath, Text: "path"}, {Kind: ScopeHeader, Name: "authorization", Text: "header:authorization"}},
		Fingerprint:     Fingerprint{Body: bodyInherited},
		PendingTTL:      60 * time.Second,
		CommittedTTL:    ManagersTTL,
		RejectedTTL:     ManagersTTL,
		UnknownTTL:      ManagersTTL,
		WaitForPending:  true,
		PendingWait:     30 * time.Second,
		MaxRequestBody:  512 << 10,
		MaxResponseBody: 512 << 10,
		StreamedTypes:   []string{"text/event-stream", "application/grpc*"},
		Upstream:        Upstream{Timeout: 15 * time.Second},
		Outcomes:        defaultOutcomes(),
		Response:        Response{KeepHeaders: []string{"*"}, DropHeaders: []string{"set-cookie"}},
		ReplayHeader:    api.HeaderReplayed,
		Problems:        Problems{TypeBase: api.TypePrefix, MediaType: api.ContentTypeProblem},
	}
}

// routeFields are the fields that may stand at the top level and in any rule.
func routeFields(r *reader, t *Route) []field {
	return []field{
		{"protocol", func(string, gjson.Result) {}}, // see applyProtocol
		{"ledger", func(path string, v gjson.Result) {
			t.Ledger = Ledger(r.choice(path, v, "manager", "upstream", "none"))
		}},
		{"durability", func(path string, v gjson.Result) {
			t.Durability = api.Durability(r.choice(path, v, "local", "region", "global"))
		}},
		{"mode", func(path string, v gjson.Result) { t.Mode = Mode(r.choice(path, v, "headers", "body")) }},
		{"key", func(path string, v gjson.Result) { readKey(r, path, v, &t.Key) }},
		{"scope", func(path string, v gjson.Result) { t.Scope = readScope(r, path, v) }},
		{"fingerprint", func(path string, v gjson.Result) { t.Fingerprint.read(r, path, v) }},
		{"pending_ttl_seconds", func(path string, v gjson.Result) { t.PendingTTL = r.seconds(path, v, maxTTLSeconds) }},
		{"committed_ttl_seconds", func(path string, v gjson.Result) { t.CommittedTTL = r.seconds(path, v, maxTTLSeconds) }},
		{"rejected_ttl_seconds", func(path string, v gjson.Result) { t.RejectedTTL = r.seconds(path, v, maxTTLSeconds) }},
		{"unknown_ttl_seconds", func(path string, v gjson.Result) { t.UnknownTTL = r.secondsOrNone(path, v, maxTTLSeconds) }},
		{"wait_for_pending", func(path string, v gjson.Result) { t.WaitForPending = r.boolean(path, v) }},
		{"pending_wait_timeout", func(path string, v gjson.Result) { t.PendingWait = r.seconds(path, v, 3600) }},
		{"max_request_body_bytes", func(path string, v gjson.Result) { t.MaxRequestBody = r.integer(path, v, 1, 16<<20) }},
		{"max_response_body_bytes", func(path string, v gjson.Result) { t.MaxResponseBody = r.integer(path, v, 1, 16<<20) }},
		{"failure_mode", func(path string, v gjson.Result) { t.FailureMode = FailureMode(r.choice(path, v, "closed", "open")) }},
		{"client_abort", func(path string, v gjson.Result) {
			t.ClientAbort = AbortCancel + ClientAbort(r.choice(path, v, "cancel", "continue"))
		}},
		{"respond_async", func(path string, v gjson.Result) { t.RespondAsync = r.boolean(path, v) }},
		{"incomplete_upload", func(path string, v gjson.Result) {
			t.FreeIncomplete = r.choice(path, v, "unknown", "release") == 1
		}},
		{"upstream", func(path string, v gjson.Result) { readUpstream(r, path, v, &t.Upstream) }},
		{"unsupported", func(path string, v gjson.Result) {
			t.Unsupported = Unsupported(r.choice(path, v, "refuse", "pass"))
		}},
		{"grpc", func(path string, v gjson.Result) { t.GRPC = GRPC(r.choice(path, v, "none", "unary")) }},
		{"streamed_types", func(path string, v gjson.Result) { t.StreamedTypes = readStreamedTypes(r, path, v) }},
		{"commit", func(path string, v gjson.Result) { t.Commit = CommitMode(r.choice(path, v, "before_reply", "async")) }},
		{"outcomes", func(path string, v gjson.Result) { t.Outcomes.read(r, path, v) }},
		{"forward", func(path string, v gjson.Result) { t.Forward.read(r, path, v) }},
		{"outcome_header", func(path string, v gjson.Result) { t.OutcomeHeader = readHeaderName(r, path, v) }},
		{"response", func(path string, v gjson.Result) { readResponse(r, path, v, &t.Response) }},
		{"replay", func(path string, v gjson.Result) {
			r.object(path, v, []field{{"header", func(path string, v gjson.Result) { t.ReplayHeader = readOwnHeader(r, path, v) }}})
		}},
		{"problems", func(path string, v gjson.Result) { readProblems(r, path, v, &t.Problems) }},
		{"lifetime_path", func(path string, v gjson.Result) { t.LifetimePath = readPlainPath(r, path, v) }},
		{"resumable", func(path string, v gjson.Result) { t.Resumable = r.boolean(path, v) }},
		{"jsonrpc", func(path string, v gjson.Result) { t.JSONRPC = r.boolean(path, v) }},
		{"anonymous", func(path string, v gjson.Result) {
			t.Anonymous = Anonymous(r.choice(path, v, "refuse", "shared"))
		}},
	}
}

func readKey(r *reader, path string, v gjson.Result, k *Key) {
	header := false
	r.object(path, v, []field{
		{"header", func(path string, v gjson.Result) {
			k.Header, header = readHeaderName(r, path, v), true
		}},
		{"json_path", func(path string, v gjson.Result) {
			k.JSONPath = r.text(path, v, `"" or field names and array positions joined by dots, up to 255 bytes of letters, digits, "_", "-" and "\"`, jsonPath)
		}},
		{"derive", func(path string, v gjson.Result) { k.Derive = Derive(r.choice(path, v, "", "md5", "sha256")) }},
		{"required", func(path string, v gjson.Result) { k.Required = r.boolean(path, v) }},
		{"format", func(path string, v gjson.Result) {
			k.Format = Format(r.choice(path, v, "any", "uuid", "structured", "pattern"))
		}},
		{"pattern", func(path string, v gjson.Result) {
			r.text(path, v, keyPatternAllowed, func(s string) (ok bool) {
				k.Pattern, ok = parseKeyPattern(s)
				return ok || s == ""
			})
		}},
		{"sources", func(path string, v gjson.Result) { k.Sources = readSources(r, path, v) }},
	})
	if header && len(k.Sources) > 0 {
		r.fail(join(path, "header"), `given together with sources, which may be inherited; allowed: a source "header:NAME", or this with "sources": []`)
	}
}

// readHeaderName reads a header's name, in lower case; "": none.
func readHeaderName(r *reader, path string, v gjson.Result) string {
	return strings.ToLower(r.text(path, v, `"" or a header name of up to 128 bytes`, func(s string) bool {
		return s == "" || token(s, 128)
	}))
}

func readUpstream(r *reader, path string, v gjson.Result, u *Upstream) {
	r.object(path, v, []field{
		{"cluster", func(path string, v gjson.Result) {
			u.Cluster = r.text(path, v, `"" or 1 to 255 bytes of visible ASCII`, func(s string) bool { return api.Visible(s, 0, 255) })
		}},
		{"timeout_ms", func(path string, v gjson.Result) { u.Timeout = r.millis(path, v, 1, 86400000) }},
	})
}

// jsonPath reports whether s is a plain path. gjson's queries, wildcards and
// modifiers are not allowed, so that a key is in one field and has a bounded cost.
func jsonPath(s string) bool {
	if len(s) > 255 {
		return false
	}
	start := true // of a name
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			start = false
		case c == '.':
			if start {
				return false
			}
			start = true
		case c == '\\' && i+1 < len(s) && s[i+1] > 0x20 && s[i+1] < 0x7f:
			i++
			start = false
		default:
			return false
		}
	}
	return s == "" || !start
}

func readStreamedTypes(r *reader, path string, v gjson.Result) []string {
	var types []string
	r.list(path, v, 0, maxStreamedTypes, "media types", func(path string, v gjson.Result) {
		types = append(types, strings.ToLower(r.text(path, v, `a media type of up to 127 bytes without parameters, such as "text/event-stream"; a "*" at its end stands for any rest`, mediaType)))
	})
	return types
}

// mediaType reports whether s is type/subtype. Its last byte may be an asterisk.
func mediaType(s string) bool {
	kind, sub, ok := strings.Cut(s, "/")
	begin := strings.TrimSuffix(sub, "*")
	return ok && len(s) <= 127 && sub != "" && token(kind, 127) && (begin == "" || token(begin, 127)) && !strings.Contains(kind+begin, "*")
}

// check completes the route and refuses combinations that cannot work. path is the rule's
// path; empty: the top level.
func (t *Route) check(r *reader, path string) {
	t.checkScope(r, path)
	t.Key.checkSources(r, join(path, "key"), t.Mode)
	switch k := &t.Key; {
	case k.Format == FormatPattern && k.Pattern == nil:
		r.fail(join(path, "key.pattern"), `not given; allowed: a pattern when "key.format" is "pattern"`)
	case k.Format != FormatPattern && k.Pattern != nil:
		r.fail(join(path, "key.pattern"), `given; allowed: "" unless "key.format" is "pattern"`)
	case len(k.Sources) > 0:
	case k.Header == "" && k.JSONPath == "" && k.Derive == DeriveNone:
		r.fail(join(path, "key"), `no source; allowed: at least one of header, json_path, derive and sources`)
	case k.JSONPath != "" && t.Mode != ModeBody:
		r.fail(join(path, "key.json_path"), show(`"`+k.JSONPath+`"`)+` needs the body; allowed: "" unless "mode" is "body"`)
	case k.Derive != DeriveNone && t.Mode != ModeBody:
		r.fail(join(path, "key.derive"), `needs the body; allowed: "" unless "mode" is "body"`)
	case k.Derive != DeriveNone && k.Format == FormatStructured:
		r.fail(join(path, "key.derive"), `a derived key is not structured; allowed: "" when "key.format" is "structured"`)
	case k.Derive != DeriveNone && k.Format != FormatAny:
		r.fail(join(path, "key.derive"), `a derived key is a digest; allowed: "" unless "key.format" is "any"`)
	}
	if t.Durability != api.DurabilityLocal && t.Ledger != LedgerManager {
		r.fail(join(path, "durability"), show(`"`+t.Durability.String()+`"`)+` is asked of the manager; allowed: "local" unless "ledger" is "manager"`)
	}
	if t.ClientAbort == abortDefault {
		t.ClientAbort = AbortCancel
		if t.Mode == ModeBody && t.Upstream.Cluster != "" {
			t.ClientAbort = AbortContinue
		}
	}
	if t.ClientAbort == AbortContinue && t.Mode != ModeBody {
		r.fail(join(path, "client_abort"), `"continue" needs the whole body before the decision; allowed: "cancel" unless "mode" is "body"`)
	}
	if t.LifetimePath != "" && t.CommittedTTL < time.Second {
		r.fail(join(path, "lifetime_path"), `has no lifetime to say; allowed: "" unless "committed_ttl_seconds" is given, at least 1`)
	}
	if t.JSONRPC && t.Mode != ModeBody {
		r.fail(join(path, "jsonrpc"), `true needs the body; allowed: false unless "mode" is "body"`)
	}
	t.checkOwnHeaders(r, path)
	t.Forward.check(r, path, t.Key.Header)
	t.Fingerprint.check(r, path, t.Mode)
	if t.GRPC == GRPCUnary {
		switch {
		case t.Mode != ModeBody:
			r.fail(join(path, "grpc"), `"unary" needs the whole message before the decision; allowed: "none" unless "mode" is "body"`)
		case t.Ledger == LedgerUpstream:
			r.fail(join(path, "grpc"), `"unary" needs a ledger that keeps the answer; allowed: "none" when "ledger" is "upstream"`)
		case t.Response.NoBody || !t.Response.Keeps("grpc-status") || !t.Response.Keeps("grpc-message") || !t.Response.Keeps("content-type"):
			r.fail(join(path, "grpc"), `"unary" needs the body, grpc-status, grpc-message and content-type of answers; allowed: "none" when "response" leaves them out`)
		}
	}
	if t.Ledger != LedgerManager {
		if t.CommittedTTL == ManagersTTL {
			t.CommittedTTL = committedTTL
		}
		if t.RejectedTTL == ManagersTTL {
			t.RejectedTTL = rejectedTTL
		}
	}
	switch {
	case t.Resumable && t.UnknownTTL > 0:
		r.fail(join(path, "unknown_ttl_seconds"), `given, but with "resumable" an unknown outcome frees the key; allowed: 0 unless "resumable" is false`)
	case t.Resumable:
		t.UnknownTTL = 0
	case t.UnknownTTL == ManagersTTL:
		t.UnknownTTL = t.CommittedTTL
	}
	t.Outcomes.check(r, join(path, "outcomes"))
}
