package docs

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/oncegate/oncegate/"

// mayImport says what the packages of this repository may import of it: adapters the domain, the
// domain leaves, and never the other way. "x/..." stands for x and all below it. A new package needs
// a line here or a place in leaves, unless a name with "/..." covers it.
var mayImport = map[string][]string{
	// What the manager and its clients share.
	"manager/api/schema": {"manager/api"},

	// The description of the manager's API.
	"manager/internal/openapi/openapitest": {"manager/api", "manager/internal/openapi"},

	"plugin":                      {"plugin/sdk"},
	"plugin/sdk":                  {"manager/api", "plugin/cache", "plugin/gate"},
	"plugin/gate":                 {"manager/api", "plugin/cache", "plugin/config", "plugin/internal/fields", "plugin/internal/jsonguard", "plugin/request"},
	"plugin/request":              {"manager/api", "plugin/config", "plugin/internal/fields", "plugin/internal/jsonguard"},
	"plugin/config":               {"manager/api", "plugin/internal/jsonguard"},
	"plugin/cache":                {"manager/api"},
	"plugin/internal/nativeguest": {"hostsim", "manager/api", "plugin/cache", "plugin/gate"},
	"plugin/gatetest":             {"hostsim/...", "manager/api", "manager/managertest/..."},
	"plugin/wasmcheck":            {"hostsim"},

	"hostsim/...": {"hostsim/..."},

	"manager/client":            {"manager/api", "manager/api/schema", "manager/client/internal/wire"},
	"manager/client/admin":      {"manager/api", "manager/api/schema", "manager/client", "manager/client/internal/wire"},
	"manager/client/workertest": {"manager/client"},

	"manager/cmd/oncegate":      {"manager/internal/cli", "manager/internal/timers", "plugin/config"},
	"manager/internal/cli":      {"manager/api", "manager/internal/peers", "manager/internal/crypt", "manager/internal/store/sealed", "manager/client", "manager/client/admin", "manager/internal/app", "manager/internal/doctor", "manager/internal/httpd", "manager/internal/settings", "manager/internal/logs/...", "manager/internal/object/...", "manager/internal/quarantine", "manager/internal/ship", "manager/internal/ledger/window", domain, engines, "manager/internal/wal"},
	"manager/internal/app":      {"manager/api", "manager/internal/filelock", "manager/internal/peers", "manager/internal/crypt", "manager/internal/store/sealed", "manager/internal/home", "manager/internal/httpd", "manager/internal/server", "manager/internal/settings", "manager/internal/logs/...", "manager/internal/object/...", "manager/internal/quarantine", "manager/internal/scrape", "manager/internal/ship", "manager/internal/tracing", "manager/internal/ui", domain, engines, "manager/internal/wal"},
	"manager/internal/settings": {"manager/api", "manager/internal/peers", "manager/internal/httpd", "manager/internal/object", "manager/internal/store/etcd/dsn", "manager/internal/store/redis/dsn", domain},
	"manager/internal/server":   {"manager/api", "manager/api/schema", "manager/internal/home", "manager/internal/peers", "manager/internal/openapi", "manager/internal/httpd", "manager/internal/logs/...", "manager/internal/quarantine", "manager/internal/scrape", "manager/internal/submit", domain},
	"manager/internal/httpd":    {"manager/api", "manager/internal/scrape"},
	"manager/internal/ui":       {"manager/api", "manager/internal/httpd", domain},

	"manager/internal/submit":    {"manager/api", "manager/internal/batch", "manager/internal/jobs", "manager/internal/ledger", "manager/internal/store"},
	"manager/internal/jobs":      {"manager/api", "manager/internal/batch", "manager/internal/codec", contract},
	"manager/internal/schedules": {"manager/internal/codec", "manager/internal/jobs", contract},
	"manager/internal/ledger":    {"manager/api", "manager/internal/batch", "manager/internal/codec", "manager/internal/ledger/window", contract},
	"manager/internal/shard":     {"manager/api", "manager/internal/codec", contract},

	"manager/internal/ledger/window": {"manager/internal/store"},

	// What operators see: the recent past, and what there is.
	"manager/internal/ledger/journal": {"manager/internal/ledger"},
	"manager/internal/ledger/views":   {"manager/api", "manager/internal/ledger", "manager/internal/store"},

	// Other data centres.
	"manager/internal/home":  {"manager/api", "manager/internal/ledger"},
	"manager/internal/feed":  {"manager/api", "manager/internal/ledger", contract},
	"manager/internal/peers": {"manager/api", "manager/api/schema", "manager/internal/feed", "manager/internal/ledger", "manager/internal/shard", contract},

	"manager/internal/logs":              {"manager/api", "manager/internal/codec"},
	"manager/internal/logs/storelogs":    {"manager/internal/batch", "manager/internal/logs", contract},
	"manager/internal/object":            {"manager/internal/filelock", "manager/internal/object/sharedkey"},
	"manager/internal/object/objecttest": {"manager/internal/object/..."},
	"manager/internal/ship":              {"manager/internal/object", "manager/internal/scrape", "manager/internal/wal", "manager/internal/wal/vfs"},
	"manager/internal/quarantine":        {"manager/internal/store", "manager/internal/wal/vfs"},
	"manager/internal/doctor":            {"manager/api/schema"},

	"manager/internal/store/internal/...": {"manager/internal/batch", "manager/internal/codec", "manager/internal/store"},
	"manager/internal/store/notify":       {"manager/internal/store"},
	"manager/internal/store/unread":       {"manager/internal/store"},
	"manager/internal/store/downtime":     {"manager/internal/codec", "manager/internal/store"},
	"manager/internal/store/sealed":       {"manager/internal/crypt", "manager/internal/store"},
	"manager/internal/store/mem":          {"manager/internal/codec", "manager/internal/store", "manager/internal/store/internal/...", "manager/internal/store/notify", "manager/internal/store/state", "manager/internal/wal"},
	"manager/internal/store/state":        {"manager/internal/codec", "manager/internal/store", "manager/internal/store/internal/..."},
	"manager/internal/store/sqlite":       {"manager/internal/batch", "manager/internal/filelock", "manager/internal/store", "manager/internal/store/internal/...", "manager/internal/store/notify"},
	"manager/internal/store/redis":        {"manager/internal/batch", "manager/internal/store", "manager/internal/store/internal/...", "manager/internal/store/notify"},
	"manager/internal/store/postgres":     {"manager/internal/batch", "manager/internal/store", "manager/internal/store/internal/...", "manager/internal/store/notify"},

	"manager/internal/store/etcd": {"manager/internal/batch", "manager/internal/codec", "manager/internal/store", "manager/internal/store/internal/...", "manager/internal/store/notify",
		"manager/internal/store/etcd/dsn"},

	"manager/internal/wal":     {"manager/internal/wal/vfs"},
	"manager/internal/wal/vfs": {"manager/internal/filelock"},

	// Test helpers and suites.
	"manager/internal/wal/faultfs":       {"manager/internal/wal/vfs"},
	"manager/internal/store/storetest":   {"manager/internal/store", "manager/managertest/deep"},
	"manager/internal/jobs/jobstest":     {"manager/api", "manager/internal/jobs", "manager/internal/ledger", "manager/internal/submit", "manager/managertest/deep", contract},
	"manager/internal/ledger/ledgertest": {"manager/api", "manager/internal/feed", "manager/internal/ledger", "manager/internal/ledger/views", "manager/internal/shard", "manager/managertest/deep", contract},
	"manager/internal/httpd/httpdtest":   {"manager/api"},
	"manager/managertest":                {"manager/api", "manager/managertest/ports", "manager/internal/home", "manager/internal/httpd", "manager/internal/logs/...", "manager/internal/server", "manager/internal/ui", domain, engines},
	"manager/managertest/azuretest":      {"manager/internal/object/objecttest"},
	"manager/managertest/calls":          {"manager/api"},
	"manager/managertest/metered":        {contract},
	"manager/managertest/simulated": {"manager/api", "manager/internal/home", "manager/internal/httpd", "manager/internal/peers", "manager/internal/quarantine", "manager/internal/server", domain, engines,
		"manager/internal/ledger/ledgertest", "manager/internal/wal/..."},

	"envoy/...":        {"envoy/..."},
	"examples/...":     {"envoy/...", "examples/...", "manager/api", "manager/client", "manager/managertest/ports"},
	"e2e/internal/sim": {"manager/api", "manager/managertest/simulated", "plugin/cache", "plugin/gate"},

	// Modules that tests build for wasm.
	"e2e/testdata/modules/...":      {"plugin/..."},
	"hostsim/testdata/...":          {"hostsim/..."},
	"plugin/gatebench/testdata/...": {"plugin/..."},
}

// leaves are the packages that import nothing of this repository.
var leaves = []string{
	"docs", "charts/telemetry", "manager/api", "manager/internal/openapi", "plugin/internal/fields", "plugin/internal/jsonguard",
	"plugin/gatebench", "manager/client/internal/wire", "manager/internal/tracing",
	"manager/internal/codec", "manager/internal/object/sharedkey", "manager/internal/crypt", "manager/internal/store",
	"manager/internal/store/etcd/dsn", "manager/internal/store/redis/dsn", "manager/internal/filelock", "manager/internal/scrape", "manager/internal/batch", "manager/internal/timers",
	"manager/e2e", "manager/internal/apitest", "manager/internal/clienttest/...", "manager/managertest/deep",
	"manager/managertest/ports", "manager/managertest/servers", "manager/managertest/tracetest", "e2e", "e2e/envoydiff",
}

func init() {
	for _, name := range leaves {
		mayImport[name] = nil
	}
}

// Short for several packages each.
const (
	contract = "store and what every engine has"
	domain   = "jobs, schedules, ledger with journal and views, feed, shard and the store"
	engines  = "all engines"
)

var shorthand = map[string][]string{
	contract: {"manager/internal/store", "manager/internal/store/unread"},
	domain: {"manager/internal/jobs", "manager/internal/schedules", "manager/internal/ledger", "manager/internal/ledger/journal", "manager/internal/ledger/views", "manager/internal/feed", "manager/internal/shard", "manager/internal/store",
		"manager/internal/store/unread", "manager/internal/store/downtime"},
	engines: {"manager/internal/store/mem", "manager/internal/store/sqlite", "manager/internal/store/redis", "manager/internal/store/postgres",
		"manager/internal/store/etcd"},
}

// librariesIn says which packages may import a library that the others must not depend on, tests included.
var librariesIn = map[string][]string{
	"github.com/cockroachdb/pebble": {"manager/internal/store/state", "manager/internal/store/mem", "manager/internal/wal/faultfs"},
}

// testsMayImport is what the tests of each part may import besides.
var testsMayImport = map[string][]string{
	"plugin/...":   {"plugin/...", "hostsim/...", "manager/api", "manager/managertest/..."},
	"manager/...":  {"manager/..."},
	"envoy/...":    {"envoy/...", "plugin/config"},
	"examples/...": {"envoy/...", "examples/...", "manager/client/...", "manager/managertest/..."},
	"e2e/...":      {"envoy/...", "hostsim/...", "manager/api", "manager/client/...", "manager/managertest/...", "plugin/..."},
}

// covers reports whether a name of the tables means a package.
func covers(name, pkg string) bool {
	below, all := strings.CutSuffix(name, "/...")
	return pkg == below || all && strings.HasPrefix(pkg, below+"/")
}

// ruleOf returns the entry that covers a package, the longest one of several.
func ruleOf(table map[string][]string, pkg string) (may []string, ok bool) {
	longest := ""
	for name := range maps.Keys(table) {
		if covers(name, pkg) && len(name) > len(longest) {
			longest = name
		}
	}
	return table[longest], longest != ""
}

// allowed reports whether a list has a package.
func allowed(list []string, pkg string) bool {
	return slices.ContainsFunc(list, func(name string) bool {
		return covers(name, pkg) || allowed(shorthand[name], pkg)
	})
}

// TestArchitectureNamesEveryPackage: a newcomer finds each package of the table in ARCHITECTURE.md, by its path or, below
// manager/internal/store, by its path there.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range mayImport {
		pkg := strings.TrimSuffix(name, "/...")
		short := strings.TrimPrefix(pkg, "manager/internal/store/")
		if strings.Contains(pkg, "testdata") || pkg == "docs" || pkg == "manager/internal/store/internal" {
			continue
		}
		if !strings.Contains(string(text), "`"+pkg+"`") && !strings.Contains(string(text), "`"+short+"`") {
			t.Errorf("docs/ARCHITECTURE.md does not name %s", pkg)
		}
	}
}

// TestImportsPointInOneDirection holds all packages to mayImport. That nothing outside of manager
// imports manager/internal, the compiler sees to.
func TestImportsPointInOneDirection(t *testing.T) {
	packages := 0
	for folder, patterns := range map[string][]string{
		".":       {module + "...", "./plugin/gatebench/testdata/...", "./e2e/testdata/..."},
		"hostsim": {"./testdata/..."},
	} {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports"}, patterns...)...)
		cmd.Dir = filepath.Join(root, folder)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for d := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p struct {
				ImportPath                         string
				Imports, TestImports, XTestImports []string
			}
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			packages++
			pkg := strings.TrimPrefix(p.ImportPath, module)
			may, ok := ruleOf(mayImport, pkg)
			if !ok {
				t.Errorf("%s: a package of which docs/imports_test.go does not say what it may import", pkg)
			}
			for _, imported := range p.Imports {
				if ours, ok := strings.CutPrefix(imported, module); ok && !allowed(may, ours) {
					t.Errorf("%s must not import %s; it may import %q", pkg, ours, may)
				}
			}
			tests := slices.Concat(p.TestImports, p.XTestImports)
			for library, in := range librariesIn {
				for _, imported := range slices.Concat(p.Imports, tests) {
					if strings.HasPrefix(imported+"/", library+"/") && !slices.Contains(in, pkg) {
						t.Errorf("%s must not import %s; %q may", pkg, imported, in)
					}
				}
			}
			inTests, _ := ruleOf(testsMayImport, pkg)
			for _, imported := range tests {
				if ours, ok := strings.CutPrefix(imported, module); ok && ours != pkg && !allowed(may, ours) && !allowed(inTests, ours) {
					t.Errorf("tests of %s must not import %s; they may import %q", pkg, ours, slices.Concat(may, inTests))
				}
			}
		}
	}
	if packages < 60 {
		t.Errorf("go list has only %d packages", packages)
	}
}
