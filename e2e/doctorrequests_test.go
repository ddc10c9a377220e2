package e2e

import (
	"cmp"
	"errors"
	"os"
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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncegate/oncegate/envoy"
)

// innerName is the name of the published inner listener, and of the cluster that leads to it.
const innerName = "oncegate_routes"

// editInner changes the connection manager of the inner listener.
func editInner(change func(*hcmv3.HttpConnectionManager)) func(*bootstrapv3.Bootstrap) error {
	return func(b *bootstrapv3.Bootstrap) error {
		for _, l := range b.GetStaticResources().GetListeners() {
			if l.GetName() != innerName {
				continue
			}
			config := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig()
			hcm := new(hcmv3.HttpConnectionManager)
			if err := config.UnmarshalTo(hcm); err != nil {
				return err
			}
			change(hcm)
			return config.MarshalFrom(hcm)
		}
		return errors.New("no inner listener")
	}
}

// lastRoute is the route to the upstream.
func lastRoute(hcm *hcmv3.HttpConnectionManager) *routev3.Route {
	routes := hcm.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()
	return routes[len(routes)-1]
}

// withoutInner removes the inner listener.
func withoutInner(b *bootstrapv3.Bootstrap) error {
	b.StaticResources.Listeners = slices.DeleteFunc(b.StaticResources.Listeners, func(l *listenerv3.Listener) bool { return l.GetName() == innerName })
	return nil
}

// both makes two changes.
func both(a, b func(*bootstrapv3.Bootstrap) error) func(*bootstrapv3.Bootstrap) error {
	return func(boot *bootstrapv3.Bootstrap) error { return errors.Join(a(boot), b(boot)) }
}

// asManager gives the gate a token.
func asManager(token string) func(*bootstrapv3.Bootstrap) error {
	return setField("manager", map[string]any{"cluster": "oncegate_manager", "timeout_ms": managerTimeout.Milliseconds(), "auth_token": token})
}

// hurried lets the gate wait briefly for a manager that never answers.
func hurried(b *bootstrapv3.Bootstrap) error {
	return setField("manager", map[string]any{"cluster": "oncegate_manager", "timeout_ms": 500})(b)
}

// patientStreams lets streams last longer than the waits of patient tests.
func patientStreams(hcm *hcmv3.HttpConnectionManager) error {
	hcm.StreamIdleTimeout = durationpb.New(3 * managerTimeout)
	return nil
}

// TestDoctorIsContentWithHeadersMode: no inner listener is missing where the gate makes no upstream calls.
func TestDoctorIsContentWithHeadersMode(t *testing.T) {
	t.Parallel()
	sideBySide(t, modes[1:], func(t *testing.T, target envoyTarget, mode string) {
		s := &stack{dir: t.TempDir(), target: target, mode: mode, edit: patientStreams}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		p := s.startProxy(t)
		findings, code := examine(t, p, s.managerAddr, "--probe", p.url("/payments"))
		wantFinding(t, findings, code, finding{"ok", "probe", "its retry got the recorded answer", ""}, "")
	})
}

// TestDoctorFindsWhyRequestsFail: for each of these mistakes, a real Envoy answers requests with keys wrongly, or would run
// them twice, and the doctor says why.
func TestDoctorFindsWhyRequestsFail(t *testing.T) {
	const gateToken, workerToken, operatorToken = "gate-token-0123456789", "worker-token-0123456789", "operator-token-0123456789"
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		s := &stack{dir: t.TempDir(), target: target, mode: "body", edit: patientStreams}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startPayments(t)
		file := func(name, text string) string {
			name = filepath.Join(s.dir, name)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		launch := func(name string, more ...string) (address string) {
			var p *process
			args := append([]string{"serve", "--data-dir", filepath.Join(s.dir, name)}, more...)
			if err := s.launch(&p, "oncegate", "api", &address, append(args, "--listen")...); err != nil {
				t.Fatal(err)
			}
			return address
		}
		plain, other := s.managerAddr, launch("other")
		one, two := launch("one"), launch("two") // which begin quarantines when a gate meets both
		secured := launch("secured", "--auth-token-file", file("tokens", gateToken+" gate\n"+workerToken+" worker\n"+operatorToken+" operator\n"))
		asOperator := []string{"--token-file", file("operator", operatorToken)}
		for _, c := range []struct {
			name    string
			manager string   // of the doctor; "": the one that asks for no token
			cluster string   // where the gate's cluster leads; "": to that manager
			args    []string // of the doctor
			edit    func(*bootstrapv3.Bootstrap) error
			status  int    // what a request with a key gets; 0: none is sent
			probe   string // what the doctor says of its own request; "": none is sent
			// What the doctor finds, and another check that is not content either.
			level, check, text, do, also string
		}{
			{name: "published", status: 201, probe: "its retry got the recorded answer", level: "ok", check: "envoy: inner listener", text: "it has the routes"},
			{
				name: "no inner listener", edit: withoutInner, status: 503, probe: "Envoy answered 503 (not-sent)",
				level: "fail", check: "envoy: inner listener", text: `leads to the internal listener "oncegate_routes", which this Envoy does not have`, do: "add the inner listener",
			},
			{
				name: "inner listener without the route", status: 404,
				edit: editInner(func(hcm *hcmv3.HttpConnectionManager) {
					host := hcm.GetRouteConfig().GetVirtualHosts()[0]
					host.Routes = host.Routes[:len(host.Routes)-1]
				}),
				level: "fail", check: "envoy: inner listener", text: `has no route to cluster "upstream"`, do: "the same routes",
			},
			{
				name: "inner listener without its filter", status: 201,
				edit: editInner(func(hcm *hcmv3.HttpConnectionManager) {
					hcm.HttpFilters = slices.DeleteFunc(hcm.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.GetName() == "oncegate_answer" })
				}),
				level: "fail", check: "envoy: inner listener", text: "does not say in oncegate-answer", do: "add the filter oncegate_answer",
			},
			{
				name: "misspelt upstream.cluster", edit: setField("upstream", map[string]any{"cluster": "oncegate_routs"}), status: 201,
				level: "fail", check: "envoy: inner listener", text: `upstream.cluster "oncegate_routs" is no cluster`, do: "correct the name",
			},
			{
				name: "wrong token", manager: secured, args: asOperator, edit: asManager("other-token-0123456789"), status: 503,
				level: "fail", check: "envoy: the gate's token", text: "does not know it: requests with a key get 503", do: "set manager.auth_token", also: "envoy: answers of managers",
			},
			{
				name: "no token", manager: secured, args: asOperator, status: 503,
				level: "fail", check: "envoy: the gate's token", text: "has none", do: "set manager.auth_token", also: "envoy: counters",
			},
			{
				name: "token of a worker", manager: secured, args: asOperator, edit: asManager(workerToken), status: 503,
				level: "fail", check: "envoy: the gate's token", text: "does not let it make the calls of a gate", do: `the word "gate"`, also: "envoy: answers of managers",
			},
			{
				name: "wrong token with failure mode open", manager: secured, args: asOperator, status: 201,
				edit:  both(asManager("other-token-0123456789"), setField("failure_mode", "open")),
				level: "fail", check: "envoy: the gate's token", text: "requests with a key pass unprotected", also: "envoy: counters",
			},
			{
				name: "right token", manager: secured, args: asOperator, edit: asManager(gateToken), status: 201,
				level: "ok", check: "envoy: the gate's token", text: "managers take its calls",
			},
			{
				name: "another service at the managers' address", cluster: s.paymentsAddr, edit: hurried, status: 503,
				level: "fail", check: "envoy: ledgers", text: "answers, and it is no manager", do: "correct the endpoints", also: "envoy: answers of managers",
			},
			{
				name: "missing capability", edit: both(hurried, edit(target.restrict(t, "proxy_grpc_stream"))), status: 503,
				level: "fail", check: "envoy: capabilities", text: "lacks proxy_grpc_stream", do: "use the list of envoy/capabilities.yaml", also: "envoy: counters",
			},
			{
				name: "managers without HTTP/2", status: 503,
				edit: both(hurried, func(b *bootstrapv3.Bootstrap) error {
					return editCluster(b, "oncegate_manager", func(c *clusterv3.Cluster) { c.TypedExtensionProtocolOptions = nil })
				}),
				level: "fail", check: "envoy: HTTP/2", text: `cluster "oncegate_manager" has no HTTP/2`, do: "set explicit_http_config.http2_protocol_options", also: "envoy: counters",
			},
			{
				name: "manager that is another shard", manager: launch("b", "--shard", "b"), status: 503,
				edit:  setField("manager", map[string]any{"shards": []string{"oncegate_manager"}, "timeout_ms": managerTimeout.Milliseconds()}),
				level: "fail", check: "envoy: counters", text: "a manager refuses calls that mean another shard", do: "correct manager.shards", also: "manager: shard",
			},
			{
				name: "region of a single manager", edit: setField("durability", "region"), status: 503,
				level: "fail", check: "manager: durability", text: `asks for durability "region", and this manager can give local`, do: "--store etcd", also: "envoy: counters",
			},
			{
				name: "two ledgers in one cluster", manager: one, edit: alsoManager(two), status: 201,
				level: "fail", check: "envoy: ledgers", text: `cluster "oncegate_manager" leads to 2 ledgers`, do: "a cluster of its own",
			},
			{
				name: "another manager than the gate's", cluster: other, status: 201,
				level: "warn", check: "manager: ledger", text: "the gates' clusters lead to other ledgers", do: "correct --manager",
			},
			{
				name: "gate that waits for less than the route", edit: setField("upstream", map[string]any{"cluster": innerName, "timeout_ms": 5000}), status: 201,
				level: "warn", check: "envoy: upstream time-outs", text: "the gate ends its call after upstream.timeout_ms (5s)", do: "make upstream.timeout_ms longer",
			},
			{
				name: "route without a timeout", edit: editInner(func(hcm *hcmv3.HttpConnectionManager) { lastRoute(hcm).GetRoute().Timeout = nil }), status: 201,
				level: "warn", check: "envoy: upstream time-outs", text: "has no timeout, so Envoy's 15s count", do: "set the route's timeout",
			},
			{
				name: "route without an end", edit: editInner(func(hcm *hcmv3.HttpConnectionManager) { lastRoute(hcm).GetRoute().Timeout = durationpb.New(0) }), status: 201,
				level: "warn", check: "envoy: upstream time-outs", text: "has no end (timeout 0)", do: "set the route's timeout",
			},
			{
				name: "100-continue of the upstream", edit: edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
					hcm.Proxy_100Continue = true
					return nil
				}),
				level: "fail", check: "envoy: 100-continue", text: "proxy_100_continue in body mode", do: "remove proxy_100_continue",
			},
			{
				name: "rule after one for all", edit: setField("match", []any{map[string]any{}, map[string]any{"path": "/payments"}}), status: 201,
				level: "warn", check: "envoy: rules", text: "match[1] never counts", do: "put the narrower rule first",
			},
			{
				name: "scope that differs in each try", edit: setField("scope", []any{"host", "header:x-request-id"}), status: 201, probe: "the retry ran again",
				level: "fail", check: "envoy: scope", text: `scope names "header:x-request-id"`, do: "header:authorization",
			},
		} {
			t.Run(c.name, func(t *testing.T) {
				manager := cmp.Or(c.manager, plain)
				s.bootstrap, s.managerAddr = c.edit, cmp.Or(c.cluster, manager)
				p := s.startProxy(t)
				defer func() {
					if err := p.stop(); err != nil {
						t.Error(err)
					}
				}()
				if c.status != 0 {
					if a := send(t, p, pay(newKey())); a.status != c.status {
						t.Errorf("a request gets %v, want %d", a, c.status)
					}
				}
				args := slices.Clone(c.args)
				if c.probe != "" {
					args = append(args, "--probe", p.url("/payments"), "--probe-header", "x-a: b")
				}
				findings, code := examine(t, p, manager, args...)
				if c.probe != "" && !slices.ContainsFunc(findings, func(f finding) bool { return f.Check == "probe" && strings.Contains(f.Found, c.probe) }) {
					t.Errorf("the probe does not find %q: %+v", c.probe, findings)
				}
				wantFinding(t, findings, code, finding{c.level, c.check, c.text, c.do}, c.also)
			})
		}
	})
}

// wantFinding checks that the doctor's findings have one whose texts contain those of want, that nothing worse is found, and
// that another check is not content either.
func wantFinding(t *testing.T, findings []finding, code int, want finding, also string) {
	t.Helper()
	found, second := false, also == ""
	for _, f := range findings {
		found = found || f.Level == want.Level && f.Check == want.Check && strings.Contains(f.Found, want.Found) && strings.Contains(f.Do, want.Do)
		second = second || f.Check == also && f.Level != "ok"
		if f.Level == "fail" && want.Level != "fail" || f.Level == "warn" && want.Level == "ok" {
			t.Errorf("%+v", f)
		}
	}
	if !found || !second || (code == 1) != (want.Level == "fail") {
		t.Errorf("exit code %d, no finding %+v, or none of %q, among %+v", code, want, also, findings)
	}
}

// TestDoctorFindsRefusedUpdates: an Envoy that refused a listener keeps the one before, and the doctor says so.
func TestDoctorFindsRefusedUpdates(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		l := newLifecycle(t, target, "body")
		l.refuse(t, `mode: "psychic"`, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
			return envoy.SetPluginJSON(plugin, []byte(`{"mode":"psychic"}`))
		})
		findings, code := examine(t, l.proxies[0], l.managerAddr)
		wantFinding(t, findings, code, finding{"fail", "envoy: updates", `Envoy refused an update among dynamic_listeners ("ingress")`, "correct it"}, "")
		l.update(t, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
			hcm.ServerName = "corrected"
			return nil
		})
		findings, code = examine(t, l.proxies[0], l.managerAddr)
		wantFinding(t, findings, code, finding{"warn", "envoy: updates", "Envoy refused 1 update since its start (listener_manager.lds.update_rejected)", "see Envoy's log"}, "")
	})
}
