package cli

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// started runs a manager with --store wal until it is ready, and returns what it logged.
func started(t *testing.T, use func(addr string), args ...string) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	s := serveStore(t, nil, append([]string{"--store", "wal"}, args...)...)
	waitFor(t, "it is ready", func() bool { return strings.Contains(s.stderr.String(), `"msg":"ready"`) })
	use(s.addr)
	s.stop()
	if err := s.ended(t); err != nil {
		t.Fatal(err)
	}
	return s.stderr.String()
}

// line returns the line of a log that has a text, empty if there is none.
func line(log, text string) string {
	for l := range strings.Lines(log) {
		if strings.Contains(l, text) {
			return l
		}
	}
	return ""
}

func TestForeignFilesInTheDataDirectoryAreTold(t *testing.T) {
	dir := t.TempDir()
	nothing := func(string) {}
	const text = "--data-dir has files that no manager wrote"
	own := []string{"--data-dir", dir, "--admin", "unix:" + filepath.Join(dir, "admin")}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := line(started(t, nothing, own...), text); got != "" {
			t.Errorf("a directory of its own: %s", got)
		}
	}
	for _, name := range []string{"notes.txt", "a.wal"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := line(started(t, nothing, own...), text); !strings.Contains(got, `"count":2,"files":["a.wal","notes.txt"]`) {
		t.Errorf("logged %q", got)
	}
}

func TestWindowThatIsSmallerThanTheLedgerIsTold(t *testing.T) {
	dir := t.TempDir()
	const text = "the window is smaller than what the ledger holds"
	first := started(t, func(addr string) {
		for _, key := range []string{"a", "b", "c"} {
			if status, body := post(t, addr, "/v1/ledger/reserve", `{"key":"`+key+`","token":"t"}`); status != 201 {
				t.Fatalf("%d %s", status, body)
			}
		}
	}, "--data-dir", dir)
	if got := line(first, text); got != "" {
		t.Errorf("a new ledger: %s", got)
	}
	if got := line(started(t, func(string) {}, "--data-dir", dir, "--max-entries", "2"), text); !strings.Contains(got, `"entries":3,"max_entries":2,`) {
		t.Errorf("logged %q", got)
	}
}

// TestTheWindowIsTold: how many keys a second fit, and what they take.
func TestTheWindowIsTold(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", `"new_keys_per_second":111848,"of_one_scope":83886,"committed_ttl_seconds":300,"max_entries":33554432,"max_bytes":17179869184,"bytes_of":"disk"`},
		{"--committed-ttl-seconds 86400", `"new_keys_per_second":388,"of_one_scope":291,"committed_ttl_seconds":86400,`},
		{"--committed-ttl-seconds 86400 --max-bytes 536870912", `"new_keys_per_second":12,"of_one_scope":9,"committed_ttl_seconds":86400,"max_entries":1048576,`},
		{"--store memory", `"new_keys_per_second":3495,"of_one_scope":2621,"committed_ttl_seconds":300,"max_entries":1048576,"max_bytes":536870912,"bytes_of":"memory"`},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "--store") {
			args = append(args, "--data-dir", t.TempDir())
		}
		if got := line(started(t, func(string) {}, args...), `"msg":"window"`); !strings.Contains(got, c.want) {
			t.Errorf("%s: logged %q, want %s", c.args, got, c.want)
		}
	}
}

// A variable with a slip in its name changes nothing, so the start says so.
func TestServeTellsOfUnknownVariables(t *testing.T) {
	log := new(output)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, Environment{Stdout: log, Stderr: log, Getenv: noEnv, Environ: []string{"IDEMPOTENCY_MAX_ENTRYS=1", "ONCEGATE_LISTEN=x", "PATH=p"}},
			[]string{"--store", "memory", "--listen", "127.0.0.1:0"})
	}()
	waitFor(t, "it is ready", func() bool { return strings.Contains(log.String(), `"msg":"ready"`) })
	if got := line(log.String(), "no setting has the name"); !strings.Contains(got, `"level":"WARN"`) || !strings.Contains(got, `"variables":["IDEMPOTENCY_MAX_ENTRYS","ONCEGATE_LISTEN"]`) {
		t.Errorf("logged %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
