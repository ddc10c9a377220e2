package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/oncegate/oncegate/envoy"
)

// xdsStack is a stack whose Envoy reads everything from the files of envoy/xds, with other addresses.
type xdsStack struct {
	*lifecycle
	files map[string]proto.Message // as they were last written
}

func newXDS(t *testing.T, target envoyTarget) *xdsStack {
	t.Helper()
	x := withoutEnvoy(t, target, nil)
	x.write(t)
	x.startEnvoy(t)
	return x
}

// withoutEnvoy is a stack to which the caller adds Envoys.
func withoutEnvoy(t *testing.T, target envoyTarget, settings []string, edits ...func(*bootstrapv3.Bootstrap) error) *xdsStack {
	t.Helper()
	x := &xdsStack{lifecycle: &lifecycle{envoy: target, upstream: newHeldUpstream(t)}, files: map[string]proto.Message{}}
	x.stack = &stack{dir: t.TempDir(), target: target, mode: "body", paymentsAddr: x.upstream.address, settings: settings}
	x.stopAtEnd(t)
	x.startManager(t)
	x.lifecycle.bootstrap = bootstrapOf(t, x.stack, "body", map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
	for _, edit := range edits {
		if err := edit(x.lifecycle.bootstrap); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// startEnvoy adds the Envoy that reads the files.
func (x *xdsStack) startEnvoy(t *testing.T) {
	t.Helper()
	config, err := envoy.MarshalBootstrap(x.files[envoy.XDSBootstrap].(*bootstrapv3.Bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	p, err := x.target.start(x.path("envoy"), config, 2, "--use-dynamic-base-id", "--disable-hot-restart", "--drain-time-s", "600")
	if p != nil {
		x.proxies = append(x.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// write renames new versions of the files that changed into their folder, and returns their names.
func (x *xdsStack) write(t *testing.T) (changed []string) {
	t.Helper()
	dir := x.path("xds")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := envoy.SplitXDS(x.lifecycle.bootstrap, dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range files {
		if proto.Equal(m, x.files[name]) {
			continue
		}
		x.files[name] = m
		changed = append(changed, name)
		if err := replaceFile(filepath.Join(dir, name), m); err != nil {
			t.Fatal(err)
		}
	}
	return changed
}

// replaceFile replaces a file of xDS in one step. Envoy notices that.
func replaceFile(name string, m proto.Message) error {
	text, err := protojson.Marshal(m) // JSON is YAML
	if err != nil {
		return err
	}
	unread := name + ".new"
	return errors.Join(os.WriteFile(unread, text, 0o644), os.Rename(unread, name))
}

// replaceResources is replaceFile for a file that has only these resources.
func replaceResources[T proto.Message](name string, resources ...T) error {
	response := new(discoveryv3.DiscoveryResponse)
	for _, r := range resources {
		packed, err := anypb.New(r)
		if err != nil {
			return err
		}
		response.Resources = append(response.Resources, packed)
	}
	return replaceFile(name, response)
}

// fileSource has Envoy read resources from a file.
func fileSource(name string) *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
		PathConfigSource: &corev3.PathConfigSource{Path: name},
	}}
}

// change changes the static configuration, which must lead to one other file, and waits until Envoy shows a text of it.
func (x *xdsStack) change(t *testing.T, file, text string, edit func(*bootstrapv3.Bootstrap) error) {
	t.Helper()
	if err := edit(x.lifecycle.bootstrap); err != nil {
		t.Fatal(err)
	}
	if changed := x.write(t); len(changed) != 1 || changed[0] != file {
		t.Fatalf("the files %v changed, want %s", changed, file)
	}
	x.taken(t, text)
}

// taken waits until Envoy shows a text of a changed configuration, and has it.
func (x *xdsStack) taken(t *testing.T, text string) {
	t.Helper()
	eventually(t, text+" is not taken", func() error {
		dump, err := fetch(x.proxies[0].admin + "/config_dump")
		if err != nil {
			return err
		}
		if !strings.Contains(string(dump), text) {
			return fmt.Errorf("Envoy does not show %s; its log:\n%s", text, x.proxies[0].tail(20))
		}
		for _, name := range []string{"listener_manager.total_listeners_warming", "cluster_manager.warming_clusters"} {
			if n := x.stat(t, name); n > 0 { // which Envoy shows already
				return fmt.Errorf("%s: %d", name, n)
			}
		}
		return nil
	})
}

// payer sends new keys until stop.
type payer struct {
	x    *xdsStack
	stop chan struct{}
	wg   sync.WaitGroup
	done atomic.Int64 // keys
	pay  func(key string) error

	mu   sync.Mutex
	errs []error
	keys map[string]answer // a sample
}

// payAll starts 4 clients. A nil pay is payTwice.
func (x *xdsStack) payAll(t *testing.T, pay func(key string) error) *payer {
	t.Helper()
	l := &payer{x: x, stop: make(chan struct{}), keys: map[string]answer{}, pay: pay}
	if pay == nil {
		l.pay = func(key string) error { return l.payTwice(t, key) }
	}
	for range 4 {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				key := newKey()
				if err := l.pay(key); err != nil {
					l.mu.Lock()
					l.errs = append(l.errs, fmt.Errorf("key %s: %w", key, err))
					l.mu.Unlock()
				}
				l.done.Add(1)
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

// payTwice sends a key that must run, and its retry.
func (l *payer) payTwice(t *testing.T, key string) error {
	first, err := do(t.Context(), l.x.proxies[0], pay(key))
	if err != nil || first.status != 201 || first.replayed() {
		return fmt.Errorf("first: %v, %v", first, err)
	}
	again, err := do(t.Context(), l.x.proxies[0], pay(key))
	if err != nil || !again.replayed() || again.sameAs(first) != nil {
		return fmt.Errorf("retry: %v, %v; first: %v", again, err, first)
	}
	if n := l.x.upstream.count(key); n != 1 {
		return fmt.Errorf("ran %d times", n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) < 300 {
		l.keys[key] = first
	}
	return nil
}

// more waits until further keys were paid.
func (l *payer) more(t *testing.T, keys int64) {
	t.Helper()
	from := l.done.Load()
	eventually(t, "the load stands still", func() error {
		if n := l.done.Load() - from; n < keys {
			return fmt.Errorf("%d keys", n)
		}
		return nil
	})
}

func (l *payer) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// Files of xDS change under load. No request is lost, no key runs twice, what is under way ends, and retries of earlier
// keys are answered from the shared data, which stays: the ledger is not asked.
func TestXDSFilesChangeUnderLoad(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		x := newXDS(t, target)
		f := x.fly(t)
		l := x.payAll(t, nil)
		l.more(t, 20)
		for round := range 3 {
			mark := "round" + strconv.Itoa(round)
			x.change(t, envoy.XDSGate, mark, setField("match", []map[string]any{{"path_prefix": "/" + mark, "key": map[string]any{"required": true}}, {}}))
			l.more(t, 20)
			x.change(t, envoy.XDSRoutes, mark+"-route", edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
				host := hcm.GetRouteConfig().GetVirtualHosts()[0]
				route := proto.CloneOf(host.GetRoutes()[len(host.GetRoutes())-1])
				route.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + mark + "-route"}}
				host.Routes = append([]*routev3.Route{route}, host.GetRoutes()...)
				return nil
			}))
			l.more(t, 20)
			x.change(t, envoy.XDSListeners, mark+"-server", edit(func(hcm *hcmv3.HttpConnectionManager, _ *wasmv3.PluginConfig) error {
				hcm.ServerName = mark + "-server"
				return nil
			}))
			l.more(t, 20)
			x.change(t, envoy.XDSClusters, mark+"_stat", func(b *bootstrapv3.Bootstrap) error {
				return editCluster(b, "upstream", func(c *clusterv3.Cluster) { c.AltStatName = mark + "_stat" })
			})
			l.more(t, 20)
		}
		// Another name is how the clusters of the gate's own calls change.
		x.change(t, envoy.XDSClusters, "oncegate_manager_2", func(b *bootstrapv3.Bootstrap) error {
			return editCluster(b, "oncegate_manager", func(c *clusterv3.Cluster) {
				next := proto.CloneOf(c)
				next.Name, next.LoadAssignment.ClusterName = "oncegate_manager_2", "oncegate_manager_2"
				b.StaticResources.Clusters = append(b.StaticResources.Clusters, next)
			})
		})
		x.change(t, envoy.XDSGate, `\"oncegate_manager_2\"`, setField("manager", map[string]any{
			"cluster": "oncegate_manager_2", "timeout_ms": managerTimeout.Milliseconds(),
		}))
		l.more(t, 20)
		l.end()
		if len(l.errs) > 0 {
			t.Errorf("%d of %d keys: %v", len(l.errs), l.done.Load(), l.errs[0])
		}
		f.join(t, x.proxies[0])
		x.waiting(t, 60)
		f.land(t)
		asked := func() int {
			return x.stat(t, "cluster.oncegate_manager.upstream_rq_total") + x.stat(t, "cluster.oncegate_manager_2.upstream_rq_total")
		}
		if x.stat(t, "cluster.oncegate_manager_2.upstream_rq_total") == 0 {
			t.Error("no call goes to the new cluster")
		}
		calls := asked()
		for key, first := range l.keys {
			wantReplay(t, x.proxies[0], pay(key), first)
		}
		if n := asked(); n != calls {
			t.Errorf("%d calls to the ledger for retries of keys that the shared data has", n-calls)
		}
		t.Logf("%d keys", l.done.Load())
	})
}

// A changed cluster of the gate's own calls cuts them off. That costs requests and runs nothing twice.
func TestReplacedClustersRunNothingTwice(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		x := newXDS(t, target)
		f := x.fly(t)
		l := x.payAll(t, func(key string) error {
			for range 2 {
				a, err := do(t.Context(), x.proxies[0], pay(key))
				switch status := a.headers.Get("Idempotency-Status"); {
				case err != nil:
					return err
				case a.status == 201, a.status == 503 && status == "manager-unavailable":
				case status == "unknown", status == "outcome-unknown", status == "request-pending": // 502, 503 or 409
				default:
					return fmt.Errorf("%v", a)
				}
			}
			if n := x.upstream.count(key); n > 1 {
				return fmt.Errorf("ran %d times", n)
			}
			return nil
		})
		for _, name := range []string{"oncegate_manager", "oncegate_routes"} {
			l.more(t, 20)
			x.change(t, envoy.XDSClusters, name+"_stat", func(b *bootstrapv3.Bootstrap) error {
				return editCluster(b, name, func(c *clusterv3.Cluster) { c.AltStatName = name + "_stat" })
			})
		}
		l.more(t, 20)
		l.end()
		for _, err := range l.errs {
			t.Error(err)
		}
		f.wg.Wait() // the call to upstream was cut off, so nothing waits
		f.l.upstream.release()
		if a := send(t, x.proxies[0], f.call); a.status != 409 || x.upstream.count(*f.call.key) != 1 {
			t.Errorf("%d executions, then %v", x.upstream.count(*f.call.key), a)
		}
	})
}

// edit is a change of the outer listener.
func edit(change editPlugin) func(*bootstrapv3.Bootstrap) error {
	return func(b *bootstrapv3.Bootstrap) error { return envoy.Edit(b, change) }
}

// setField changes a field of the gate's configuration.
func setField(name string, value any) func(*bootstrapv3.Bootstrap) error {
	return edit(withField(name, value))
}

// withField is setField for the first configuration.
func withField(name string, value any) editPlugin {
	return func(_ *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		text, err := envoy.PluginJSON(plugin)
		if err != nil {
			return err
		}
		fields := map[string]any{}
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		fields[name] = value
		if text, err = json.Marshal(fields); err != nil {
			return err
		}
		return envoy.SetPluginJSON(plugin, text)
	}
}

func editCluster(b *bootstrapv3.Bootstrap, name string, change func(*clusterv3.Cluster)) error {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			change(c)
			return nil
		}
	}
	return errors.New("no cluster " + name)
}
