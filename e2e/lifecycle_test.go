package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/envoy"
)

// What operators do to an Envoy while requests run. Nothing runs twice, and all requests that wait
// get the same answer.
func TestOperationsOnEnvoyRunNothingTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		run  func(*testing.T, *lifecycle)
	}{
		{"new plugin configuration", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			l.configure(t, map[string]any{"pending_wait_timeout": 61})
			f.join(t, l.proxies[0])
			l.waiting(t, 60)
			f.land(t)
		}},
		{"new listener around the same plugin", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			l.update(t, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
				hcm.ServerName = "changed"
				return nil
			})
			f.join(t, l.proxies[0])
			l.waiting(t, 60)
			f.land(t)
		}},
		{"bad configurations", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			for want, bad := range map[string]proto.Message{
				`mode: "psychic"`:             wrapperspb.String(`{"mode":"psychic"}`),
				"google.protobuf.StringValue": &structpb.Struct{Fields: map[string]*structpb.Value{"mode": structpb.NewStringValue("headers")}},
			} {
				l.refuse(t, want, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
					return plugin.GetConfiguration().MarshalFrom(bad)
				})
			}
			f.join(t, l.proxies[0])
			l.waiting(t, 60)
			f.land(t)
		}},
		{"hot restart", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			f.join(t, l.restart(t))
			f.land(t)
		}},
		{"drain", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			l.post(t, "/drain_listeners?graceful")
			f.land(t)
		}},
		{"routes without the filter", func(t *testing.T, l *lifecycle) {
			f := l.fly(t)
			off, err := anypb.New(&routev3.FilterConfig{Disabled: true})
			if err != nil {
				t.Fatal(err)
			}
			l.update(t, func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
				host := hcm.GetRouteConfig().GetVirtualHosts()[0]
				free := proto.CloneOf(host.GetRoutes()[len(host.GetRoutes())-1])
				free.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/free"}}
				free.TypedPerFilterConfig = map[string]*anypb.Any{"oncegate": off}
				host.Routes = append([]*routev3.Route{free}, host.Routes...)
				return nil
			})
			c := pay(newKey())
			c.path = "/free"
			for range 2 {
				if a := send(t, l.proxies[0], c); a.status != 201 || a.replayed() || a.headers.Get("Idempotency-Status") != "" {
					t.Errorf("without the filter: %v", a)
				}
			}
			f.join(t, l.proxies[0])
			f.land(t)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) { c.run(t, newLifecycle(t, target, mode)) })
		})
	}
}

// editPlugin changes a listener and the filter in it.
type editPlugin = func(*hcmv3.HttpConnectionManager, *wasmv3.PluginConfig) error

// lifecycle is a stack with an Envoy whose listener can be changed, and an upstream that
// the test holds.
type lifecycle struct {
	*stack
	envoy     envoyTarget
	upstream  *heldUpstream
	bootstrap *bootstrapv3.Bootstrap // with the listener, which Envoy reads from a file
}

// newLifecycle starts an Envoy with a published configuration after some edits.
func newLifecycle(t *testing.T, target envoyTarget, mode string, edits ...editPlugin) *lifecycle {
	t.Helper()
	return newDraining(t, target, mode, 600, edits...)
}

// newDraining is newLifecycle with a time in seconds after which Envoy gives up an old listener.
func newDraining(t *testing.T, target envoyTarget, mode string, seconds int, edits ...editPlugin) *lifecycle {
	t.Helper()
	l := &lifecycle{envoy: target, upstream: newHeldUpstream(t)}
	l.stack = &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: l.upstream.address}
	t.Cleanup(func() {
		// Envoy does not remove its shared memory.
		if id, err := os.ReadFile(l.path("base-id")); err == nil {
			os.Remove("/dev/shm/envoy_shared_memory_" + strings.TrimSpace(string(id)) + "0")
		}
	})
	l.stopAtEnd(t)
	l.startManager(t)
	l.bootstrap = bootstrapOf(t, l.stack, mode, map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600})
	for _, edit := range edits {
		if err := envoy.Edit(l.bootstrap, edit); err != nil {
			t.Fatal(err)
		}
	}
	l.writeListener(t)
	p, err := target.start(filepath.Join(l.dir, "envoy"), l.dynamic(t), 2, "--use-dynamic-base-id", "--base-id-path", l.path("base-id"),
		"--drain-strategy", "immediate", "--drain-time-s", strconv.Itoa(seconds))
	if p != nil {
		l.proxies = append(l.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// bootstrapOf is a published configuration for a stack.
func bootstrapOf(t *testing.T, s *stack, mode string, plugin map[string]any) *bootstrapv3.Bootstrap {
	t.Helper()
	text, err := envoy.Local{
		Mode: mode, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: s.paymentsAddr, Manager: s.managerAddr,
		Module: wasmModule, Plugin: patientPlugin(mode, plugin),
	}.Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	b, err := patientBootstrap(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (l *lifecycle) path(name string) string { return filepath.Join(l.dir, name) }

// dynamic is the configuration without the outer listener, which comes from a file.
func (l *lifecycle) dynamic(t *testing.T) []byte {
	t.Helper()
	b := proto.CloneOf(l.bootstrap)
	b.StaticResources.Listeners = b.GetStaticResources().GetListeners()[1:]
	b.Node = &corev3.Node{Id: "e2e", Cluster: "e2e"}
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{LdsConfig: fileSource(l.path("listeners.json"))}
	text, err := envoy.MarshalBootstrap(b)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// writeListener gives Envoy the listener.
func (l *lifecycle) writeListener(t *testing.T) {
	t.Helper()
	if err := replaceResources(l.path("listeners.json"), l.bootstrap.GetStaticResources().GetListeners()[0]); err != nil {
		t.Fatal(err)
	}
}

// change gives Envoy another listener and waits until a statistic says what it made of it.
func (l *lifecycle) change(t *testing.T, statistic string, edit editPlugin) {
	t.Helper()
	before := l.stat(t, statistic)
	if err := envoy.Edit(l.bootstrap, edit); err != nil {
		t.Fatal(err)
	}
	l.writeListener(t)
	eventually(t, statistic+" does not change", func() error {
		if n := l.stat(t, statistic); n <= before {
			return fmt.Errorf("%d; Envoy's log:\n%s", n, l.proxies[0].tail(20))
		}
		return nil
	})
}

// update changes the listener; Envoy takes it and its workers have it.
func (l *lifecycle) update(t *testing.T, edit editPlugin) {
	t.Helper()
	l.change(t, "listener_manager.lds.update_success", edit)
	eventually(t, "the workers do not take the listener", func() error {
		if n := l.stat(t, "listener_manager.total_listeners_warming"); n > 0 {
			return fmt.Errorf("%d listeners are warming", n)
		}
		return nil
	})
}

// configure changes fields of the filter's configuration.
func (l *lifecycle) configure(t *testing.T, fields map[string]any) {
	t.Helper()
	l.update(t, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		text, err := envoy.PluginJSON(plugin)
		if err != nil {
			return err
		}
		merged := map[string]any{}
		if err := json.Unmarshal(text, &merged); err != nil {
			return err
		}
		for name, value := range fields {
			merged[name] = value
		}
		if text, err = json.Marshal(merged); err != nil {
			return err
		}
		return envoy.SetPluginJSON(plugin, text)
	})
}

// refuse changes the listener in a way that Envoy must refuse, with a line in its log.
func (l *lifecycle) refuse(t *testing.T, want string, edit editPlugin) {
	t.Helper()
	was := proto.CloneOf(l.bootstrap)
	l.change(t, "listener_manager.lds.update_rejected", edit)
	l.logged(t, want)
	l.bootstrap = was
}

// logged waits until Envoy's log has a text.
func (l *lifecycle) logged(t *testing.T, want string) {
	t.Helper()
	l.proxies[0].logged(t, want)
}

// restart starts a second Envoy that takes the first one's sockets over.
func (l *lifecycle) restart(t *testing.T) *proxy {
	t.Helper()
	id, err := os.ReadFile(l.path("base-id"))
	if err != nil {
		t.Fatal(err)
	}
	first := l.proxies[0]
	_, port, _ := strings.Cut(first.address, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	l.bootstrap.GetStaticResources().GetListeners()[0].GetAddress().GetSocketAddress().PortSpecifier =
		&corev3.SocketAddress_PortValue{PortValue: uint32(n)}
	l.writeListener(t)
	p, err := l.envoy.start(l.path("envoy-1"), l.dynamic(t), 2, "--base-id", strings.TrimSpace(string(id)), "--restart-epoch", "1")
	if p != nil {
		l.proxies = append(l.proxies, p)
		t.Cleanup(func() {
			// The second one talks to the first, and ends it with itself.
			if err := p.stop(); err != nil {
				t.Error(err)
			}
			first.kill()
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.address != first.address {
		t.Fatalf("the second Envoy listens on %s, the first on %s", p.address, first.address)
	}
	return p
}

func (l *lifecycle) post(t *testing.T, path string) {
	t.Helper()
	resp, err := http.Post(l.proxies[0].admin+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, resp.Status)
	}
}

// stat is one of Envoy's counters or gauges, 0 when there is none of this name.
func (l *lifecycle) stat(t *testing.T, name string) int {
	t.Helper()
	return l.proxies[0].stat(t, name)
}

// stat reads a statistic of an Envoy; 0: there is none.
func (p *proxy) stat(t *testing.T, name string) int {
	t.Helper()
	text, err := fetch(p.admin + "/stats?filter=^" + regexp.QuoteMeta(name) + "$")
	if err != nil {
		t.Fatal(err)
	}
	_, value, ok := strings.Cut(strings.TrimSpace(string(text)), ": ")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waiting waits until so many duplicates wait.
func (l *lifecycle) waiting(t *testing.T, want int) {
	t.Helper()
	eventually(t, "duplicates do not wait", func() error {
		if n := l.stat(t, "wasmcustom.oncegate_gate_waiters"); n != want {
			return fmt.Errorf("%d of %d wait", n, want)
		}
		return nil
	})
}

// flight is a request that upstream works on, and duplicates that wait for it.
type flight struct {
	l    *lifecycle
	call call

	wg      sync.WaitGroup
	mu      sync.Mutex
	answers []answer
	errs    []error
	sent    int
}

// fly starts a request that upstream holds, and 50 duplicates.
func (l *lifecycle) fly(t *testing.T, headers ...string) *flight {
	t.Helper()
	f := &flight{l: l, call: pay(newKey(), append(headers, "x-hold", "yes")...)}
	f.send(t, l.proxies[0], 1)
	eventually(t, "the request does not arrive", func() error {
		if n := l.upstream.count(*f.call.key); n != 1 {
			return fmt.Errorf("%d executions", n)
		}
		return nil
	})
	f.send(t, l.proxies[0], 50)
	l.waiting(t, 50)
	return f
}

// join sends 10 more duplicates.
func (f *flight) join(t *testing.T, p *proxy) { f.send(t, p, 10) }

func (f *flight) send(t *testing.T, p *proxy, n int) {
	f.sent += n
	for range n {
		f.wg.Go(func() {
			a, err := do(t.Context(), p, f.call)
			f.mu.Lock()
			defer f.mu.Unlock()
			if err != nil {
				f.errs = append(f.errs, err)
			} else {
				f.answers = append(f.answers, a)
			}
		})
	}
}

// land lets upstream answer, and checks what all got.
func (f *flight) land(t *testing.T) {
	t.Helper()
	f.l.upstream.release()
	f.wg.Wait()
	if len(f.errs) > 0 {
		t.Fatalf("%d of %d got no answer: %v", len(f.errs), f.sent, f.errs[0])
	}
	firsts := 0
	for _, a := range f.answers {
		if err := a.sameAs(f.answers[0]); err != nil || a.status != 201 {
			t.Fatalf("%v: %v", a, err)
		}
		if !a.replayed() {
			firsts++
		}
	}
	if n := f.l.upstream.count(*f.call.key); n != 1 || firsts != 1 {
		t.Errorf("%d executions, %d first answers", n, firsts)
	}
}

// A manager that starts on an empty directory forgot the earlier keys. The gate reports it, and it runs none of them again.
func TestLostLedgerRunsNothingTwice(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, nil)
		p := s.proxies[0]
		const metric = "oncegate_gate_ledger_changed_total"
		changes := func() int {
			n, err := p.metric(metric)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		lost := newKey()
		wantFirst(t, p, pay(lost), 201)
		s.manager.kill()
		s.startManager(t)
		sendFree(t, p, pay(newKey()))
		if n := changes(); n != 0 {
			t.Errorf("%d changes after a restart on the same ledger", n)
		}
		s.manager.kill()
		if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
			t.Fatal(err)
		}
		s.startManager(t)
		other := s.startProxy(t) // it remembers nothing, and its cache is empty
		eventually(t, "the gate does not report it to the manager", func() error {
			if a := send(t, p, pay(newKey())); a.status != 503 {
				t.Fatalf("a new key at a ledger that forgot: %v", a)
			}
			if changes() == 0 {
				return fmt.Errorf("%s is 0", metric)
			}
			return nil
		})
		if a := send(t, other, pay(lost)); a.status != 503 {
			t.Errorf("a key that the ledger forgot: %v", a)
		}
		s.wantExecutions(t, lost, 1)
		if log := p.tail(1000); !strings.Contains(log, `ALARM: the ledger of cluster "oncegate_manager" is `) {
			t.Errorf("the gate's log does not say it: %s", log)
		}
		if log := s.manager.tail(1000); !strings.Contains(log, "the ledger forgot something: a quarantine begins") || !strings.Contains(log, "remembers another one in its place") {
			t.Errorf("the manager's log does not say it: %s", log)
		}
	})
}
