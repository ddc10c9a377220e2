package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/envoy/envoybin"
)

// envoyTarget is a real Envoy with a configuration of package envoy.
type envoyTarget struct{ envoybin.Binary }

// Start implements Target.
func (e envoyTarget) Start(cfg targetConfig) (*proxy, error) {
	if err := os.MkdirAll(cfg.dir, 0o755); err != nil {
		return nil, err
	}
	config, err := envoyConfig(cfg)
	if err != nil {
		return nil, err
	}
	file, adminFile := filepath.Join(cfg.dir, "envoy.json"), filepath.Join(cfg.dir, "admin-address")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess(e.Name(), e.Path, "--config-path", file, "--admin-address-path", adminFile,
		"--concurrency", strconv.Itoa(cfg.workers), "--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "warning")
	if err != nil {
		return nil, err
	}
	address, err := envoyAddress(p, adminFile)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, p.tail(60))
	}
	return &proxy{p, address}, err
}

// envoyConfig is the published configuration with this test's addresses.
func envoyConfig(cfg targetConfig) ([]byte, error) {
	name := "envoy.yaml"
	if cfg.mode == "headers" {
		name = "headers-mode.yaml"
	}
	b, err := envoy.LoadBootstrap(name)
	if err != nil {
		return nil, err
	}
	if err := setPort(b.GetAdmin().GetAddress(), "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if err := setPort(b.GetStaticResources().GetListeners()[0].GetAddress(), "127.0.0.1:0"); err != nil {
		return nil, err
	}
	for cluster, address := range map[string]string{"upstream": cfg.upstream, "oncegate_manager": cfg.manager} {
		if err := setEndpoint(b, cluster, address); err != nil {
			return nil, err
		}
	}
	err = envoy.Edit(b, func(hcm *hcmv3.HttpConnectionManager, plugin *wasmv3.PluginConfig) error {
		plugin.GetVmConfig().GetCode().GetLocal().Specifier = &corev3.DataSource_Filename{Filename: wasmModule}
		text, err := envoy.PluginJSON(plugin)
		if err != nil {
			return err
		}
		merged := map[string]any{}
		if err := json.Unmarshal(text, &merged); err != nil {
			return err
		}
		for k, v := range cfg.plugin {
			merged[k] = v
		}
		if text, err = json.Marshal(merged); err != nil {
			return err
		}
		if cfg.edit != nil {
			if err := cfg.edit(hcm); err != nil {
				return err
			}
		}
		return envoy.SetPluginJSON(plugin, text)
	})
	if err != nil {
		return nil, err
	}
	if err := envoy.Validate(b); err != nil {
		return nil, err
	}
	return envoy.MarshalBootstrap(b)
}

func setPort(a *corev3.Address, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	s := a.GetSocketAddress()
	s.Address, s.PortSpecifier = host, &corev3.SocketAddress_PortValue{PortValue: uint32(n)}
	return nil
}

func setEndpoint(b *bootstrapv3.Bootstrap, cluster, address string) error {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == cluster {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
			return setPort(c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress(), address)
		}
	}
	return fmt.Errorf("no cluster %q", cluster)
}

// envoyAddress waits for the admin interface and asks it for the listener's address once
// the server is live.
func envoyAddress(p *process, adminFile string) (string, error) {
	var listeners struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	address := ""
	err := poll(p.done, func() error {
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		url := "http://" + strings.TrimSpace(string(admin))
		if _, err := fetch(url + "/ready"); err != nil {
			return err
		}
		text, err := fetch(url + "/listeners?format=json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &listeners); err != nil {
			return err
		}
		if len(listeners.Statuses) != 1 || listeners.Statuses[0].Address.Socket.Port == 0 {
			return fmt.Errorf("listeners: %s", text)
		}
		s := listeners.Statuses[0].Address.Socket
		address = net.JoinHostPort(s.Address, strconv.Itoa(s.Port))
		return nil
	})
	return address, err
}

// poll asks until f succeeds; it gives up when done is closed or nothing helps.
func poll(done <-chan struct{}, f func() error) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
			return fmt.Errorf("the process has ended: %w", err)
		case <-timeout.C:
			return err
		}
	}
}

func fetch(url string) ([]byte, error) {
	resp, err := http.Get(url)
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

// What real Envoys would be given is well-formed, also where none is there to say so.
func TestEnvoyConfigurations(t *testing.T) {
	for _, mode := range modes {
		text, err := envoyConfig(targetConfig{
			mode: mode, upstream: "127.0.0.1:1", manager: "127.0.0.1:2", plugin: map[string]any{"max_entries": 4096},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{wasmModule, `"port_value":1`, `"port_value":2`, `\"max_entries\":4096`, `\"mode\":\"` + mode} {
			if !strings.Contains(strings.ReplaceAll(string(text), ": ", ":"), want) {
				t.Errorf("%s mode: no %s in %s", mode, want, text)
			}
		}
	}
}
