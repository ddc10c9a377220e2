package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/oncegate/oncegate/envoy"
)

// editRoute changes the published route after it was made direct.
func editRoute(change func(*routev3.Route)) func(*bootstrapv3.Bootstrap) error {
	return edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
		change(direct(hcm))
		return nil
	})
}

// TestDoctorJudgesRealEnvoys: each mistake in a configuration is found in an Envoy that runs it, with what to do.
func TestDoctorJudgesRealEnvoys(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		s := &stack{dir: t.TempDir(), target: target, mode: "body"}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		for i, c := range []struct {
			name                   string
			edit                   func(*bootstrapv3.Bootstrap) error
			level, check, text, do string
		}{
			{"direct route", editRoute(func(*routev3.Route) {}), "ok", "envoy: direct routes", "have no rules that direct calls pass by", ""},
			{
				"retry policy after the gate", editRoute(func(r *routev3.Route) { r.GetRoute().RetryPolicy = &routev3.RetryPolicy{RetryOn: "5xx"} }),
				"fail", "envoy: retries", "retry_policy", "remove it: Envoy sends a request more than once after the gate",
			},
			{
				"hash policy", editRoute(func(r *routev3.Route) {
					r.GetRoute().HashPolicy = []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
						Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: "x-tenant"},
					}}}
				}),
				"fail", "envoy: direct routes", `route "upstream" has direct and hash_policy`, `remove "direct" from its metadata, or the rule`,
			},
			{
				"direct route without a name", editRoute(func(r *routev3.Route) { r.Name = "" }),
				"fail", "envoy: direct routes", "no name, so no call goes directly", "give it a name",
			},
			{
				"internal header", func(b *bootstrapv3.Bootstrap) error {
					return errors.Join(editRoute(func(*routev3.Route) {})(b), editCluster(b, "upstream", func(c *clusterv3.Cluster) { c.TypedExtensionProtocolOptions = nil }))
				},
				"fail", "envoy: direct routes", `its cluster "upstream" does not remove x-envoy-internal`, "add the filter oncegate_no_internal",
			},
			{
				"route without the filter", editRoute(func(r *routev3.Route) {
					off, err := anypb.New(&routev3.FilterConfig{Disabled: true})
					if err != nil {
						panic(err)
					}
					r.Metadata, r.TypedPerFilterConfig = nil, map[string]*anypb.Any{"oncegate": off}
				}),
				"warn", "envoy: ways around", "the filter is disabled", "requests pass unprotected there",
			},
			{
				"listener without the filter", func(b *bootstrapv3.Bootstrap) error {
					back := proto.CloneOf(b.GetStaticResources().GetListeners()[0])
					back.Name = "back"
					other := &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: []*listenerv3.Listener{back}}}
					err := edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error { return withoutGate(hcm) })(other)
					b.StaticResources.Listeners = append(b.StaticResources.Listeners, back)
					return err
				},
				"warn", "envoy: ways around", `listener "back" has no gate, and leads to cluster "upstream" as well`, "put the filter into that listener",
			},
			{
				"the flag of a mode that a protocol sets", edit(func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
					plugin.AllowOnHeadersStopIteration = nil
					return envoy.SetPluginJSON(plugin, []byte(`{"match": [{"protocol": "acp"}]}`))
				}),
				"fail", "envoy: flag", "without allow_on_headers_stop_iteration", "set allow_on_headers_stop_iteration",
			},
			{
				"missing flag", edit(func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
					plugin.AllowOnHeadersStopIteration = nil
					return nil
				}),
				"fail", "envoy: flag", "mode body without allow_on_headers_stop_iteration", "set allow_on_headers_stop_iteration: true",
			},
			{
				"fail open", edit(func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
					plugin.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN
					return nil
				}),
				"fail", "envoy: failure policy", "pass unprotected after a fault", "set failure_policy: FAIL_RELOAD",
			},
			{
				"headers that ask for retries", edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
					hcm.HttpFilters = slices.DeleteFunc(hcm.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.GetName() == "no_retries_by_header" })
					return nil
				}),
				"warn", "envoy: retries", "nothing removes x-envoy-retry-on", "put the filter no_retries_by_header",
			},
			{
				"cluster of another name", setField("manager", map[string]any{"cluster": "elsewhere"}),
				"fail", "envoy: managers", `there is no cluster "elsewhere"`, "add it, as in envoy/body-mode.yaml",
			},
			{
				"answers that only the gate records", setField("max_response_body_bytes", 2<<20),
				"warn", "manager: sizes", "the manager less than 1048576 (--max-result-bytes)", "raise --max-result-bytes",
			},
			{
				"no filter", edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error { return withoutGate(hcm) }),
				"fail", "envoy: filter", "no listener has a Wasm filter of Oncegate", "put the filter into the listener",
			},
		} {
			t.Run(c.name, func(t *testing.T) {
				s.bootstrap = c.edit
				s.target.alone = i == 0 // its listeners are static, as in the published files; the others' are from a file of xDS
				p := s.startProxy(t)
				defer func() {
					if err := p.stop(); err != nil {
						t.Error(err)
					}
				}()
				findings, code := examine(t, p, s.managerAddr)
				found := false
				for _, f := range findings {
					found = found || f.Level == c.level && f.Check == c.check && strings.Contains(f.Found, c.text) && strings.Contains(f.Do, c.do)
					if f.Level == "fail" && c.level != "fail" {
						t.Errorf("%+v", f)
					}
				}
				if !found || (code == 1) != (c.level == "fail") {
					t.Errorf("exit code %d, no finding %s %s %q %q among %+v", code, c.level, c.check, c.text, c.do, findings)
				}
			})
		}
	})
}

// finding is a line of `oncegate doctor --json`.
type finding struct{ Level, Check, Found, Do string }

// examine is the doctor's opinion of a proxy and its manager, and its exit code.
func examine(t *testing.T, p *proxy, manager string, more ...string) (findings []finding, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "oncegate"), append([]string{"doctor", "--json", "--sample-seconds", "0.1", "--timeout-seconds", "60",
		"--manager", "http://" + manager, "--envoy", p.admin}, more...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var f finding
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		findings = append(findings, f)
	}
	return findings, cmd.ProcessState.ExitCode()
}
