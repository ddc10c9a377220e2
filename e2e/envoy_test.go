package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/envoy/envoybin"
)

// envoyTarget is a real Envoy with a configuration of package envoy.
type envoyTarget struct {
	envoybin.Binary
	way way
	// racing: its stacks run the programs that have the race detector.
	racing bool
	// variable is NAME=VALUE, for the environment of its process; "": no further variable.
	variable string
	// alone: its Envoy hosts no other test's proxy.
	alone bool
}

// way is how an Envoy's gate makes upstream calls.
type way uint8

const (
	asPublished way = iota // through the inner listener
	onlyDirect             // from the beginning to the route's cluster, where they may
)

// Start brings up one proxy, which the caller stops. It may return one with an error, too.
func (e envoyTarget) Start(cfg targetConfig) (*proxy, error) {
	if e.way == onlyDirect {
		cfg.workers = 1
		edit := cfg.edit
		cfg.edit = func(hcm *hcmv3.HttpConnectionManager) error {
			direct(hcm)
			if edit == nil {
				return nil
			}
			return edit(hcm)
		}
		p, err := envoyTarget{Binary: e.Binary, variable: e.variable, alone: e.alone}.Start(cfg)
		if err == nil {
			err = p.goDirect()
		}
		return p, err
	}
	config, err := envoy.Local{
		Mode: cfg.mode, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: cfg.upstream, Manager: cfg.anyManager(), Managers: cfg.managers,
		Module: cmp.Or(cfg.module, wasmModule), Plugin: patientPlugin(cfg.mode, cfg.plugin), Edit: cfg.edit,
	}.Bootstrap()
	if err != nil {
		return nil, err
	}
	b, err := patientBootstrap(config)
	if err != nil {
		return nil, err
	}
	published := proto.CloneOf(b)
	if cfg.bootstrap != nil {
		if err := cfg.bootstrap(b); err != nil {
			return nil, err
		}
	}
	if !e.alone && cfg.module == "" && e.variable == "" && proto.Equal(withoutGuest(b), withoutGuest(published)) {
		if p, err := e.host(b, cfg.workers); !errors.Is(err, errRefused) {
			return p, err
		}
	}
	if config, err = envoy.MarshalBootstrap(b); err != nil {
		return nil, err
	}
	return e.start(cfg.dir, config, cfg.workers, "--use-dynamic-base-id", "--disable-hot-restart")
}

// goDirect sends requests until the only worker has seen at the inner listener that the route has no rules.
func (p *proxy) goDirect() error {
	return poll(p.done, func() error {
		if _, err := do(context.Background(), p, pay(newKey())); err != nil {
			return err
		}
		if n, err := p.metric("oncegate_gate_upstream_direct_total"); err != nil || n == 0 {
			return fmt.Errorf("%d direct calls, %v", n, err)
		}
		return nil
	})
}

// publishedTimeout is the routes' timeout in the published configurations.
const publishedTimeout = 15 * time.Second

// patientBootstrap reads a configuration and takes out the published timeouts of the routes, of all listeners, and of
// connects: a busy machine runs into them. What a test has set itself stays.
func patientBootstrap(config []byte) (*bootstrapv3.Bootstrap, error) {
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(config, b); err != nil {
		return nil, err
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		c.ConnectTimeout = durationpb.New(patience)
	}
	for _, listener := range b.GetStaticResources().GetListeners() {
		for _, chain := range listener.GetFilterChains() {
			for _, filter := range chain.GetFilters() {
				hcm := new(hcmv3.HttpConnectionManager)
				if err := filter.GetTypedConfig().UnmarshalTo(hcm); err != nil {
					return nil, err
				}
				for _, host := range hcm.GetRouteConfig().GetVirtualHosts() {
					for _, route := range host.GetRoutes() {
						if r := route.GetRoute(); r.GetTimeout().AsDuration() == publishedTimeout {
							r.Timeout = durationpb.New(2 * patience)
						}
					}
				}
				if err := filter.GetTypedConfig().MarshalFrom(hcm); err != nil {
					return nil, err
				}
			}
		}
	}
	return b, nil
}

// patientPlugin does the same for the gate's own calls.
func patientPlugin(mode string, fields map[string]any) map[string]any {
	patient := complete(fields)
	if _, set := fields["upstream"]; !set && mode == "body" {
		patient["upstream"] = map[string]any{"cluster": "oncegate_routes", "timeout_ms": (2 * patience).Milliseconds()}
	}
	return patient
}

// start runs an Envoy with a configuration. more are arguments that say what it shares with others.
func (e envoyTarget) start(dir string, config []byte, workers int, more ...string) (*proxy, error) {
	started, err := e.startEmpty(dir, config, workers, more...)
	if err == nil {
		err = started.readListeners()
	}
	if err != nil && started != nil {
		err = fmt.Errorf("%w\n%s", err, started.tail(60))
	}
	return started, err
}

// startEmpty is start for an Envoy that may have no listener.
func (e envoyTarget) startEmpty(dir string, config []byte, workers int, more ...string) (*proxy, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, adminFile := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin-address")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	program, args := e.Path, append([]string{"--config-path", file, "--admin-address-path", adminFile,
		"--concurrency", strconv.Itoa(workers), "--log-level", "warning"}, more...)
	if e.variable != "" {
		program, args = "env", append([]string{e.variable, program}, args...)
	}
	p, err := startProcess(e.Name(), program, args...)
	if err != nil {
		return nil, err
	}
	started := &proxy{process: p}
	return started, started.readAdmin(adminFile)
}

// readAdmin waits until the server is live.
func (p *proxy) readAdmin(file string) error {
	return poll(p.done, func() error {
		admin, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		p.admin = "http://" + strings.TrimSpace(string(admin))
		_, err = fetch(p.admin + "/ready")
		return err
	})
}

// readListeners asks for the listeners' addresses until there is one.
func (p *proxy) readListeners() error {
	var listeners struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
				Internal struct {
					Name string `json:"server_listener_name"`
				} `json:"envoy_internal_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	return poll(p.done, func() error {
		text, err := fetch(p.admin + "/listeners?format=json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &listeners); err != nil {
			return err
		}
		p.listeners = map[string]string{}
		for _, l := range listeners.Statuses {
			if l.Address.Internal.Name != "" {
				continue
			}
			if l.Address.Socket.Port == 0 {
				return fmt.Errorf("listeners: %s", text)
			}
			p.address = net.JoinHostPort(l.Address.Socket.Address, strconv.Itoa(l.Address.Socket.Port))
			p.listeners[l.Name] = p.address
		}
		if len(p.listeners) == 0 {
			return fmt.Errorf("listeners: %s", text)
		}
		return nil
	})
}

// poll asks until f succeeds; it gives up when done is closed or nothing helps. It asks less often what takes longer, so
// that a long wait takes little CPU time from what it waits for.
func poll(done <-chan struct{}, f func() error) error {
	began := time.Now()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(min(max(time.Since(began)/20, 10*time.Millisecond), 100*time.Millisecond)):
		case <-done:
			return fmt.Errorf("the process has ended: %w", err)
		case <-timeout.C:
			return err
		}
	}
}

// adminClient calls the proxies' admin interfaces, among others.
var adminClient = &http.Client{Timeout: patience}

func fetch(url string) ([]byte, error) {
	resp, err := adminClient.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return body, err
}
