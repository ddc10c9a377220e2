package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// An ordinary client library, stripe-python, gives up after a second, repeats by itself, and gets the answer of work that
// took longer. The test runs examples/stripe unchanged.
func TestStockClientThatRepeatsByItself(t *testing.T) {
	library := filepath.Join("..", "build", "python")
	if _, err := os.Stat(filepath.Join(library, "stripe")); err != nil {
		if envoybin.Required() {
			t.Fatal("stripe-python is missing; run make build/python: ", err)
		}
		t.Skip("stripe-python is missing; run make build/python")
	}
	eachWay(t, func(t *testing.T, target Target, plugin map[string]any) {
		s := newStack(t, target, "body", plugin)
		// The example's patience is part of it: on a machine that is too busy for any answer within a second it says so.
		const tries = 5
		for try := 1; ; try++ {
			cmd := exec.CommandContext(t.Context(), "python3", filepath.Join("..", "examples", "stripe", "charge.py"), "http://"+s.proxies[0].address)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+library, "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*")
			var out, log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &log
			err := cmd.Run()
			text, ferr := fetch("http://" + s.paymentsAddr + "/executions")
			if ferr != nil {
				t.Fatal(ferr)
			}
			var counts struct {
				Total int            `json:"total"`
				Keys  map[string]int `json:"keys"`
			}
			if err := json.Unmarshal(text, &counts); err != nil {
				t.Fatal(err)
			}
			if counts.Total > try || len(counts.Keys) != counts.Total {
				t.Fatalf("after %d payments: executed %s\n%s", try, text, &log)
			}
			if err == nil {
				if !strings.HasSuffix(out.String(), " 100 eur replayed\n") || counts.Keys == nil {
					t.Errorf("it printed %q\n%s", &out, &log)
				}
				return
			}
			if try == tries {
				t.Fatalf("%v\n%s", err, &log)
			}
		}
	})
}
