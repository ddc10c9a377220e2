package doctor

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestTokenOfTheEnvironment: a dump does not show a token of Envoy's own environment, which is no reason for an alarm. A
// token among the key_values is tried.
func TestTokenOfTheEnvironment(t *testing.T) {
	secured := map[string]http.Handler{firstManager: aManager{ledger: "L1", gate: "gate-token", operator: "operator-token"}}
	from := func(variables map[string]any) func(object) {
		return func(dump object) {
			set("manager", map[string]any{"cluster": "oncegate_manager", "auth_token_env": "GATE_TOKEN"})(dump)
			theGate(dump).filter.at("vm_config")["environment_variables"] = variables
		}
	}
	for name, c := range map[string]struct {
		dump  func(object)
		level Level
		found string
	}{
		"of Envoy's environment": {from(map[string]any{"host_env_keys": []any{"GATE_TOKEN"}}), OK, "the gate takes it from the variable GATE_TOKEN of Envoy's environment"},
		"without the variables":  {from(nil), OK, "so it is not tried"},
		"among the key_values":   {from(map[string]any{"key_values": map[string]any{"GATE_TOKEN": "gate-token"}}), OK, "managers take its calls"},
		"a wrong one there":      {from(map[string]any{"key_values": map[string]any{"GATE_TOKEN": "other"}}), Fail, "does not know it"},
		"an empty one there":     {from(map[string]any{"key_values": map[string]any{"GATE_TOKEN": ""}}), Fail, "has none"},
	} {
		findings := deployment{dump: c.dump, hosts: secured, token: "operator-token"}.look(t)
		if !slices.ContainsFunc(findings, func(f Finding) bool {
			return f.Check == checkToken && f.Level == c.level && strings.Contains(f.Found, c.found)
		}) {
			t.Errorf("%s: no %v %q in %+v", name, c.level, c.found, findings)
		}
		for _, f := range findings {
			if f.Level != OK && c.level == OK {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
