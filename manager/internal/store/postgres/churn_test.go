package postgres

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestChurnStaysFlat replaces a set of records again and again, as fast as the server can, and never waits for its
// autovacuum. POSTGRES_CHURN_ROUNDS is how often all of them are replaced; `make test-long` sets it. From the third round
// on the tables may not grow by more than a half: the space of one round is used by a later one.
func TestChurnStaysFlat(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("POSTGRES_CHURN_ROUNDS"))
	if rounds < 4 {
		t.Skip("make test-long runs it")
	}
	// The server looks for tables to clean once a minute; here a round takes seconds.
	srv := servers.Postgres(t, "-c", "autovacuum_naptime=1s")
	s := open(t, srv.URL)
	const live, batch = 8000, 100
	value, answer := make([]byte, 150), make([]byte, 500)
	key := func(n int) string { return fmt.Sprintf("scope/%032d", n*7919%1_000_003) }
	at := func(n int) string { return fmt.Sprintf("%020d", n) }
	// churn reserves keys, commits them, and removes the oldest.
	churn := func(first int) {
		for _, step := range []func(tx store.Tx, n int) error{
			func(tx store.Tx, n int) error {
				return tx.Put("things", key(n), value, store.Entry{Index: "pending", SortKey: at(n)}, store.Entry{Index: "ref", SortKey: at(n)})
			},
			func(tx store.Tx, n int) error {
				return tx.Put("things", key(n), answer, store.Entry{Index: "committed", SortKey: at(n)}, store.Entry{Index: "ref", SortKey: at(n)})
			},
			func(tx store.Tx, n int) error {
				if n < live {
					return nil
				}
				return tx.Delete("things", key(n-live))
			},
		} {
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				var ids []store.ID
				for n := first; n < first+batch; n++ {
					ids = append(ids, store.ID{Collection: "things", Key: key(n)})
					if n >= live {
						ids = append(ids, store.ID{Collection: "things", Key: key(n - live)})
					}
				}
				if err := tx.Prefetch(ids); err != nil {
					return err
				}
				for n := first; n < first+batch; n++ {
					if err := step(tx, n); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var sizes []int64
	for round := range rounds {
		for first := range live / batch {
			churn(round*live + first*batch)
		}
		var size int64
		if err := s.pool.QueryRow(t.Context(), `SELECT pg_total_relation_size('oncegate.records') + pg_total_relation_size('oncegate.index_entries')`).Scan(&size); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size)
		t.Logf("round %d: %d KB, %d bytes for each live record", round+1, size>>10, size/live)
	}
	if n, err := s.Len(t.Context(), "things", "ref"); err != nil || n != live {
		t.Errorf("%d records live, %v, want %d", n, err, live)
	}
	if early, late := sizes[2], sizes[rounds-1]; late > early+early/2 {
		t.Errorf("after round %d the tables have %d bytes, after round 3 %d", rounds, late, early)
	}
}
