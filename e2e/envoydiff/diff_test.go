package envoydiff

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/hostsim"
)

// TestAgainstEnvoy plays every case in hostsim and in Envoy.
func TestAgainstEnvoy(t *testing.T) {
	wasm := scriptModule(t)
	guest := scriptGuest(t)
	for _, s := range sites {
		if s.policy == "" {
			s.policy = "FAIL_CLOSED"
		}
	}
	eachEnvoy(t, func(t *testing.T, bin string) {
		for _, s := range sites {
			s.upstreams, s.callees = newAcceptor(t), newAcceptor(t)
			if s.rpc {
				s.server = newRPCServer(t)
			}
		}
		e := startEnvoy(t, bin, sites, wasm)
		probe := &http.Client{Transport: &http.Transport{}}
		for _, s := range sites {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, e, guest, func() { e.barrier(t, probe) })
			})
		}
	})
}

// run plays a site's cases.
func (s *site) run(t *testing.T, e *envoy, guest hostsim.Source, barrier func()) {
	sim := startSim(t, s, guest)
	e.guestLines(t, s.name)
	for _, c := range s.cases {
		t.Run(c.fact+"_"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			select {
			case <-e.done:
				t.Fatal("Envoy has crashed in another case")
			default:
			}
			sim.log.tb = t
			show := strings.Fields(c.show)
			sw := &simWorld{simSite: sim, show: show, blind: c.blind, streams: map[string]*simStream{}}
			rw := &realWorld{e: e, site: s, show: show, blind: c.blind, streams: map[string]*realStream{}}
			c.run(t, sw, rw, barrier)
			barrier()
			rw.poll(t)
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

func scriptGuest(t *testing.T) hostsim.Source {
	t.Helper()
	module, err := os.ReadFile(scriptModule(t))
	if err != nil {
		t.Fatalf("%v (run `make guests` first)", err)
	}
	return hostsim.Wasm(module)
}

// eachEnvoy runs a test on each Envoy of this machine, one after the other. It says which
// are missing, and fails where they must not.
func eachEnvoy(t *testing.T, test func(t *testing.T, bin string)) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	found, missing, err := envoybin.ForTests(ctx, filepath.Join("..", "..", "build", "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range found {
		t.Run(b.Name(), func(t *testing.T) { test(t, b.Path) })
	}
	if len(missing) > 0 {
		text := fmt.Sprint("hostsim was not compared with ", missing)
		if envoybin.Required() {
			t.Fatal(text)
		}
		fmt.Println("e2e/envoydiff:", text)
		if len(found) == 0 {
			t.Skip(text)
		}
	}
}
