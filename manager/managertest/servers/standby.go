package servers

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// PostgresStandby starts a standby for the test, see StartPostgresStandby.
func PostgresStandby(tb testing.TB, primary *Server, name string) *Server {
	tb.Helper()
	s, err := StartPostgresStandby(tb.Context(), primary, name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// StartPostgresStandby copies a running server, and starts the copy as a hot standby that streams from it. name is what
// the primary's synchronous_standby_names calls it. The standby has the settings that the primary stored until now
// (ALTER SYSTEM). The caller must call Close.
func StartPostgresStandby(ctx context.Context, primary *Server, name string) (*Server, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	s := &Server{
		URL:    "host=" + dir + " user=oncegate dbname=postgres sslmode=disable",
		Socket: filepath.Join(dir, ".s.PGSQL.5432"),
		dir:    dir,
		path:   primary.path,
		args: []string{"-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=on", "-c", "max_connections=200",
			"-c", "primary_conninfo=host=" + primary.dir + " user=oncegate application_name=" + name,
			// The default of five seconds is long for a test that starts a server again.
			"-c", "wal_retrieve_retry_interval=100ms"},
	}
	bin := filepath.Dir(primary.path)
	s.ready = func(ctx context.Context) error { return postgresReady(ctx, bin, dir) }
	if s.attr, err = unprivileged(dir); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.run(ctx, filepath.Join(bin, "pg_basebackup"), "-h", primary.dir, "-U", "oncegate", "-D", data, "-X", "stream", "-c", "fast",
		"--no-sync"); err != nil {
		s.Close()
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600); err != nil {
		s.Close()
		return nil, err
	}
	return s.started(ctx)
}
