package hostsim_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A module elsewhere that requires hostsim runs tests with it, and takes nothing but the engine and the engine's own
// requirement. Its test is a copy of this package's examples.
func TestModuleElsewhereNeedsTheEngineAlone(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	const name = "github.com/oncegate/oncegate/hostsim"
	for file, text := range map[string]string{
		"filter_test.go": strings.Replace(string(examples), "package hostsim_test", "package filter", 1),
		"go.mod":         "module example.test/filter\n\ngo 1.25.0\n\nrequire " + name + " v0.1.0\n\nreplace " + name + " => " + here + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // ends what hangs
	defer cancel()
	for _, args := range [][]string{{"mod", "tidy"}, {"test", "-v", "-count", "1", "."}} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		// `make modules` has put what hostsim requires into the cache, and make test has compiled it in this way.
		cmd.Env = append(os.Environ(), "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=-trimpath", "GOWORK=off", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
		if args[0] == "test" && !strings.Contains(string(out), "--- PASS: Example_callouts") {
			t.Errorf("the examples did not run:\n%s", out)
		}
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for line := range strings.Lines(string(sums)) {
		modules = append(modules, strings.Fields(line)[0])
	}
	slices.Sort(modules)
	if modules = slices.Compact(modules); !slices.Equal(modules, []string{"github.com/tetratelabs/wazero", "golang.org/x/sys"}) {
		t.Errorf("go.sum has %q", modules)
	}
}
