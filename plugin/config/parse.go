package config

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
	"github.com/tidwall/gjson"
)

// Bounds of the configuration itself.
const (
	maxConfigBytes = 1 << 20
	maxRules       = 256
	maxMethods     = 32
	maxScopeParts  = 16
	// maxStreamedTypes is small because the gate compares each answer with all of them.
	maxStreamedTypes = 32
)

// Error says what is wrong with a configuration.
type Error struct {
	// Path is the field's full path, such as match[1].key.header; empty: the whole
	// document.
	Path string
	// Reason says what was found and what is allowed.
	Reason string
}

// Error returns "path: reason".
func (e *Error) Error() string {
	if e.Path == "" {
		return "configuration: " + e.Reason
	}
	return e.Path + ": " + e.Reason
}

// Parse reads a configuration. Every field is optional, and an empty input is the
// default configuration. Fields that are unknown, repeated, of the wrong type or out
// of range, and combinations that cannot work, give an *Error.
func Parse(json []byte) (*Config, error) {
	if len(json) > maxConfigBytes {
		return nil, &Error{Reason: strconv.Itoa(len(json)) + " bytes; allowed: up to " + strconv.Itoa(maxConfigBytes)}
	}
	if len(bytes.Trim(json, " \t\r\n")) == 0 {
		json = []byte("{}")
	}
	if !jsonguard.Valid(json) || !utf8.Valid(json) {
		// Envoy hands over the text of a StringValue, but a google.protobuf.Struct in its binary form.
		return nil, &Error{Reason: "not valid JSON; allowed: one JSON object, nested at most " + strconv.Itoa(jsonguard.MaxDepth) +
			" deep, in Envoy as a google.protobuf.StringValue"}
	}
	var r reader
	c := defaults()
	var match gjson.Result
	whole := gjson.ParseBytes(json)
	// base has the top level's fields and its protocol's, own has the top level's only.
	base, own := defaultRule(), defaultRule()
	applyProtocol(&r, "", whole, &base)
	for _, rl := range [...]*rule{&base, &own} {
		r.object("", whole, append(vmFields(&r, c, &match), routeFields(&r, &rl.route)...))
	}
	if r.err == nil {
		c.checkVM(&r)
	}
	if r.err == nil {
		c.readRules(&r, match, base, own)
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

// defaults returns the built-in values of the fields that exist once.
func defaults() *Config {
	return &Config{
		Manager: Manager{
			Shards:    []string{"oncegate_manager"},
			Authority: "oncegate-manager",
			Timeout:   5 * time.Second,
		},
		CommitRetry:      CommitRetry{Initial: 200 * time.Millisecond, Max: 5 * time.Second, MaxQueued: 16384},
		MaxEntries:       100000,
		MaxBytes:         64 << 20,
		MaxWaiters:       1024,
		MaxUpstreamCalls: 1000,
		CleanupInterval:  10 * time.Second,
	}
}

// vmFields are the fields that exist once. match gets the raw rules, which are read later
// because they inherit from fields that may follow them.
func vmFields(r *reader, c *Config, match *gjson.Result) []field {
	return []field{
		{"manager", func(path string, v gjson.Result) { readManager(r, path, v, &c.Manager) }},
		{"commit_retry", func(path string, v gjson.Result) { readCommitRetry(r, path, v, &c.CommitRetry) }},
		{"max_entries", func(path string, v gjson.Result) { c.MaxEntries = r.integer(path, v, 8, 10000000) }},
		{"max_bytes", func(path string, v gjson.Result) { c.MaxBytes = r.integer(path, v, 65536, 1<<31-1) }},
		{"max_waiters", func(path string, v gjson.Result) { c.MaxWaiters = r.integer(path, v, 0, 65536) }},
		{"max_upstream_calls", func(path string, v gjson.Result) { c.MaxUpstreamCalls = r.integer(path, v, 0, 65536) }},
		{"cleanup_interval_seconds", func(path string, v gjson.Result) { c.CleanupInterval = r.seconds(path, v, 86400) }},
		{"scope_secret", func(path string, v gjson.Result) {
			c.ScopeSecret = r.secret(path, v, `"" or `+secretAllowed, func(s string) bool { return s == "" || validSecret(s) })
		}},
		{"scope_secret_env", func(path string, v gjson.Result) { c.ScopeSecretEnv = r.variable(path, v) }},
		{"lookup", func(path string, v gjson.Result) { c.Lookup = readLookup(r, path, v) }},
		{"match", func(_ string, v gjson.Result) { *match = v }},
	}
}

func readManager(r *reader, path string, v gjson.Result, m *Manager) {
	name := func(s string) bool { return api.Visible(s, 1, 255) }
	cluster := false
	r.object(path, v, []field{
		{"cluster", func(path string, v gjson.Result) {
			cluster = true
			m.Shards = []string{r.text(path, v, "a string of 1 to 255 bytes of visible ASCII", name)}
		}},
		{"shards", func(path string, v gjson.Result) { m.Shards, m.Named = readShards(r, path, v), true }},
		{"previous_shards", func(path string, v gjson.Result) { m.Previous = readShards(r, path, v) }},
		{"authority", func(path string, v gjson.Result) {
			m.Authority = r.text(path, v, "a string of 1 to 255 bytes of visible ASCII", name)
		}},
		{"timeout_ms", func(path string, v gjson.Result) { m.Timeout = r.millis(path, v, 1, 600000) }},
		{"auth_token", func(path string, v gjson.Result) {
			m.AuthToken = r.secret(path, v, tokenAllowed, validToken)
		}},
		{"auth_token_env", func(path string, v gjson.Result) { m.AuthTokenEnv = r.variable(path, v) }},
	})
	if cluster && m.Named {
		r.fail(path+".shards", "given together with cluster; allowed: one of the two")
	}
	if m.AuthToken != "" && m.AuthTokenEnv != "" {
		r.fail(path+".auth_token_env", "given together with auth_token; allowed: one of the two")
	}
	if len(m.Previous) > 0 && !m.Named {
		r.fail(path+".previous_shards", "given without shards; allowed: together with shards, the list that replaces it")
	}
}

func readShards(r *reader, path string, v gjson.Result) (shards []string) {
	r.list(path, v, 1, api.MaxShards, "names", func(path string, v gjson.Result) {
		name := r.text(path, v, "a string of 1 to 255 bytes of visible ASCII without a comma", func(s string) bool {
			return api.Visible(s, 1, api.MaxShardBytes) && !strings.Contains(s, ",")
		})
		if slices.Contains(shards, name) {
			r.refuse(path, v, "each name once")
		}
		shards = append(shards, name)
	})
	return shards
}

func readCommitRetry(r *reader, path string, v gjson.Result, c *CommitRetry) {
	r.object(path, v, []field{
		{"initial_ms", func(path string, v gjson.Result) { c.Initial = r.millis(path, v, 10, 60000) }},
		{"max_ms", func(path string, v gjson.Result) { c.Max = r.millis(path, v, 10, 600000) }},
		{"max_queued", func(path string, v gjson.Result) { c.MaxQueued = r.integer(path, v, 0, 65536) }},
	})
}

// checkVM refuses combinations that cannot work.
func (c *Config) checkVM(r *reader) {
	if c.ScopeSecret != "" && c.ScopeSecretEnv != "" {
		r.fail("scope_secret_env", "given together with scope_secret; allowed: one of the two")
	}
	if c.CommitRetry.Max < c.CommitRetry.Initial {
		r.fail("commit_retry.max_ms", millisText(c.CommitRetry.Max)+" is less than initial_ms; allowed: "+
			millisText(c.CommitRetry.Initial)+" to 600000")
	}
}

func millisText(d time.Duration) string { return strconv.Itoa(int(d / time.Millisecond)) }

// readRules reads match. Without match it makes the default rule. A rule with a protocol starts from own, because two
// protocols together would be neither of them. Other rules start from base.
func (c *Config) readRules(r *reader, match gjson.Result, base, own rule) {
	if !match.Exists() {
		c.rules = []rule{base}
		c.rules[0].route.check(r, "")
		c.rules[0].route.checkAsync(r, "", c.Lookup)
		return
	}
	r.list("match", match, 1, maxRules, "rules", func(path string, v gjson.Result) {
		rl := base
		if v.Get("protocol").Exists() {
			rl = own
		}
		rl.route.Index = len(c.rules)
		where := ""
		applyProtocol(r, path, v, &rl)
		r.object(path, v, append(matchFields(r, &rl, &where), routeFields(r, &rl.route)...))
		if r.err == nil {
			rl.route.check(r, path)
			rl.route.checkAsync(r, path, c.Lookup)
		}
		c.rules = append(c.rules, rl)
	})
}
