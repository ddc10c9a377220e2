//go:build schemathesis

package e2e

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSchemathesisFindsNothing lets schemathesis make requests of the description of the API, and judge the answers of a real manager.
// make test-long runs it.
func TestSchemathesisFindsNothing(t *testing.T) {
	packages, err := filepath.Abs("../../build/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	config, err := filepath.Abs("testdata/schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	budget := cmp.Or(os.Getenv("SCHEMATHESIS_SECONDS"), "600")
	for engine, settings := range map[string][]string{
		"wal": {"--data-dir", t.TempDir()}, "memory": {"--store", "memory"}, "sqlite": {"--store", "sqlite", "--data-dir", t.TempDir()},
	} {
		t.Run(engine, func(t *testing.T) {
			p := startManager(t, append(settings, "--pending-wait-timeout-seconds", "1")...)
			cmd := exec.CommandContext(t.Context(), "python3", "-m", "schemathesis.cli", "--config-file", config, "run", "--continue-on-failure", "--max-time", budget,
				"http://"+p.addr["api"]+"/openapi.json")
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "PYTHONPATH="+packages)
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
