package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

// TestDoctorKnowsThisStack: `oncegate doctor` has no complaint about what `make run` starts, and names the manager that
// is gone.
func TestDoctorKnowsThisStack(t *testing.T) {
	bin := filepath.Join("..", "..", "build")
	proxy, err := stack.ChooseProxy(t.Context(), "envoy", bin)
	if err != nil {
		t.Fatal(err)
	}
	if proxy.Name() != "envoy" {
		t.Fatalf("the doctor looks at Envoy: %s", proxy)
	}
	for _, mode := range []string{"body", "headers"} {
		st, err := stack.Start(t.Context(), stack.Config{BinDir: bin, Dir: t.TempDir(), Proxy: proxy, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := st.Stop(); err != nil {
				t.Error(err)
			}
		}()
		examine := func() (code int, out string) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "oncegate"), "doctor", "--sample-seconds", "0.1", "--timeout-seconds", "60",
				"--manager", st.ManagerURL(), "--metrics", st.ManagerAdminURL(), "--envoy", st.ProxyAdminURL())
			b, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			return cmd.ProcessState.ExitCode(), string(b)
		}
		code, out := examine()
		warnings := strings.Count(out, "warn ") - strings.Count(out, "warn  manager: answers: ") // which a busy machine may deserve
		if code != 0 || warnings > 0 || strings.Count(out, "ok  ") < 15 {
			t.Errorf("mode %s: exit code %d:\n%s", mode, code, out)
		}
		if mode == "headers" {
			continue
		}
		st.KillManager()
		if code, out := examine(); code != 1 || !strings.Contains(out, "fail  manager: answers: ") || !strings.Contains(out, "-> start the manager") {
			t.Errorf("without a manager: exit code %d:\n%s", code, out)
		}
	}
}
