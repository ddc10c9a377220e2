package e2e

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// A manager that requires a synchronous standby refuses calls without one, at its start and later, and says so.
func TestManagerRequiresStandbys(t *testing.T) {
	t.Parallel()
	primary := servers.Postgres(t)
	standby := servers.PostgresStandby(t, primary, "s1")
	addrFile := filepath.Join(t.TempDir(), "addr")
	p := spawn(t, environ(nil).command(t, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--addr-file", addrFile,
		"--store", "postgres", "--store-dsn", primary.URL, "--store-require-sync-standbys", "1"))
	var addr map[string]string
	ask := func(listener, method, path, body string) (int, string, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr[listener]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", err.Error() // while one server takes the listener from the other
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After"), string(text)
	}
	reserve := func(key string) (int, string, string) {
		return ask("api", "POST", "/v1/ledger/reserve", `{"key":"`+key+`","token":"t"}`)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s never happened: %s", what, p.stderr)
			}
		}
	}
	ready := func(listener string, want int) {
		t.Helper()
		until("readiness", func() bool { status, _, _ := ask(listener, "GET", "/readyz", ""); return status == want })
	}
	refused := func(why string) {
		t.Helper()
		for _, listener := range []string{"api", "admin"} {
			ready(listener, 503)
			if _, _, text := ask(listener, "GET", "/readyz", ""); !strings.Contains(text, why) {
				t.Errorf("%s, want %s", text, why)
			}
			if status, _, text := ask(listener, "GET", "/healthz", ""); status != 200 {
				t.Errorf("/healthz: %d %s", status, text)
			}
		}
		if status, after, text := reserve("refused"); status != 503 || after == "" {
			t.Errorf("%d, Retry-After %q: %s", status, after, text)
		}
	}

	until("the file of addresses", func() bool { addr = readAddresses(addrFile); return addr != nil })
	refused("synchronous_standby_names is empty")

	admin, err := pgx.Connect(t.Context(), primary.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, q := range []string{`ALTER SYSTEM SET synchronous_standby_names = 's1'`, `SELECT pg_reload_conf()`} {
		if _, err := admin.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	ready("api", 200)
	ready("admin", 200)
	if status, _, text := reserve("a"); status != 201 {
		t.Errorf("%d %s", status, text)
	}
	if _, _, text := ask("api", "GET", "/v1/ledger/stats", ""); !strings.Contains(text, `"sync_standbys":{"connected":1,"required":1}`) {
		t.Error(text)
	}
	if _, _, text := ask("admin", "GET", "/metrics", ""); !strings.Contains(text, "\noncegate_store_sync_standbys 1\n") || !strings.Contains(text, "\noncegate_store_sync_standbys_required 1\n") {
		t.Error("no metrics of the standbys")
	}

	standby.Kill()
	refused("0 synchronous standbys of the Postgres server are connected, 1 are required")
	if status, _, text := ask("api", "GET", "/v1/ledger/stats", ""); status != 200 || !strings.Contains(text, `"sync_standbys":{"connected":0,"required":1}`) {
		t.Error(text)
	}
	if err := standby.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready("api", 200)
	if status, _, text := reserve("b"); status != 201 {
		t.Errorf("%d %s", status, text)
	}
}
