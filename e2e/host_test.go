package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	bootwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/envoy"
)

// An Envoy takes a second of CPU time to compile the gate. So the proxies of most tests are guests: an Envoy that hosts them,
// one after the other, has their listeners and clusters from files. It keeps a VM of its own with the gate's code, so a guest's
// VMs need no compiler. A guest meets nothing of the one before: its VMs and the data that they shared are gone, and counters
// are 0. Histograms stay, and Envoy writes the access log late: a test that reads these has an Envoy of its own
// (envoyTarget.alone). So has a test that changes what a process has but once: its module, its environment, the rest of the
// bootstrap.

// TestGuestsMeetNothingOfOthers: a gate in an Envoy that hosted another one knows none of its keys and counts from 0.
func TestGuestsMeetNothingOfOthers(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		// No other test has three workers, so the second guest gets the first one's Envoy.
		s := &stack{dir: t.TempDir(), target: target, mode: mode, workers: 3, managerAddr: "127.0.0.1:1", plugin: map[string]any{"ledger": "none"}}
		s.stopAtEnd(t)
		s.startPayments(t)
		key := newKey()
		for guest := 1; guest <= 2; guest++ {
			p := s.startProxy(t)
			wantReplay(t, p, pay(key), wantFirst(t, p, pay(key), 201))
			s.wantExecutions(t, key, guest)
			p.awaitMetric(t, "oncegate_gate_requests_miss_total", 1)
			if p.cmd != s.proxies[0].cmd {
				t.Fatal("the second guest is in another Envoy")
			}
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// envoyHost is an Envoy for one guest at a time.
type envoyHost struct {
	*proxy
	dir  string
	kind hostKind
	vms  int // that it has without a guest
}

// hostKind is what hosts differ in.
type hostKind struct {
	envoy     string // file
	workers   int
	bootstrap string // without what a guest brings
}

// hosts has the Envoys without a guest.
var hosts struct {
	sync.Mutex
	idle            []*envoyHost
	started, guests int
}

// stopHosts ends the hosts.
func stopHosts() error {
	hosts.Lock()
	defer hosts.Unlock()
	if hosts.guests > 0 {
		fmt.Printf("proxies that were guests: %d, Envoys that hosted them: %d\n", hosts.guests, hosts.started)
	}
	processes := make([]*process, len(hosts.idle))
	for i, h := range hosts.idle {
		processes[i] = h.process
	}
	return stopAll(processes)
}

// withoutGuest returns the part of a configuration that a guest shares with others.
func withoutGuest(b *bootstrapv3.Bootstrap) *bootstrapv3.Bootstrap {
	b = proto.CloneOf(b)
	b.StaticResources.Listeners, b.StaticResources.Clusters = nil, nil
	return b
}

// errRefused says that a host does not take a guest's configuration.
var errRefused = errors.New("the Envoy refuses the configuration")

// host starts the proxy of a configuration as a guest. It returns errRefused if an Envoy of its own has to say what is wrong.
func (e envoyTarget) host(b *bootstrapv3.Bootstrap, workers int) (*proxy, error) {
	h, err := e.freeHost(withoutGuest(b), workers)
	if err != nil {
		return nil, err
	}
	p := h.enter()
	if err = h.configure(b); err == nil {
		err = p.readListeners()
	}
	if err != nil {
		p.spend()
		stop := p.stop()
		if stop == nil && errors.Is(err, errRefused) {
			return nil, errRefused
		}
		return nil, fmt.Errorf("a guest's configuration: %v, %v\n%s", err, stop, h.tail(60))
	}
	for _, l := range b.GetStaticResources().GetListeners() {
		if address := p.listeners[l.GetName()]; address != "" {
			p.address = address
		}
	}
	return p, nil
}

// freeHost takes a host without a guest, or starts one.
func (e envoyTarget) freeHost(b *bootstrapv3.Bootstrap, workers int) (*envoyHost, error) {
	config, err := envoy.MarshalBootstrap(b)
	if err != nil {
		return nil, err
	}
	kind := hostKind{e.Path, workers, string(config)}
	h, number := idleHost(kind)
	if h != nil {
		return h, nil
	}
	h = &envoyHost{dir: filepath.Join(binDir, fmt.Sprintf("host-%d", number)), kind: kind}
	if config, err = h.bootstrap(b); err != nil {
		return nil, err
	}
	// A listener goes with its guest.
	h.proxy, err = e.startEmpty(h.dir, config, workers, "--use-dynamic-base-id", "--disable-hot-restart",
		"--drain-time-s", "0", "--drain-strategy", "immediate")
	if err == nil {
		var n map[string]int
		n, err = h.statistics(vmsNow)
		h.vms = n[vmsNow]
	}
	if err == nil {
		err = h.clean()
	}
	if err != nil && h.proxy != nil {
		err = errors.Join(fmt.Errorf("%w\n%s", err, h.tail(60)), h.process.stop())
	}
	return h, err
}

// idleHost takes a host; nil: there is none, and the caller starts one of this number.
func idleHost(kind hostKind) (h *envoyHost, number int) {
	hosts.Lock()
	defer hosts.Unlock()
	hosts.guests++
	if i := slices.IndexFunc(hosts.idle, func(h *envoyHost) bool { return h.kind == kind }); i >= 0 {
		h = hosts.idle[i]
		hosts.idle = slices.Delete(hosts.idle, i, i+1)
		return h, 0
	}
	hosts.started++
	return nil, hosts.started
}

// vmsNow is the number of VMs.
const vmsNow = "wasm.envoy.wasm.runtime.v8.active"

// clean waits until nothing of a guest is left, and then sets all counters to 0.
func (h *envoyHost) clean() error {
	want := map[string]int{
		"listener_manager.total_listeners_active": 0, "listener_manager.total_listeners_draining": 0, "cluster_manager.active_clusters": 0,
		"wasmcustom.oncegate_gate_waiters": 0, vmsNow: h.vms,
	}
	err := poll(h.done, func() error {
		got, err := h.statistics(slices.Collect(maps.Keys(want))...)
		for name, n := range want {
			if err == nil && got[name] != n {
				err = fmt.Errorf("a guest that has left keeps something: %s is %d, want %d", name, got[name], n)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	resp, err := adminClient.Post(h.admin+"/reset_counters", "", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// statistics reads numbers; those that nothing has changed yet are absent.
func (h *envoyHost) statistics(names ...string) (map[string]int, error) {
	for i, name := range names {
		names[i] = regexp.QuoteMeta(name)
	}
	text, err := fetch(h.admin + "/stats?filter=^(" + strings.Join(names, "|") + ")$")
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if all[name], err = strconv.Atoi(value); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// bootstrap is a host's own configuration.
func (h *envoyHost) bootstrap(b *bootstrapv3.Bootstrap) ([]byte, error) {
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		return nil, err
	}
	if err := h.empty(); err != nil {
		return nil, err
	}
	b.Node = &corev3.Node{Id: "e2e", Cluster: "e2e"}
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{CdsConfig: fileSource(h.clusterFile()), LdsConfig: fileSource(h.listenerFile())}
	gate, err := anypb.New(wrapperspb.String(`{"ledger": "none"}`))
	if err != nil {
		return nil, err
	}
	keeper, err := anypb.New(&bootwasmv3.WasmService{Singleton: true, Config: &bootwasmv3.PluginConfig{
		Name: "keeper", RootId: "keeper", Configuration: gate,
		Vm: &bootwasmv3.PluginConfig_VmConfig{VmConfig: &bootwasmv3.VmConfig{
			VmId: "keeper", Runtime: "envoy.wasm.runtime.v8", Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
				Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: wasmModule}},
			}},
		}},
	}})
	if err != nil {
		return nil, err
	}
	b.BootstrapExtensions = append(b.BootstrapExtensions, &corev3.TypedExtensionConfig{Name: "envoy.bootstrap.wasm", TypedConfig: keeper})
	return envoy.MarshalBootstrap(b)
}

// The files of what a guest brings.
func (h *envoyHost) listenerFile() string { return filepath.Join(h.dir, "listeners.json") }
func (h *envoyHost) clusterFile() string  { return filepath.Join(h.dir, "clusters.json") }

// empty takes the guest's listeners and clusters out of the files.
func (h *envoyHost) empty() error {
	return errors.Join(replaceResources[proto.Message](h.listenerFile()), replaceResources[proto.Message](h.clusterFile()))
}

// configure gives the host what its guest brings, and waits until all workers have the listeners.
func (h *envoyHost) configure(b *bootstrapv3.Bootstrap) error {
	resources := b.GetStaticResources()
	if err := replaceResources(h.clusterFile(), resources.GetClusters()...); err != nil {
		return err
	}
	if err := h.await("cluster_manager.cds.update_success", 1, "cluster_manager.cds.update_rejected"); err != nil {
		return err
	}
	if err := replaceResources(h.listenerFile(), resources.GetListeners()...); err != nil {
		return err
	}
	return h.await("listener_manager.listener_create_success", len(resources.GetListeners())*h.kind.workers, "listener_manager.lds.update_rejected")
}

// await waits until a number is there, unless another one says that the configuration was refused.
func (h *envoyHost) await(name string, want int, rejected string) error {
	refused := false
	err := poll(h.done, func() error {
		got, err := h.statistics(name, rejected)
		if refused = got[rejected] > 0; refused || err != nil {
			return err
		}
		if got[name] < want {
			return fmt.Errorf("%s is %d, want %d", name, got[name], want)
		}
		return nil
	})
	if refused {
		return errRefused
	}
	return err
}

// enter returns a proxy whose process is the host's and whose log has the guest's lines. To stop it is to leave the host.
func (h *envoyHost) enter() *proxy {
	p := &process{name: h.name, cmd: h.cmd, done: make(chan struct{}), listens: map[string]string{}, changed: make(chan struct{})}
	h.follow(p)
	left := make(chan struct{})
	go func() {
		defer close(p.done)
		select {
		case <-h.done:
		case <-left:
		}
		select {
		case <-h.done:
			h.mu.Lock()
			defer h.mu.Unlock()
			p.mu.Lock()
			defer p.mu.Unlock()
			p.err = h.err
		default:
		}
	}()
	p.leave = sync.OnceValue(func() error {
		err := h.dismiss(p)
		close(left)
		<-p.done
		return errors.Join(err, p.ended())
	})
	return &proxy{process: p, admin: h.admin, host: h}
}

// dismiss ends a guest. The host takes another one unless this one has spent it.
func (h *envoyHost) dismiss(p *process) error {
	select {
	case <-h.done: // the test killed it, or it crashed
		return nil
	default:
	}
	p.mu.Lock()
	spent := p.spent
	p.mu.Unlock()
	if spent {
		return h.process.stop()
	}
	// Managers and upstreams end after this, so no gate may call them any more.
	err := h.empty()
	if err == nil {
		err = h.clean()
	}
	if err != nil {
		return errors.Join(err, h.process.stop())
	}
	hosts.Lock()
	defer hosts.Unlock()
	h.follow(nil)
	hosts.idle = append(hosts.idle, h)
	return nil
}
