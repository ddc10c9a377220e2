package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// startFiles starts an Envoy with the published files of xDS: those of envoy/xds, and those of a variant over them. Each text
// of addresses that occurs in them is replaced. timeout is how long the gate waits for the manager.
func (s *stack) startFiles(t *testing.T, variant string, timeout time.Duration, addresses map[string]string) *proxy {
	t.Helper()
	module, err := filepath.Abs(wasmModule)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.dir, "xds")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, from := range []string{"../envoy/xds", filepath.Join("../envoy/xds", variant)} {
		files, err := filepath.Glob(from + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatal(from, files, err)
		}
		for _, file := range files {
			sources[filepath.Base(file)] = file
		}
	}
	replaced := map[string]bool{}
	for name, file := range sources {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("/etc/oncegate/xds", dir, "/etc/oncegate/oncegate.wasm", module).Replace(string(b))
		for old, here := range addresses {
			if strings.Contains(text, old) {
				text, replaced[old] = strings.ReplaceAll(text, old, here), true
			}
		}
		// Times in which a loaded machine does nothing.
		text = regexp.MustCompile(`connect_timeout: \ds| timeout: 15s`).ReplaceAllStringFunc(text, func(s string) string {
			setting, _, _ := strings.Cut(s, ":")
			return fmt.Sprintf("%s: %.0fs", setting, 2*patience.Seconds())
		})
		text = regexp.MustCompile(`"timeout_ms": \d+`).ReplaceAllString(text, fmt.Sprintf(`"timeout_ms": %d`, timeout.Milliseconds()))
		if left := regexp.MustCompile(`.*(?:/etc/|svc\.cluster|0\.0\.0\.0).*`).FindString(text); left != "" {
			t.Errorf("%s: not replaced: %s", file, left)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for old := range addresses {
		if !replaced[old] {
			t.Errorf("no file has %q", old)
		}
	}
	config, err := os.ReadFile(filepath.Join(dir, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if config, err = yaml.YAMLToJSONStrict(config); err != nil {
		t.Fatal(err)
	}
	p, err := s.target.start(filepath.Join(s.dir, "envoy"), config, 2, "--use-dynamic-base-id", "--disable-hot-restart")
	if p != nil {
		s.proxies = append(s.proxies, p)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.address = p.listeners["ingress"]
	return p
}

// published are addresses in the files of xDS that all variants have.
func (s *stack) published() map[string]string {
	return map[string]string{
		"{address: 0.0.0.0, port_value: 10000}":  "{address: 127.0.0.1, port_value: 0}",
		"{address: 127.0.0.1, port_value: 9901}": "{address: 127.0.0.1, port_value: 0}",
		"{address: 127.0.0.1, port_value: 9000}": inYAML(s.paymentsAddr),
		// The test has one caller, without credentials.
		`"mode": "body",`: `"mode": "body", "anonymous": "shared",`,
	}
}

func inYAML(address string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf("{address: %s, port_value: %s}", host, port)
}

const publishedManager = "{address: oncegate-manager-%d.oncegate-manager.oncegate.svc.cluster.local, port_value: 8090}"

// The published files of xDS for shards and for managers that share a store are what a real Envoy runs.
func TestPublishedXDSFiles(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		t.Run("shards", func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, target, "body")
			addresses := f.published()
			for i := range 2 {
				name := fmt.Sprintf("oncegate_manager_%d", i)
				f.startShard(t, name)
				addresses[fmt.Sprintf(publishedManager, i)] = inYAML(f.shards[name].addr)
			}
			p := f.startFiles(t, "shards", refusalTimeout, addresses)
			wantFirst(t, p, pay(newKey()), 201)
			scope, list := f.scope(t), []string{"oncegate_manager_0", "oncegate_manager_1"}
			for _, name := range list {
				for _, key := range keysOf(scope, list, name, 3) {
					first := wantFirst(t, p, pay(key), 201)
					wantReplay(t, p, pay(key), first)
					f.wantExecutions(t, key, 1)
				}
			}
			f.shards[list[1]].kill()
			refused(t, p, keysOf(scope, list, list[1], 1)[0])
			wantFirst(t, p, pay(keysOf(scope, list, list[0], 1)[0]), 201)
			p.wantNothingDeprecated(t)
		})
		t.Run("managers", func(t *testing.T) {
			t.Parallel()
			s := &stack{dir: t.TempDir(), target: target, mode: "body"}
			store := servers.Redis(t)
			s.stopAtEnd(t)
			s.startPayments(t)
			addresses := s.published()
			var managers []*process
			for i := range 2 {
				m, err := startProcess("oncegate", target.program("oncegate"), "serve", "--store", "redis", "--store-dsn", store.URL,
					"--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s.started, managers = append(s.started, m), append(managers, m)
				api, err := m.addr("api")
				if err != nil {
					t.Fatal(err)
				}
				admin, err := m.addr("admin")
				if err != nil {
					t.Fatal(err)
				}
				const health = "\n                health_check_config: {port_value: %s}"
				_, port, _ := strings.Cut(admin, ":")
				addresses[fmt.Sprintf(publishedManager+health, i, "8091")] = inYAML(api) + fmt.Sprintf(health, port)
			}
			p := s.startFiles(t, "managers", managerTimeout, addresses)
			keys := map[string]answer{}
			for range 4 {
				key := newKey()
				keys[key] = eventuallyPaid(t, "the managers are healthy", p, key)
			}
			// No client notices that a manager is killed.
			c := s.load(t, s.askOnce(t))
			c.await(t, 100)
			managers[0].kill()
			c.await(t, c.answered()+200)
			c.end()
			for key, first := range keys {
				wantReplay(t, p, pay(key), first)
				s.wantExecutions(t, key, 1)
			}
			p.wantNothingDeprecated(t)
		})
	})
}
