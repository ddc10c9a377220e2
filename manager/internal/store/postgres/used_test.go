package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestUsedCreatesNothing: a look at a database that no manager has used creates no schema there.
func TestUsedCreatesNothing(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	const schema = "never_used"
	if _, err := Open(t.Context(), Options{DSN: dsn, Schema: schema, Used: true}); !errors.Is(err, store.ErrUnused) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an unused database: %v", err)
	}
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	var n int
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = $1`, schema).Scan(&n); err != nil || n != 0 {
		t.Errorf("there are %d schemas, %v", n, err)
	}
	s, err := Open(t.Context(), Options{DSN: dsn, Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	used, err := Open(t.Context(), Options{DSN: dsn, Schema: schema, Used: true})
	if err != nil {
		t.Fatalf("a used database: %v", err)
	}
	if err := errors.Join(used.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := c.Exec(t.Context(), `UPDATE `+schema+`.meta SET version = 0`); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{DSN: dsn, Schema: schema, Used: true}); err == nil || !strings.Contains(err.Error(), "format version 0") {
		t.Errorf("another format: %v", err)
	}
}
