package envoydiff

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

const notRun = "hostsim/envoydiff: hostsim was not compared with Envoy: no envoy binary (ENVOY_BIN or PATH)"

// TestAgainstEnvoy plays every case in hostsim and in Envoy.
func TestAgainstEnvoy(t *testing.T) {
	requireEnvoy(t)
	wasm := scriptModule(t)
	module, err := os.ReadFile(wasm)
	if err != nil {
		t.Fatalf("%v (run `make guests` first)", err)
	}
	guest := hostsim.Wasm(module)
	for _, s := range sites {
		if s.policy == "" {
			s.policy = "FAIL_CLOSED"
		}
		s.upstreams, s.callees = newAcceptor(t), newAcceptor(t)
	}
	e := startEnvoy(t, sites, wasm)
	probe := &http.Client{Transport: &http.Transport{}}
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			sim := startSim(t, s, guest)
			e.guestLines(t, s.name)
			for _, c := range s.cases {
				t.Run(c.fact+"_"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
					sim.log.tb = t
					show := strings.Fields(c.show)
					sw := &simWorld{simSite: sim, show: show, blind: c.blind, streams: map[string]*hostsimtest.Stream{}}
					rw := &realWorld{e: e, site: s, show: show, blind: c.blind, streams: map[string]*realStream{}}
					c.run(t, sw, rw, func() { e.barrier(t, probe) })
					e.barrier(t, probe)
					rw.poll(t)
				})
			}
		})
	}
}

// scriptModule is the path of the script guest.
func scriptModule(t *testing.T) string {
	t.Helper()
	wasm, err := filepath.Abs(filepath.Join("..", "..", "build", "guests", "script.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// requireEnvoy says which Envoy the test uses. Without one it ends it, in CI as a failure.
func requireEnvoy(t *testing.T) {
	t.Helper()
	bin := envoyBinary()
	if bin == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(notRun)
		}
		t.Skip(notRun)
	}
	version, err := exec.Command(bin, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --version: %v\n%s", bin, err, version)
	}
	t.Logf("compared with %s", strings.TrimSpace(string(version)))
}
