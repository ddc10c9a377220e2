package config

import (
	"strings"
	"testing"
)

// TestListsAreBounded: lists are bounded.
func TestListsAreBounded(t *testing.T) {
	rules := strings.TrimSuffix(strings.Repeat(`{},`, maxRules), ",")
	mustParse(t, `{"match": [`+rules+`]}`)
	if _, err := Parse([]byte(`{"match": [` + rules + `,{}]}`)); err == nil || !strings.Contains(err.Error(), "match: more than 256 elements") {
		t.Errorf("257 rules: %v", err)
	}
	if _, err := Parse([]byte(`{"match": [{"methods": [` + strings.Repeat(`"A",`, 32) + `"A"]}]}`)); err == nil || !strings.Contains(err.Error(), "match[0].methods: more than 32 elements") {
		t.Errorf("33 methods: %v", err)
	}
}

const variableAllowed = `"" or a name of up to 255 upper-case letters, digits and _ that does not begin with a digit`

// TestSecretsStaySecret: no secret is ever part of an error, not even one given as a variable's name.
func TestSecretsStaySecret(t *testing.T) {
	for text, want := range map[string]string{
		`{"scope_secret": "hunter2"}`:                 `scope_secret: (value not shown); allowed: "" or a string of 16 to 1024 bytes`,
		`{"scope_secret": ["hunter2"]}`:               `scope_secret: (value not shown); allowed: "" or a string of 16 to 1024 bytes`,
		`{"manager": {"auth_token": "hunter2 x"}}`:    "manager.auth_token: (value not shown); allowed: a string of up to 4096 bytes of visible ASCII",
		`{"manager": {"auth_token": {"hunter2": 1}}}`: "manager.auth_token: (value not shown); allowed: a string of up to 4096 bytes of visible ASCII",
		`{"manager": {"auth_token_env": "hunter2"}}`:  "manager.auth_token_env: (value not shown); allowed: " + variableAllowed,
		`{"manager": {"auth_token_env": "2HUNTER"}}`:  "manager.auth_token_env: (value not shown); allowed: " + variableAllowed,
		`{"manager": {"auth_token_env": ["H"]}}`:      "manager.auth_token_env: (value not shown); allowed: " + variableAllowed,
		`{"manager": [{"auth_token": "hunter2"}]}`:    "manager: [...]; allowed: an object",
		`{"scope": {"auth_token": "hunter2"}}`:        "scope: {...}; allowed: a list of 1 to 16 parts",
	} {
		_, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted", text)
			continue
		}
		if err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// FuzzParse: nothing that a configuration says panics the parser, and what is
// accepted is complete and within its bounds.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "{}", `{"match": [{"path_pattern": "/a/*/**", "methods": ["*"]}]}`,
		`{"key": {"header": "x", "json_path": "a.b"}, "mode": "body", "scope": ["header:x"]}`,
		`{"outcomes": {"commit": ["2xx", "503+retry-after"], "reject": ["3xx", "4xx"], "release": ["5xx"]}}`,
		`{"pending_ttl_seconds": 1e-3, "max_bytes": 65536, "manager": {"timeout_ms": 1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text)
		if err != nil {
			if c != nil || err.Error() == "" || len(err.Error()) > 4000 {
				t.Errorf("%v with %q", c, err)
			}
			return
		}
		if len(c.rules) == 0 || c.MaxEntries < 8 || c.MaxBytes < 65536 || c.CleanupInterval <= 0 || c.Manager.Timeout <= 0 {
			t.Errorf("%+v", c)
		}
		for i := range c.rules {
			r := &c.rules[i].route
			managers := r.Ledger == LedgerManager
			if r.PendingTTL <= 0 || r.CommittedTTL <= 0 && !managers || r.RejectedTTL <= 0 && !managers || r.PendingWait <= 0 || r.MaxRequestBody < 1 || r.MaxResponseBody < 1 {
				t.Errorf("%+v", r)
			}
			for status := 200; status < 600; status++ {
				if r.Outcomes.Classify(status, false) == OutcomeNone || r.Outcomes.Classify(status, true) == OutcomeNone {
					t.Errorf("%d has no outcome in %+v", status, r.Outcomes)
				}
			}
		}
		for _, path := range []string{"", "/", "/a", "/a/b/c", "*", "/a?b", string(text)} {
			c.Route("POST", path)
		}
	})
}

// TestAbortDefault: with an upstream cluster, a request in body mode continues after its client has left.
func TestAbortDefault(t *testing.T) {
	for text, want := range map[string]ClientAbort{
		`{"mode": "body"}`: AbortCancel,
		`{"mode": "body", "upstream": {"cluster": "u"}}`:                                                        AbortContinue,
		`{"mode": "body", "upstream": {"cluster": "u"}, "client_abort": "cancel"}`:                              AbortCancel,
		`{"mode": "body", "client_abort": "continue"}`:                                                          AbortContinue,
		`{"upstream": {"cluster": "u"}}`:                                                                        AbortCancel,
		`{"mode": "body", "upstream": {"cluster": "u"}, "match": [{"mode": "headers"}]}`:                        AbortCancel,
		`{"upstream": {"cluster": "u"}, "match": [{"mode": "body"}]}`:                                           AbortContinue,
		`{"mode": "body", "upstream": {"cluster": "u"}, "match": [{"upstream": {"cluster": ""}}]}`:              AbortCancel,
		`{"mode": "body", "upstream": {"cluster": "u"}, "client_abort": "cancel", "match": [{"mode": "body"}]}`: AbortCancel,
	} {
		c, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		if got := c.Route("POST", "/").ClientAbort; got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}
