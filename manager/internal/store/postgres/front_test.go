package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

var errStop = errors.New("the transaction ends here")

func queued(sortKey string) store.Entry {
	return store.Entry{Index: "state", SortKey: "queued:" + sortKey}
}

// enqueue adds a record for each sort key.
func enqueue(t *testing.T, s *Store, sortKeys ...string) {
	t.Helper()
	for part := range slices.Chunk(sortKeys, 500) {
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for _, k := range part {
				if err := tx.Put("things", "key "+k, []byte("queued"), queued(k)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// claimed claims up to limit records, and returns their keys.
func claimed(t *testing.T, s *Store, limit int) []string {
	t.Helper()
	var keys []string
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		keys = nil
		hits, err := tx.Scan("things", "state", store.Range{From: "queued:", To: "queued;", Limit: limit, Claim: true})
		if err != nil {
			return err
		}
		for _, h := range hits {
			keys = append(keys, h.Key)
			if err := tx.Put("things", h.Key, []byte("active"), store.Entry{Index: "state", SortKey: "active:" + h.Key}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%06d", i))
	}
	return out
}

// A claim must not walk through the entries of all that was claimed since the server vacuumed.
func TestClaimsDoNotWalkThroughDeadEntries(t *testing.T) {
	t.Parallel()
	srv := servers.Postgres(t, "-c", "autovacuum=off")
	s := open(t, srv.URL)
	enqueue(t, s, numbers(0, 6000)...)
	for range 10 {
		claimed(t, s, 500)
	}
	blocks := func() (n int) {
		t.Helper()
		for _, c := range s.pool.AcquireAllIdle(t.Context()) { // sessions report what they read
			_, err := c.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`)
			c.Release()
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.pool.QueryRow(t.Context(), `SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'index_entries_pkey'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// Some scans start at the beginning, and the front stays a moment behind.
	least := 1000
	for deadline := time.Now().Add(time.Minute); least > 15 && time.Now().Before(deadline); {
		before := blocks()
		err := s.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.Scan("things", "state", store.Range{From: "queued:", To: "queued;", Limit: 10, Claim: true})
			return errors.Join(err, errStop)
		})
		if !errors.Is(err, errStop) {
			t.Fatal(err)
		}
		least = min(least, blocks()-before)
	}
	if least < 1 || least > 15 {
		t.Errorf("a claim of 10 records reads %d pages of the index, want at most 15", least)
	}
}

// Entries before the front must not be passed by: never those of the same process, and no others for long.
func TestClaimsFindWhatIsAddedBeforeTheFront(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	s, other := open(t, dsn), open(t, dsn)
	want := func(got []string, sortKeys ...string) {
		t.Helper()
		for i, k := range sortKeys {
			sortKeys[i] = "key " + k
		}
		if !slices.Equal(got, sortKeys) {
			t.Fatalf("claimed %q, want %q", got, sortKeys)
		}
	}
	enqueue(t, s, numbers(100, 120)...)
	want(claimed(t, s, 4), numbers(100, 104)...)
	want(claimed(t, s, 4), numbers(104, 108)...)

	enqueue(t, s, "000050", "000120")
	want(claimed(t, s, 2), "000050", "000108")

	// A failed transaction leaves its hits to the next.
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		hits, err := tx.Scan("things", "state", store.Range{From: "queued:", To: "queued;", Limit: 3, Claim: true})
		if err == nil && len(hits) != 3 {
			err = fmt.Errorf("hits %v", hits)
		}
		return errors.Join(err, errStop)
	}); !errors.Is(err, errStop) || err.Error() != errStop.Error() {
		t.Fatal(err)
	}
	want(claimed(t, s, 3), numbers(109, 112)...)

	// What another process adds is found soon.
	enqueue(t, other, "000060")
	var rest []string
	for deadline := time.Now().Add(time.Minute); len(rest) < 10 && time.Now().Before(deadline); {
		rest = append(rest, claimed(t, s, 4)...)
	}
	slices.Sort(rest)
	want(rest, append([]string{"000060"}, numbers(112, 121)...)...)
	want(claimed(t, s, 1))
}

// TestCommitOfACallerThatLeftMovesTheFrontBack: the commit continues without it, and later than the scans that follow.
func TestCommitOfACallerThatLeftMovesTheFrontBack(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	now := time.Unix(1, 0)
	s.fronts.Now = func() time.Time { return now }
	enqueue(t, s, numbers(100, 104)...)
	claimed(t, s, 2)
	look := func() {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.Scan("things", "state", store.Range{From: "queued:", To: "queued;", Limit: 1, Claim: true})
			return errors.Join(err, errStop)
		})
		if !errors.Is(err, errStop) {
			t.Error(err)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	left, over, run := make(chan struct{}), make(chan struct{}), s.commits.run
	s.commits.run = func(ctx context.Context, batch []*changes) error {
		defer close(over)
		leave()
		<-left
		look()
		now = now.Add(time.Second) // what was found is the front now
		look()
		return run(context.WithoutCancel(ctx), batch)
	}
	err := s.Update(ctx, func(tx store.Tx) error { return tx.Put("things", "key 000050", []byte("queued"), queued("000050")) })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(left)
	<-over
	s.commits.run = run
	if got := claimed(t, s, 1); !slices.Equal(got, []string{"key 000050"}) {
		t.Errorf("claimed %q", got)
	}
}
