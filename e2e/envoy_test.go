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
	"time"

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
	config, err := envoy.Local{
		Mode: cfg.mode, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: cfg.upstream, Manager: cfg.manager,
		Module: wasmModule, Plugin: cfg.plugin, Edit: cfg.edit,
	}.Bootstrap()
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
