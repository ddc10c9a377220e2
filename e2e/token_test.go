package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"

	"github.com/oncegate/oncegate/envoy"
)

const (
	tokenVariable = "ONCEGATE_GATE_TOKEN"
	gateToken     = "gate-token-0123456789"
)

// tokenFromEnv is the gate's fields with the token, and the key for digests, in the environment.
func tokenFromEnv() map[string]any {
	return map[string]any{"manager": map[string]any{"cluster": "oncegate_manager", "auth_token_env": tokenVariable}, "scope_secret_env": tokenVariable}
}

// passOn gives the VM the variable of Envoy's own environment.
func passOn(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
	plugin.GetVmConfig().EnvironmentVariables = &wasmv3.EnvironmentVariables{HostEnvKeys: []string{tokenVariable}}
	return nil
}

// tokenFile is a file of the manager's tokens.
func tokenFile(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The gate takes its token from Envoy's environment, where Envoy's dump does not show it. The doctor does not see it
// either, and is content.
func TestTokenFromTheEnvironment(t *testing.T) {
	const operator = "operator-token-0123456789"
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		target.variable = tokenVariable + "=" + gateToken
		s := &stack{dir: t.TempDir(), target: target, mode: mode, plugin: tokenFromEnv(), bootstrap: edit(passOn), edit: patientStreams}
		s.settings = []string{"--auth-token-file", tokenFile(t, "tokens", gateToken+" gate\n"+operator+" operator\n")}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		p := s.startProxy(t)
		key := newKey()
		first := wantFirst(t, p, pay(key), 201)
		wantReplay(t, p, pay(key), first)
		s.wantExecutions(t, key, 1)

		dump, err := fetch(p.admin + "/config_dump?include_eds")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(dump, []byte(gateToken)) || !bytes.Contains(dump, []byte(tokenVariable)) {
			t.Errorf("the dump has the token, or lacks the variable's name:\n%s", dump)
		}
		if log := p.tail(maxLines); strings.Contains(log, gateToken) {
			t.Errorf("the log has the token:\n%s", log)
		}
		findings, code := examine(t, p, s.managerAddr, "--token-file", tokenFile(t, "operator", operator))
		wantFinding(t, findings, code, finding{"ok", "envoy: the gate's token", "takes it from the variable " + tokenVariable, ""}, "")
	})
}

// Without the variable there is no gate: Envoy does not start, and its log says which variable is missing.
func TestEnvoyDoesNotStartWithoutTheToken(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		for name, c := range map[string]struct {
			variable, want string
			change         editPlugin
		}{
			"missing":     {"", " is not in the VM's environment", passOn},
			"empty":       {tokenVariable + "=", " is empty", passOn},
			"not a token": {tokenVariable + "=" + gateToken + "\n", " has a value that is not allowed (not shown)", passOn},
			"not allowed to look": {tokenVariable + "=" + gateToken, " is not in the VM's environment", func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
				return errors.Join(target.restrict(t, "environ_get")(hcm, plugin), passOn(hcm, plugin))
			}},
		} {
			target.variable = c.variable
			p, err := target.Start(targetConfig{
				dir: t.TempDir(), mode: "body", plugin: tokenFromEnv(), workers: 1, upstream: "127.0.0.1:1", manager: "127.0.0.1:1", bootstrap: edit(c.change),
			})
			if err == nil {
				t.Errorf("%s: Envoy started", name)
				if err := p.stop(); err != nil {
					t.Error(err)
				}
				continue
			}
			p.kill()
			if log := p.tail(maxLines); !strings.Contains(log, "manager.auth_token_env: "+tokenVariable+c.want) || strings.Contains(log, gateToken) {
				t.Errorf("%s: Envoy's log is\n%s", name, log)
			}
		}
	})
}

// A running Envoy takes a gate that needs a variable if the gate comes with another vm_id. With the same vm_id, Envoy 1.36
// keeps the VM that it has, which has no variables, so the gate refuses its configuration. Newer Envoys make another VM.
func TestTokenForARunningEnvoy(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		target.variable = tokenVariable + "=" + gateToken
		fromEnv := func(vm string, edits ...editPlugin) editPlugin {
			return func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
				fields := map[string]any{"mode": "body", "anonymous": "shared"}
				maps.Copy(fields, tokenFromEnv())
				text, err := json.Marshal(fields)
				if err != nil {
					return err
				}
				plugin.GetVmConfig().VmId = vm
				for _, change := range edits {
					if err := change(hcm, plugin); err != nil {
						return err
					}
				}
				return envoy.SetPluginJSON(plugin, text)
			}
		}
		const same = "oncegate-body"
		for _, vm := range []string{same, "another"} {
			l := newLifecycle(t, target, "body")
			p, key := l.proxies[0], newKey()
			first := wantFirst(t, p, pay(key), 201)
			missing := "manager.auth_token_env: " + tokenVariable + " is not in the VM's environment"
			l.refuse(t, missing, fromEnv(vm))
			if vm == same && strings.HasPrefix(target.Version, "1.36.") {
				l.refuse(t, missing, fromEnv(vm, passOn))
			} else if vm != same || target.knowsListInVM(t) { // Envoys between the two were not asked
				l.update(t, fromEnv(vm, passOn))
			}
			wantReplay(t, p, pay(key), first)
			key = newKey()
			first = wantFirst(t, p, pay(key), 201)
			wantReplay(t, p, pay(key), first)
		}
	})
}
