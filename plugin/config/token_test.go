package config

import (
	"strings"
	"testing"
)

func TestTokenOfTheEnvironment(t *testing.T) {
	const field, name = "manager.auth_token_env: ", "ONCEGATE_GATE_TOKEN"
	env := map[string]string{name: "from-env", "EMPTY": "", "LINE": "hunter2\n", "LONG": strings.Repeat("x", 4097), "LONGEST": strings.Repeat("x", 4096)}
	for text, want := range map[string]struct{ token, err string }{
		`{}`: {},
		`{"manager": {"auth_token": "in-clear"}}`:                                  {token: "in-clear"},
		`{"manager": {"auth_token": "in-clear", "auth_token_env": ""}}`:            {token: "in-clear"},
		`{"manager": {"auth_token_env": "ONCEGATE_GATE_TOKEN"}}`:                   {token: "from-env"},
		`{"manager": {"auth_token_env": "ONCEGATE_GATE_TOKEN", "auth_token": ""}}`: {token: "from-env"},
		`{"manager": {"auth_token_env": "LONGEST"}}`:                               {token: env["LONGEST"]},
		`{"manager": {"auth_token_env": "_OTHER_1"}}`: {err: field + "_OTHER_1 is not in the VM's environment; allowed: a variable of " +
			"vm_config.environment_variables (where a list restricts the module, it must have environ_get and environ_sizes_get)"},
		`{"manager": {"auth_token_env": "EMPTY"}}`: {err: field + "EMPTY is empty; allowed: " + tokenAllowed},
		`{"manager": {"auth_token_env": "LINE"}}`:  {err: field + "LINE has a value that is not allowed (not shown); allowed: " + tokenAllowed},
		`{"manager": {"auth_token_env": "LONG"}}`:  {err: field + "LONG has a value that is not allowed (not shown); allowed: " + tokenAllowed},
	} {
		c := mustParse(t, text)
		token, err := c.Manager.Token(func(name string) (string, bool) {
			value, ok := env[name]
			return value, ok
		})
		if got := ""; err != nil {
			if got = err.Error(); got != want.err {
				t.Errorf("%s: error %q, want %q", text, got, want.err)
			}
		} else if want.err != "" {
			t.Errorf("%s: no error, want %q", text, want.err)
		}
		if token != want.token {
			t.Errorf("%s: token %q, want %q", text, token, want.token)
		}
	}
}

func TestVariableNames(t *testing.T) {
	for name, want := range map[string]bool{
		"A": true, "_": true, "A_1": true, strings.Repeat("A", 255): true,
		"": false, "1A": false, "a": false, "A-B": false, "A=B": false, "A B": false, "A\x00": false, "\u00c4": false, strings.Repeat("A", 256): false,
	} {
		if got := variableName(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestSecretOfTheEnvironment(t *testing.T) {
	env := map[string]string{"SECRET": "0123456789abcdef", "SHORT": "0123456789abcde"}
	for text, want := range map[string]struct{ secret, err string }{
		`{}`:                                    {},
		`{"scope_secret": "in-clear-in-clear"}`: {secret: "in-clear-in-clear"},
		`{"scope_secret_env": "SECRET"}`:        {secret: env["SECRET"]},
		`{"scope_secret_env": "SHORT"}`:         {err: "scope_secret_env: SHORT has a value that is not allowed (not shown); allowed: " + secretAllowed},
	} {
		secret, err := mustParse(t, text).Secret(func(name string) (string, bool) {
			value, ok := env[name]
			return value, ok
		})
		if secret != want.secret || (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%s: %q, %v; want %q, %q", text, secret, err, want.secret, want.err)
		}
	}
}
