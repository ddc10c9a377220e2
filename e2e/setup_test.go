package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// How the gate is set up in an Envoy, and what mistakes there lead to.

// The filters of both published files in one Envoy, with the same configuration: each goes
// its own way with the headers.
func TestBothModesInOneEnvoy(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		same := map[string]any{"mode": "headers", "client_abort": "cancel", "match": []any{map[string]any{"path_prefix": "/body", "mode": "body"}, map[string]any{}}}
		byHeaders, byBody := bothModes(t, target, mode, same, same)
		for range 20 {
			c := pay(newKey())
			c.path = "/body"
			first := wantFirst(t, byBody, c, 201)
			wantReplay(t, byBody, c, first)
			c.body = `{"amount": 999}`
			wantProblem(t, byBody, c, 422, "fingerprint-mismatch")

			c = pay(newKey())
			first = wantFirst(t, byHeaders, c, 201)
			c.body = `{"amount": 999}`
			wantReplay(t, byHeaders, c, first)
		}
	})
}

// bothModes starts an Envoy with the filters of both published files and these configurations. mode is the first
// listener's.
func bothModes(t *testing.T, target envoyTarget, mode string, headersConfig, bodyConfig map[string]any) (byHeaders, byBody *proxy) {
	t.Helper()
	s := &stack{dir: t.TempDir(), target: target, paymentsAddr: newHeldUpstream(t).address}
	s.stopAtEnd(t)
	s.startManager(t)
	// The file of body mode has the clusters that both need, and the inner listener.
	b := bootstrapOf(t, s, "body", bodyConfig)
	headers := bootstrapOf(t, s, "headers", headersConfig).GetStaticResources().GetListeners()[0]
	listeners := b.GetStaticResources().GetListeners()
	headers.Name, listeners[0].Name = "headers", "body"
	// The mode's listener comes first: an Envoy that takes the filters for one runs that one.
	if mode == "headers" {
		b.StaticResources.Listeners = append([]*listenerv3.Listener{headers}, listeners...)
	} else {
		b.StaticResources.Listeners = append(listeners, headers)
	}
	config, err := envoy.MarshalBootstrap(b)
	if err != nil {
		t.Fatal(err)
	}
	p, err := target.start(filepath.Join(s.dir, "envoy"), config, 2, "--use-dynamic-base-id", "--disable-hot-restart")
	if p != nil {
		s.proxies = append(s.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second := *p, *p
	first.address, second.address = p.listeners["headers"], p.listeners["body"]
	return &first, &second
}

// A retry through the gate of the other mode, with or without a declared length, is the same request. Each mode refuses
// what the first one shows.
func TestBothModesShareALedger(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		byHeaders, byBody := bothModes(t, target, mode, map[string]any{"mode": "headers"}, map[string]any{"mode": "body"})
		gates := map[string]*proxy{"headers": byHeaders, "body": byBody}
		for firstMode, gate := range gates {
			for retryMode, retry := range gates {
				for _, chunked := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
					t.Logf("%s mode, then %s mode, chunked %v", firstMode, retryMode, chunked)
					c := pay(newKey())
					c.chunked = chunked[0]
					first := wantFirst(t, gate, c, 201)
					c.chunked = chunked[1]
					wantReplay(t, retry, c, first)
					c.body = `{"amount": 999}` // the same length
					if firstMode == "body" && retryMode == "body" {
						wantProblem(t, retry, c, 422, "fingerprint-mismatch")
					} else {
						wantReplay(t, retry, c, first)
					}
					c.body = `{"amount": 1000}`
					if (firstMode == "body" || !chunked[0]) && (retryMode == "body" || !chunked[1]) {
						wantProblem(t, retry, c, 422, "fingerprint-mismatch")
					} else {
						wantReplay(t, retry, c, first)
					}
				}
				c := pay(newKey())
				c.method = "PATCH" // without a body
				first := wantFirst(t, gate, c, 201)
				wantReplay(t, retry, c, first)
				c.body = "{}"
				wantProblem(t, retry, c, 422, "fingerprint-mismatch")
			}
		}
	})
}

// The published allow-list in the field that each Envoy wants, and one that lacks something.
func TestGateRunsWithItsAllowListOnly(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		l := newLifecycle(t, target, mode, target.restrict(t, ""))
		l.fly(t).land(t)
		l = newLifecycle(t, target, mode, target.restrict(t, "proxy_grpc_stream"),
			withField("manager", map[string]any{"cluster": "oncegate_manager", "timeout_ms": 500})) // which each call waits for
		wantProblem(t, l.proxies[0], pay(newKey()), 503, "manager-unavailable")
		l.proxies[0].wantNothingDeprecated(t)
	})
}

// knowsListInVM reports whether an Envoy has the list of what a module may call in vm_config.
func (e envoyTarget) knowsListInVM(t *testing.T) bool {
	t.Helper()
	var major, minor int
	if _, err := fmt.Sscanf(e.Version, "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 1 || minor >= 40
}

// restrict adds the published list of what the module may call, without one name, where this Envoy has it.
func (e envoyTarget) restrict(t *testing.T, without string) editPlugin {
	t.Helper()
	return func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		list, err := envoy.Capabilities()
		if err != nil {
			return err
		}
		delete(list.AllowedCapabilities, without)
		if e.knowsListInVM(t) {
			plugin.GetVmConfig().CapabilityRestrictionConfig = list
		} else {
			//lint:ignore SA1019 Envoys before 1.40 know only this field
			plugin.CapabilityRestrictionConfig = list
		}
		return nil
	}
}

// Body mode without allow_on_headers_stop_iteration: requests are refused, and served once the
// set-up is right.
func TestBodyModeUnavailable(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		l := newLifecycle(t, target, "body", func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
			plugin.AllowOnHeadersStopIteration = nil
			return nil
		})
		p := l.proxies[0]
		// A request without a body has nothing to wait for.
		c := pay(newKey())
		c.method = "PATCH"
		wantReplay(t, p, c, wantFirst(t, p, c, 201))
		c = pay(newKey())
		for range 4 { // more than there are workers
			wantProblem(t, p, c, 500, "body-mode-unavailable")
		}
		l.logged(t, "set allow_on_headers_stop_iteration")
		l.update(t, func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
			plugin.AllowOnHeadersStopIteration = wrapperspb.Bool(true)
			// Old Envoys would continue with the plugin that they have.
			plugin.Name, plugin.RootId = "corrected", "corrected"
			return nil
		})
		first := eventuallyPaid(t, "the corrected plugin refuses", p, *c.key)
		wantReplay(t, p, c, first)
	})
}

// Each configuration of the filter is a new plugin in the running VMs. It continues with what
// earlier plugins have left there.
func TestUpdatesLeaveNoMemory(t *testing.T) {
	deep.Only(t)
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		l := newDraining(t, target, mode, 1)
		update := func(from, to int) {
			for i := from; i < to; i++ {
				l.configure(t, map[string]any{"pending_wait_timeout": 60 + i})
				wantFirst(t, l.proxies[0], pay(newKey(), "Connection", "close"), 201)
			}
			// Until then the old plugins are there.
			eventually(t, "old listeners do not go", func() error {
				if n := l.stat(t, "listener_manager.total_filter_chains_draining") + l.stat(t, "listener_manager.total_listeners_draining"); n > 0 {
					return fmt.Errorf("%d drain", n)
				}
				return nil
			})
		}
		update(0, 10)
		before := l.proxies[0].resident(t)
		const updates = 40
		update(10, 10+updates)
		// Some plugins live side by side while old listeners drain, and a VM keeps the room that they took: some
		// 150 kB for each update here. A plugin that kept its own room took a megabyte and a half.
		if grown := (l.proxies[0].resident(t) - before) / updates; grown > 500<<10 {
			t.Errorf("%d bytes more for each update", grown)
		} else {
			t.Logf("%d bytes more for each update", grown)
		}
	})
}

// resident is the memory that the process occupies, in bytes.
func (p *process) resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no RssAnon in %s", text)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
