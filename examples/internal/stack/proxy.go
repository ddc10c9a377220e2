package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/envoy/envoybin"
)

// Proxy is the proxy that runs the gate.
type Proxy struct {
	// Envoy is the binary; the zero value means the gateway.
	Envoy envoybin.Binary
	// Why is the reason for the gateway when the user did not ask for it.
	Why string
}

// ChooseProxy finds the proxy that a user asked for: "envoy", or "gateway". If there is no Envoy it returns the gateway
// with Why. binDir is Config.BinDir. The error is for the command line, or a *envoybin.SettingError.
func ChooseProxy(ctx context.Context, want, binDir string) (Proxy, error) {
	switch want {
	case "gateway":
		return Proxy{}, nil
	case "envoy":
	default:
		return Proxy{}, fmt.Errorf("--proxy is %q, it must be envoy or gateway", want)
	}
	b, err := envoybin.Find(ctx, filepath.Join(binDir, "toolchain"))
	if errors.Is(err, envoybin.ErrNone) {
		return Proxy{Why: err.Error()}, nil
	}
	return Proxy{Envoy: b}, err
}

func (p Proxy) isEnvoy() bool { return p.Envoy.Path != "" }

// Name is the name of its process and its log file: envoy or gateway.
func (p Proxy) Name() string {
	if p.isEnvoy() {
		return "envoy"
	}
	return "gateway"
}

// String describes the proxy: its version and path, or why it is the gateway.
func (p Proxy) String() string {
	switch {
	case p.isEnvoy():
		return p.Envoy.String()
	case p.Why != "":
		return "gateway (" + p.Why + ")"
	}
	return "gateway"
}

// startProxy starts the proxy with the gate in it.
func (s *Stack) startProxy(ctx context.Context) error {
	start := s.startGateway
	if s.cfg.Proxy.isEnvoy() {
		start = s.startEnvoy
	}
	var err error
	// Through the gate to the upstream: then everything on the way answers.
	s.proxy, err = start(ctx, s.ProxyURL()+"/healthz")
	return err
}

// anonymous lets requests without credentials share their keys, so that a first curl needs no token.
const anonymous = "shared"

func (s *Stack) startGateway(ctx context.Context, ready string) (*process, error) {
	// The gateway has no inner listener with the routes, so the gate calls upstream itself.
	plugin := map[string]any{"upstream": map[string]any{}, "anonymous": anonymous}
	maps.Copy(plugin, s.cfg.Plugin)
	config, err := envoy.PluginConfig(s.cfg.Mode, plugin)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.cfg.Dir, "plugin.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	args := []string{
		"--wasm", filepath.Join(s.cfg.BinDir, "oncegate.wasm"),
		"--config", file,
		"--listen", address(s.Ports.Proxy),
		"--admin", address(s.Ports.ProxyAdmin),
		"--upstream", address(s.Ports.Payments),
		"--cluster", "oncegate_manager=h2c://" + address(s.Ports.Manager),
		"--workers", strconv.Itoa(s.cfg.Workers),
	}
	if s.cfg.Mode == "body" {
		args = append(args, "--allow-on-headers-stop-iteration")
	}
	return s.start(ctx, "gateway", "gateway", args, ready)
}

func (s *Stack) startEnvoy(ctx context.Context, ready string) (*process, error) {
	plugin := map[string]any{"anonymous": anonymous}
	local := envoy.Local{
		Mode: s.cfg.Mode, Plugin: plugin, Module: filepath.Join(s.cfg.BinDir, "oncegate.wasm"),
		Listen: address(s.Ports.Proxy), Admin: address(s.Ports.ProxyAdmin),
		Upstream: address(s.Ports.Payments), Manager: address(s.Ports.Manager),
	}
	if s.cluster != nil {
		local.Shared = s.shared()
		// Time for a new leader of etcd, on a busy machine too.
		plugin["manager"] = map[string]any{"cluster": "oncegate_manager", "timeout_ms": 20_000}
	}
	maps.Copy(plugin, s.cfg.Plugin)
	config, err := local.Bootstrap()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.cfg.Dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	return s.launch(ctx, program{
		name: "envoy", path: s.cfg.Proxy.Envoy.Path,
		args: []string{
			"--config-path", file, "--concurrency", strconv.Itoa(s.cfg.Workers),
			// Two stacks on one machine would share the files of hot restart.
			"--disable-hot-restart",
			"--log-level", "warning", "--component-log-level", "wasm:info",
			"--file-flush-interval-msec", "500", // the access log is meant to be read
		},
		logPath: s.logPath("envoy"),
		outPath: filepath.Join(s.cfg.Dir, "access.log"), // the published configurations log accesses to standard output
	}, ready)
}

// drainTime bounds how long running requests may take when Envoy is stopped.
const drainTime = 10 * time.Second

// drainEnvoy stops new connections and waits for the running requests, which SIGTERM would cut off. It ignores errors:
// the stop that follows meets them too.
func (s *Stack) drainEnvoy() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if _, err := ask(ctx, http.MethodPost, s.ProxyAdminURL()+"/drain_listeners"); err != nil {
		return
	}
	_ = s.proxy.waitReady(ctx, func(ctx context.Context) error {
		const idle = "http.ingress.downstream_rq_active: 0"
		text, err := ask(ctx, http.MethodGet, s.ProxyAdminURL()+"/stats?filter=^http.ingress.downstream_rq_active$")
		if err == nil && strings.TrimSpace(text) != idle {
			err = errors.New("requests are under way")
		}
		return err
	})
}

// ask returns the body of a 200 answer, which must arrive within a second.
func ask(ctx context.Context, method, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = true // there is no further request to that address
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return string(body), err
}
