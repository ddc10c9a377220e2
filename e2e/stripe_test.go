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
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		s := newStack(t, target, "body", plugin)
		before, _ := executed(t, s) // a stack may have sent its own calls to get ready
		// The example's patience is part of it: on a machine that is too busy for any answer within a second it says so.
		const tries = 5
		for try := 1; ; try++ {
			cmd := exec.CommandContext(t.Context(), "python3", filepath.Join("..", "examples", "stripe", "charge.py"), "http://"+s.proxies[0].address)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+library, "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*")
			var out, log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &log
			err := cmd.Run()
			counts, text := executed(t, s)
			if counts.Total-before.Total > try || len(counts.Keys) != counts.Total {
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

// executions is what the upstream did, in all and by key.
type executions struct {
	Total int            `json:"total"`
	Keys  map[string]int `json:"keys"`
}

func executed(t *testing.T, s *stack) (counts executions, text []byte) {
	t.Helper()
	text, err := fetch("http://" + s.paymentsAddr + "/executions")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &counts); err != nil {
		t.Fatal(err)
	}
	return counts, text
}
