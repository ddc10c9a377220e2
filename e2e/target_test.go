package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// Target is a kind of proxy that the gate runs in.
type Target interface {
	// Name is its name in tests.
	Name() string
	// Start brings up one proxy, which the caller stops. It may return one also with an
	// error.
	Start(cfg targetConfig) (*proxy, error)
}

// targetConfig is what a scenario needs from a proxy.
type targetConfig struct {
	dir      string         // for files, unique to the proxy
	mode     string         // "body" or "headers"
	plugin   map[string]any // further fields of the filter's configuration
	workers  int
	upstream string            // address
	manager  string            // address; "": there are only shards
	managers map[string]string // addresses of further managers by the names of their clusters
	module   string            // file of the gate; "": the one that ships
	// edit changes an Envoy's configuration further; other targets have none.
	edit func(*hcmv3.HttpConnectionManager) error
	// bootstrap does so with the rest of it.
	bootstrap func(*bootstrapv3.Bootstrap) error
}

// anyManager is the address for the cluster of the only manager, which nobody calls where there are shards.
func (c targetConfig) anyManager() string {
	if c.manager != "" {
		return c.manager
	}
	for _, address := range c.managers {
		return address
	}
	return ""
}

// pluginJSON is the filter's configuration.
func (c targetConfig) pluginJSON() ([]byte, error) {
	all := patientManager(c.plugin)
	if _, set := all["mode"]; !set {
		all["mode"] = c.mode
	}
	return json.Marshal(all)
}

// managerTimeout is how long the gate waits for the manager where a test does not say it: a machine that stands still for
// some seconds must not make a refusal of it.
const managerTimeout = 30 * time.Second

// patientManager copies fields of the filter's configuration and adds managerTimeout.
func patientManager(fields map[string]any) map[string]any {
	manager := map[string]any{"timeout_ms": managerTimeout.Milliseconds()}
	if own, ok := fields["manager"].(map[string]any); ok {
		maps.Copy(manager, own)
	}
	patient := map[string]any{}
	maps.Copy(patient, fields)
	patient["manager"] = manager
	return patient
}

// proxy is a running proxy.
type proxy struct {
	*process
	address string // of the last listener
	admin   string // the admin interface's URL
	// Of an Envoy only: addresses by name.
	listeners map[string]string
}

func (p *proxy) url(path string) string { return "http://" + p.address + path }

// targets are the proxies that can run here; set by TestMain.
var targets = []Target{gatewayTarget{}}

// findEnvoys adds the Envoys to the targets and tells what the tests run on.
func findEnvoys(ctx context.Context) error {
	found, missing, err := envoybin.ForTests(ctx, filepath.Join("..", "build", "toolchain"))
	if err != nil {
		return err
	}
	names := "gateway"
	for _, b := range found {
		targets = append(targets, envoyTarget{Binary: b})
		names += ", " + b.String()
	}
	fmt.Println("e2e runs on:", names)
	if len(missing) > 0 {
		fmt.Println("e2e does not run on:", missing)
		if envoybin.Required() {
			return errors.New("an Envoy is missing; run make test, which installs it")
		}
	}
	return nil
}

var modes = []string{"body", "headers"}

// modesOf are the modes in which a test runs on a target: both, but on Envoys other than the first only one, which the test's
// name decides, unless E2E_ALL_MODES is set (make test-envoys). Each start of an Envoy compiles the gate, which takes a second.
func modesOf(t *testing.T, target Target) []string {
	is := func(e Target) bool { return e.Name() == target.Name() }
	if !slices.ContainsFunc(envoys(), is) || is(envoys()[0]) || os.Getenv("E2E_ALL_MODES") != "" {
		return modes
	}
	i := crc32.ChecksumIEEE([]byte(t.Name())) % 2
	return modes[i : i+1]
}

// eachMode runs a scenario on every target in its modes, in parallel with each other and with other tests.
func eachMode(t *testing.T, scenario func(t *testing.T, target Target, mode string)) {
	t.Helper()
	eachOf(t, targets, scenario)
}

// eachEnvoy is eachMode on the real Envoys.
func eachEnvoy(t *testing.T, scenario func(t *testing.T, target Target, mode string)) {
	t.Helper()
	eachOf(t, envoys(), scenario)
}

// envoys are the targets that are real Envoys.
func envoys() (list []Target) {
	for _, target := range targets {
		if _, ok := target.(envoyTarget); ok {
			list = append(list, target)
		}
	}
	return list
}

func eachOf(t *testing.T, targets []Target, scenario func(t *testing.T, target Target, mode string)) {
	t.Helper()
	t.Parallel()
	sideBySide(t, targets, scenario)
}

// sideBySide runs a scenario on each target in its modes. Other tests run beside it only if the test is parallel.
func sideBySide(t *testing.T, targets []Target, scenario func(t *testing.T, target Target, mode string)) {
	t.Helper()
	for _, target := range targets {
		for _, mode := range modesOf(t, target) {
			t.Run(target.Name()+"/"+mode, func(t *testing.T) {
				t.Parallel()
				scenario(t, target, mode)
			})
		}
	}
}

// gatewayTarget is the gateway of this repository.
type gatewayTarget struct{}

// Name implements Target.
func (gatewayTarget) Name() string { return "gateway" }

// Start implements Target.
func (gatewayTarget) Start(cfg targetConfig) (*proxy, error) {
	config, err := cfg.pluginJSON()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(cfg.dir, "plugin.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	args := []string{
		"--wasm", cmp.Or(cfg.module, wasmModule), "--config", file, "--code-cache", filepath.Join(binDir, "code"),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--upstream", cfg.upstream, "--cluster", "oncegate_manager=" + cfg.anyManager(),
		"--workers", strconv.Itoa(cfg.workers), "--upstream-timeout", "3m",
	}
	for name, address := range cfg.managers {
		args = append(args, "--cluster", name+"="+address)
	}
	if cfg.mode == "body" {
		args = append(args, "--allow-on-headers-stop-iteration")
	}
	p, err := startProcess("gateway", filepath.Join(binDir, "gateway"), args...)
	if err != nil {
		return nil, err
	}
	started := &proxy{process: p}
	if started.address, err = p.addr("proxy"); err == nil {
		var admin string
		admin, err = p.addr("admin")
		started.admin = "http://" + admin
	}
	if err != nil {
		err = fmt.Errorf("%w; its configuration was %s", err, config)
	}
	return started, err
}
