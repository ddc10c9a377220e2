package e2e

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// While the store's server is away every call gets 503, and the manager is not ready. It is ready again once the server is
// back. Its process is well all the time.
func TestReadinessFollowsTheStore(t *testing.T) {
	t.Parallel()
	engines := map[string]func(*testing.T) *servers.Server{
		"redis":    func(t *testing.T) *servers.Server { return servers.Redis(t) },
		"postgres": func(t *testing.T) *servers.Server { return servers.Postgres(t) },
		"etcd":     func(t *testing.T) *servers.Server { return servers.Etcd(t) },
	}
	each(t, deep.Keys(t, engines), func(t *testing.T, engine string) {
		server := engines[engine](t)
		p := startManager(t, "--admin", "127.0.0.1:0", "--store", engine, "--store-dsn", server.URL)
		for range 2 {
			server.Kill()
			waitFor(t, "it is not ready", func() bool { status, _ := get(t, p.addr["api"], "/readyz"); return status == 503 })
			if _, text := get(t, p.addr["api"], "/readyz"); !strings.Contains(text, "no write has reached the store for") {
				t.Error(text)
			}
			if status, text := get(t, p.addr["api"], "/healthz"); status != 200 {
				t.Errorf("/healthz: %d %s", status, text)
			}
			if _, text := get(t, p.addr["admin"], "/metrics"); !strings.Contains(text, "\noncegate_ready 0\n") {
				t.Error("oncegate_ready is not 0")
			}
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "it is ready again", func() bool { status, _ := get(t, p.addr["api"], "/readyz"); return status == 200 })
			if _, text := get(t, p.addr["admin"], "/metrics"); !strings.Contains(text, "\noncegate_ready 1\n") {
				t.Error("oncegate_ready is not 1")
			}
		}
		for _, line := range []string{"the store cannot be reached", "the store is reached again"} {
			if n := strings.Count(p.stderr.String(), line); n != 2 {
				t.Errorf("%q is logged %d times, want 2: %s", line, n, p.stderr)
			}
		}
	})
}
