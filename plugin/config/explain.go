//go:build !tinygo

package config

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// hidden stands for a secret.
const hidden = "(secret-not-shown)"

// Explain returns the configuration with every field of every rule spelled out, as indented JSON. It is a configuration
// itself, with the same meaning; only secrets are replaced. The error is that of Parse.
func Explain(text []byte) ([]byte, error) {
	c, err := Parse(text)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(c.members()); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// members are the fields of a JSON object, in their order.
type members []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in their order. Those without a value are left out.
func (m members) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for _, f := range m {
		if f.value == nil {
			continue
		}
		var value bytes.Buffer
		encoder := json.NewEncoder(&value)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(f.value); err != nil {
			return nil, err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = api.AppendJSONString(out, f.name)
		out = append(append(out, ':'), value.Bytes()...)
	}
	return append(out, '}'), nil
}

func (c *Config) members() members {
	m := &c.Manager
	manager := members{{"cluster", m.Shards[0]}}
	if m.Named {
		manager = members{{"shards", m.Shards}}
		if len(m.Previous) > 0 {
			manager = append(manager, member{"previous_shards", m.Previous})
		}
	}
	manager = append(manager, member{"authority", m.Authority}, member{"timeout_ms", m.Timeout.Milliseconds()},
		member{"auth_token", secret(m.AuthToken)}, member{"auth_token_env", m.AuthTokenEnv})
	rules := make([]members, len(c.rules))
	for i := range c.rules {
		rules[i] = c.rules[i].members()
	}
	return members{
		{"manager", manager},
		{"commit_retry", members{{"initial_ms", c.CommitRetry.Initial.Milliseconds()}, {"max_ms", c.CommitRetry.Max.Milliseconds()}, {"max_queued", c.CommitRetry.MaxQueued}}},
		{"max_entries", c.MaxEntries},
		{"max_bytes", c.MaxBytes},
		{"max_waiters", c.MaxWaiters},
		{"max_upstream_calls", c.MaxUpstreamCalls},
		{"cleanup_interval_seconds", c.CleanupInterval.Seconds()},
		{"scope_secret", secret(c.ScopeSecret)},
		{"scope_secret_env", c.ScopeSecretEnv},
		{"lookup", members{{"path", c.Lookup}}},
		{"match", rules},
	}
}

func secret(s string) string {
	if s == "" {
		return ""
	}
	return hidden
}

func (r *rule) members() members {
	methods := r.methods
	if len(methods) == 0 {
		methods = []string{"*"}
	}
	where := member{"path_prefix", r.path}
	switch r.kind {
	case matchExact:
		where.name = "path"
	case matchPattern:
		segments := slices.Clone(r.pattern)
		if r.rest {
			segments = append(segments, "**")
		}
		where = member{"path_pattern", "/" + strings.Join(segments, "/")}
	}
	return append(members{{"methods", methods}, where}, r.route.members()...)
}

func (t *Route) members() members {
	key := members{{"required", t.Key.Required}, {"format", choice(t.Key.Format, "any", "uuid", "structured", "pattern")}}
	if t.Key.Pattern != nil {
		key = append(key, member{"pattern", t.Key.Pattern.text})
	}
	if len(t.Key.Sources) > 0 {
		var sources []string
		for _, s := range t.Key.Sources {
			sources = append(sources, optional(s.Text, s.Optional))
		}
		key = append(key, member{"sources", sources})
	} else {
		key = append(key, member{"header", t.Key.Header}, member{"json_path", t.Key.JSONPath}, member{"derive", choice(t.Key.Derive, "", "md5", "sha256")})
	}
	var scope []string
	for _, p := range t.Scope {
		scope = append(scope, optional(p.Text, p.Optional))
	}
	return members{
		{"ledger", choice(t.Ledger, "manager", "upstream", "none")},
		{"durability", t.Durability.String()},
		{"mode", choice(t.Mode, "headers", "body")},
		{"key", key},
		{"scope", scope},
		{"anonymous", choice(t.Anonymous, "refuse", "shared")},
		{"fingerprint", t.Fingerprint.members()},
		{"pending_ttl_seconds", t.PendingTTL.Seconds()},
		{"committed_ttl_seconds", ttl(t.CommittedTTL)},
		{"rejected_ttl_seconds", ttl(t.RejectedTTL)},
		{"unknown_ttl_seconds", ttl(t.UnknownTTL)},
		{"wait_for_pending", t.WaitForPending},
		{"pending_wait_timeout", t.PendingWait.Seconds()},
		{"max_request_body_bytes", t.MaxRequestBody},
		{"max_response_body_bytes", t.MaxResponseBody},
		{"failure_mode", choice(t.FailureMode, "closed", "open")},
		{"client_abort", choice(t.ClientAbort-AbortCancel, "cancel", "continue")},
		{"respond_async", t.RespondAsync},
		{"incomplete_upload", either(t.FreeIncomplete, "release", "unknown")},
		{"upstream", members{{"cluster", t.Upstream.Cluster}, {"timeout_ms", t.Upstream.Timeout.Milliseconds()}}},
		{"unsupported", choice(t.Unsupported, "refuse", "pass")},
		{"grpc", choice(t.GRPC, "none", "unary")},
		{"streamed_types", list(t.StreamedTypes)},
		{"commit", choice(t.Commit, "before_reply", "async")},
		{"outcomes", t.Outcomes.members()},
		{"outcome_header", t.OutcomeHeader},
		{"lifetime_path", t.LifetimePath},
		{"resumable", t.Resumable},
		{"jsonrpc", t.JSONRPC},
		{"forward", members{{"key_header", t.Forward.KeyHeader}, {"attempt_header", t.Forward.AttemptHeader}, {"token_header", t.Forward.TokenHeader}, {"scope_header", t.Forward.ScopeHeader}}},
		{"response", members{
			{"keep_headers", list(t.Response.KeepHeaders)}, {"drop_headers", list(t.Response.DropHeaders)}, {"body", either(t.Response.NoBody, "none", "full")},
			{"echo_key", t.Response.EchoKey}, {"ttl_header", t.Response.TTLHeader},
		}},
		{"replay", members{{"header", t.ReplayHeader}}},
		{"problems", t.Problems.members()},
	}
}

func (f *Fingerprint) members() members {
	paths := func(paths [][]string) any {
		if len(paths) == 0 {
			return nil
		}
		texts := make([]string, len(paths))
		for i, p := range paths {
			escaped := make([]string, len(p))
			for j, name := range p {
				escaped[j] = escape(name)
			}
			texts[i] = strings.Join(escaped, ".")
		}
		return texts
	}
	m := members{
		{"body", choice(f.Body, "auto", "raw", "canonical_json", "form", "none")},
		{"content_type", choice(f.ContentType, "media_type", "exact", "none")},
		{"include", paths(f.Include)},
		{"exclude", paths(f.Exclude)},
	}
	switch f.Query {
	case QueryAll:
		m = append(m, member{"query", "all"})
	case QueryNone:
		m = append(m, member{"query", "none"})
	case QueryNamed:
		m = append(m, member{"query", list(f.QueryNames)})
	}
	return append(m, member{"headers", list(f.Headers)})
}

// escape puts a backslash before the bytes of a name that would have another meaning in a path.
func escape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if c := name[i]; !letter(c) && (c < '0' || c > '9') && c != '_' && c != '-' {
			b.WriteByte('\\')
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

func (o *Outcomes) members() members {
	lists := [OutcomeHold + 1][]string{}
	for i := range lists {
		lists[i] = []string{}
	}
	for _, t := range o.terms {
		lists[t.outcome] = append(lists[t.outcome], t.text())
	}
	for i := range lists {
		slices.Sort(lists[i])
	}
	return members{{"commit", lists[OutcomeCommit]}, {"reject", lists[OutcomeReject]}, {"release", lists[OutcomeRelease]}, {"hold", lists[OutcomeHold]}}
}

func (p *Problems) members() members {
	status, names, kinds := map[string]int{}, map[string]string{}, map[string]string{}
	for _, c := range p.changed {
		if c.status != 0 {
			status[string(c.code)] = c.status
		}
		if c.name != "" {
			names[string(c.code)] = c.name
		}
		if c.kind != "" {
			kinds[string(c.code)] = c.kind
		}
	}
	body := p.Body
	if body == "" {
		body = "{}"
	}
	return members{
		{"type_base", p.TypeBase}, {"docs_url", p.DocsURL}, {"media_type", p.MediaType}, {"body", json.RawMessage(body)},
		{"status", status}, {"codes", names}, {"types", kinds},
	}
}

// choice returns the name of a value, as reader.choice reads it.
func choice[T ~uint8](v T, names ...string) string { return names[v] }

func either(v bool, yes, no string) string {
	if v {
		return yes
	}
	return no
}

func optional(text string, is bool) string {
	if is {
		return text + "?"
	}
	return text
}

// ttl returns the seconds of a TTL; nil: the manager decides.
func ttl(d time.Duration) any {
	if d == ManagersTTL {
		return nil
	}
	return d.Seconds()
}

// list returns a list that is not null in JSON.
func list(s []string) []string { return append([]string{}, s...) }
