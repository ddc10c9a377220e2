package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// PgBouncer starts a pooler for the test in front of a server of StartPostgres. mode is its pool_mode. All else is as
// PgBouncer has it by itself, apart from the sizes of the pools.
func PgBouncer(tb testing.TB, postgres *Server, mode string) *Server {
	tb.Helper()
	s, err := startPgBouncer(tb.Context(), postgres, mode)
	return forTest(tb, s, err)
}

func startPgBouncer(ctx context.Context, postgres *Server, mode string) (*Server, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer" // which is on root's PATH only
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("pgbouncer is not installed; `make test` installs it: %w", err)
	}
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL:    "host=" + dir + " port=6432 user=oncegate dbname=postgres sslmode=disable",
		Socket: filepath.Join(dir, ".s.PGSQL.6432"),
		dir:    dir,
		path:   path,
		args:   []string{filepath.Join(dir, "pgbouncer.ini")},
	}
	bin := filepath.Dir(postgres.path)
	s.ready = func(ctx context.Context) error {
		return exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"), "-h", dir, "-p", "6432").Run()
	}
	s.attr, err = unprivileged(dir)
	for name, text := range map[string]string{
		"users": `"oncegate" ""` + "\n",
		"pgbouncer.ini": fmt.Sprintf(`[databases]
* = host=%s
[pgbouncer]
listen_port = 6432
unix_socket_dir = %s
auth_type = trust
auth_file = %s
pool_mode = %s
default_pool_size = 80
max_client_conn = 500
`, postgres.dir, dir, filepath.Join(dir, "users"), mode),
	} {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
		}
	}
	return s.started(ctx, err)
}
