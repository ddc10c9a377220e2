package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// The settings of a session do not depend on what the server, the user or a pooler say.
func TestSessions(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t)
	t.Run("session", func(t *testing.T) {
		pooler := servers.PgBouncer(t, srv, "session")
		a, b := open(t, pooler.URL), open(t, pooler.URL)
		w := b.Watch("topic")
		defer w.Stop()
		for i := range 50 {
			if err := storetest.Put(t.Context(), a, fmt.Sprint("k", i), "1"); err != nil {
				t.Fatal(err)
			}
		}
		if v, err := storetest.Get(t.Context(), b, "k7"); v != "1" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		err := b.Update(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("things", "byname", store.Range{Limit: 2, Claim: true})
			if err != nil || len(hits) != 2 {
				return fmt.Errorf("%v, %w", hits, err)
			}
			return tx.Delete("things", hits[0].Key)
		})
		if err != nil {
			t.Error(err)
		}
		if err := a.Update(t.Context(), func(tx store.Tx) error { tx.Notify("topic"); return nil }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.C():
		case <-t.Context().Done():
			t.Error("never woken")
		}
		for name, want := range map[string]string{"synchronous_commit": "on", "lock_timeout": "5s", "enable_seqscan": "off"} {
			var have string
			if err := a.pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&have); err != nil || have != want {
				t.Errorf("%s is %q, %v", name, have, err)
			}
		}
	})
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			pooler := servers.PgBouncer(t, srv, mode)
			_, err := Open(t.Context(), Options{DSN: pooler.URL})
			if err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "pool_mode = session") {
				t.Errorf("error %v", err)
			}
		})
	}
	// A level that waits for more than on does is kept, any other is raised.
	for level, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
		conn, err := pgx.Connect(t.Context(), srv.URL+" options='-c synchronous_commit="+level+"'")
		if err != nil {
			t.Fatal(err)
		}
		var have string
		if err := prepare(t.Context(), conn); err != nil {
			t.Error(err)
		}
		if err := conn.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&have); err != nil || have != want {
			t.Errorf("synchronous_commit %s: %q, %v, want %q", level, have, err, want)
		}
		_ = conn.Close(t.Context())
	}
}

// A DSN may ask for any mode of the driver, for a pooler's sake. Some modes send parameters as text.
func TestQueryModes(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		s, err := Open(t.Context(), Options{DSN: dsn + " default_query_exec_mode=" + mode, Schema: "mode_" + mode})
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if err := storetest.Put(t.Context(), s, "a", "value"); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if v, err := storetest.Get(t.Context(), s, "a"); v != "value" || err != nil {
			t.Errorf("%s: %q, %v", mode, v, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
