package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

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
	// edit changes the configuration further.
	edit func(*hcmv3.HttpConnectionManager) error
	// bootstrap does so with the rest of it.
	bootstrap func(*bootstrapv3.Bootstrap) error
}

// anyManager is the address for the cluster of the only manager, which no gate calls where there are shards.
func (c targetConfig) anyManager() string {
	if c.manager != "" {
		return c.manager
	}
	for _, address := range c.managers {
		return address
	}
	return ""
}

// managerTimeout is how long the gate waits for the manager where a test does not say it: a machine that stands still for
// some seconds must not make a refusal of it.
const managerTimeout = 30 * time.Second

// refusalTimeout replaces managerTimeout where a test waits until the gate refuses, because the manager is gone.
const refusalTimeout = 10 * time.Second

// refusing are the fields that set it.
func refusing() map[string]any {
	return map[string]any{"manager": map[string]any{"timeout_ms": refusalTimeout.Milliseconds()}}
}

// complete copies fields of the filter's configuration and adds managerTimeout, and that callers share their keys, because
// most tests are about one caller.
func complete(fields map[string]any) map[string]any {
	manager := map[string]any{"timeout_ms": managerTimeout.Milliseconds()}
	if own, ok := fields["manager"].(map[string]any); ok {
		maps.Copy(manager, own)
	}
	all := map[string]any{"anonymous": "shared"}
	maps.Copy(all, fields)
	all["manager"] = manager
	return all
}

// proxy is a running proxy.
type proxy struct {
	*process
	address string // of the last listener
	admin   string // the admin interface's URL
	// Of an Envoy only: addresses by name.
	listeners map[string]string
	host      *envoyHost // of a guest
}

func (p *proxy) url(path string) string { return "http://" + p.address + path }

// envoys are the proxies that the tests run on; set by TestMain.
var envoys []envoyTarget

// findEnvoys finds the Envoys and says what the tests run on.
func findEnvoys(ctx context.Context) error {
	found, missing, err := envoybin.ForTests(ctx, filepath.Join("..", "build", "toolchain"))
	if err != nil {
		return err
	}
	names := make([]string, len(found))
	for i, b := range found {
		envoys = append(envoys, envoyTarget{Binary: b})
		names[i] = b.String()
	}
	fmt.Println("e2e runs on:", strings.Join(names, ", "))
	if len(missing) > 0 {
		fmt.Println("e2e does not run on:", missing)
	}
	if len(envoys) == 0 || len(missing) > 0 && envoybin.Required() {
		return errors.New("an Envoy is missing; run make test, which installs it")
	}
	return nil
}

// cell is a position in the matrix of a test.
type cell struct {
	target envoyTarget
	mode   string
}

var modes = []string{"body", "headers"}

// cells are the cells that a test runs in: one of them in make test; in make test-deep, as many others as it needs to run on
// each Envoy and in each mode (package deep); and all if ENVOYS names the versions (make test-envoys).
func cells(t *testing.T, modes ...string) []cell {
	if everyCell() {
		return racing(allCells(modes))
	}
	var chosen []cell
	for _, at := range deep.Crossed(t, len(envoys), len(modes)) {
		chosen = append(chosen, cell{envoys[at[0]], modes[at[1]]})
	}
	return racing(chosen)
}

// everyCell reports whether each test runs in all of its cells.
func everyCell() bool { return os.Getenv(envoybin.ListEnv) != "" }

func allCells(modes []string) (all []cell) {
	for _, target := range envoys {
		for _, mode := range modes {
			all = append(all, cell{target, mode})
		}
	}
	return all
}

// racing returns the cells. In a deep run, the first of them has the race detector in its programs: the cells of a test differ
// in the proxy, and the programs run the same code in all of them.
func racing(chosen []cell) []cell {
	if deep.On() {
		chosen[0].target.racing = true
	}
	return chosen
}

// eachCell runs a scenario in the whole matrix, which make test and make test-deep divide: what it shows can differ for a mode
// of one Envoy.
func eachCell(t *testing.T, scenario func(t *testing.T, target envoyTarget, mode string)) {
	t.Helper()
	t.Parallel()
	chosen := allCells(modes)
	if !everyCell() {
		chosen = deep.Cells(t, chosen)
	}
	inCells(t, racing(chosen), scenario)
}

// eachEnvoy runs a scenario in the cells of a test, in parallel with each other and with other tests.
func eachEnvoy(t *testing.T, scenario func(t *testing.T, target envoyTarget, mode string)) {
	t.Helper()
	t.Parallel()
	sideBySide(t, modes, scenario)
}

// eachVersion is eachEnvoy for scenarios of body mode, and for those that have no mode.
func eachVersion(t *testing.T, scenario func(t *testing.T, target envoyTarget)) {
	t.Helper()
	t.Parallel()
	sideBySide(t, modes[:1], func(t *testing.T, target envoyTarget, _ string) { scenario(t, target) })
}

// sideBySide runs a scenario in the cells of a test. Other tests run beside it only if the test is parallel.
func sideBySide(t *testing.T, modes []string, scenario func(t *testing.T, target envoyTarget, mode string)) {
	t.Helper()
	inCells(t, cells(t, modes...), scenario)
}

func inCells(t *testing.T, cells []cell, scenario func(t *testing.T, target envoyTarget, mode string)) {
	t.Helper()
	for _, c := range cells {
		t.Run(c.target.Name()+"/"+c.mode, func(t *testing.T) {
			t.Parallel()
			scenario(t, c.target, c.mode)
		})
	}
}
