package config

import "github.com/oncegate/oncegate/manager/api"

// tokenAllowed says which tokens validToken accepts.
const tokenAllowed = "a string of up to 4096 bytes of visible ASCII"

func validToken(s string) bool { return api.Visible(s, 0, 4096) }

// secretAllowed says which secrets validSecret accepts.
const secretAllowed = "a string of 16 to 1024 bytes"

func validSecret(s string) bool { return len(s) >= 16 && len(s) <= 1024 }

// variableName reports whether s may name an environment variable: what POSIX calls a portable name. Few tokens look
// like one, so a token given as a name is refused before any message can show it.
func variableName(s string) bool {
	if s == "" || len(s) > 255 || '0' <= s[0] && s[0] <= '9' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// Token returns the token for the manager: AuthToken, or the value of the variable that AuthTokenEnv names. lookup
// returns a variable's value; false: there is no such variable. An error names the variable and never shows its value.
func (m *Manager) Token(lookup func(name string) (string, bool)) (string, error) {
	if m.AuthTokenEnv == "" {
		return m.AuthToken, nil
	}
	return fromVariable("manager.auth_token_env", m.AuthTokenEnv, tokenAllowed, validToken, lookup)
}

// Secret returns ScopeSecret, or the value of the variable that ScopeSecretEnv names, as Token does.
func (c *Config) Secret(lookup func(name string) (string, bool)) (string, error) {
	if c.ScopeSecretEnv == "" {
		return c.ScopeSecret, nil
	}
	return fromVariable("scope_secret_env", c.ScopeSecretEnv, secretAllowed, validSecret, lookup)
}

func fromVariable(field, name, allowed string, valid func(string) bool, lookup func(string) (string, bool)) (string, error) {
	value, ok := lookup(name)
	fault := ""
	switch {
	case !ok:
		fault = " is not in the VM's environment; allowed: a variable of vm_config.environment_variables" +
			" (where a list restricts the module, it must have environ_get and environ_sizes_get)"
	case value == "":
		fault = " is empty; allowed: " + allowed
	case !valid(value):
		fault = " has a value that is not allowed (not shown); allowed: " + allowed
	default:
		return value, nil
	}
	return "", &Error{Path: field, Reason: name + fault}
}
