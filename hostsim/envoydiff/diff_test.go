package envoydiff

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// TestAgainstEnvoy plays every case in hostsim and in each Envoy.
func TestAgainstEnvoy(t *testing.T) {
	found, missing, err := envoybin.ForTests(t.Context(), filepath.Join("..", "..", "build", "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	if len(missing) > 0 {
		if envoybin.Required() {
			t.Fatalf("not compared with %v (run make test, which installs it)", missing)
		}
		t.Logf("not compared with %v", missing)
	}
	if len(found) == 0 {
		t.Skip("hostsim was compared with no Envoy")
	}
	for _, b := range found {
		t.Run(b.Name(), func(t *testing.T) { compare(t, b) })
	}
}

// compare plays every case in hostsim and in one Envoy.
func compare(t *testing.T, b envoybin.Binary) {
	wasm, err := filepath.Abs(filepath.Join("..", "..", "build", "guests", "script.wasm"))
	if err != nil {
		t.Fatal(err)
	}
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
	e := startEnvoy(t, b.Path, sites, wasm)
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
					sw := &simWorld{simSite: sim, show: show, streams: map[string]*hostsimtest.Stream{}}
					rw := &realWorld{e: e, site: s, show: show, streams: map[string]*realStream{}}
					c.run(t, sw, rw, func() { e.barrier(t, probe) })
					e.barrier(t, probe)
					rw.poll(t)
				})
			}
		})
	}
}
