package servers

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// PostgresStandby copies a running server for the test, and starts the copy as a hot standby that streams from it. name is
// what the primary's synchronous_standby_names calls it. The standby has the settings that the primary stored until now
// (ALTER SYSTEM).
func PostgresStandby(tb testing.TB, primary *Server, name string) *Server {
	tb.Helper()
	s, err := startStandby(tb.Context(), primary, name)
	return forTest(tb, s, err)
}

func startStandby(ctx context.Context, primary *Server, name string) (*Server, error) {
	s, err := newPostgres(primary.path, "-c", "primary_conninfo=host="+primary.dir+" user=oncegate application_name="+name,
		// The default of five seconds is long for a test that starts a server again.
		"-c", "wal_retrieve_retry_interval=100ms")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	err = s.run(ctx, filepath.Join(filepath.Dir(s.path), "pg_basebackup"), "-h", primary.dir, "-U", "oncegate", "-D", data, "-X", "stream", "-c", "fast",
		"--no-sync")
	if err == nil {
		err = os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600)
	}
	return s.started(ctx, err)
}
