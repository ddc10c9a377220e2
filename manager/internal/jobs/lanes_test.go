package jobs

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// contested is a store on which other managers are claiming some of the jobs:
// its claiming scans skip them, as those of a store with row locks do.
type contested struct {
	store.Store
	taken []string
}

func (c *contested) Update(ctx context.Context, fn func(store.Tx) error) error {
	return c.Store.Update(ctx, func(tx store.Tx) error { return fn(contestedTx{tx, c.taken}) })
}

type contestedTx struct {
	store.Tx
	taken []string
}

func (c contestedTx) Scan(col store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if !r.Claim {
		return c.Tx.Scan(col, index, r)
	}
	limit := r.Limit
	r.Limit = 10_000
	hits, err := c.Tx.Scan(col, index, r)
	hits = slices.DeleteFunc(hits, func(h store.Hit) bool { return slices.Contains(c.taken, h.Key) })
	return hits[:min(limit, len(hits))], err
}

// TestClaimLooksBehindJobsThatOthersTake: the first job in the order of claims
// is about to go to another manager. That is no reason to answer a claim of
// several functions with nothing while another function has work.
func TestClaimLooksBehindJobsThatOthersTake(t *testing.T) {
	for _, c := range []struct {
		taken []string
		limit int
		want  string
	}{
		{nil, 1, "[a1]"},
		{[]string{"a1"}, 1, "[c1]"},
		{[]string{"a1", "c1"}, 1, "[b1]"},
		{[]string{"a1"}, 3, "[c1 b1 b2]"},
		{[]string{"a1", "b1"}, 4, "[c1 b2]"},
		{[]string{"a1", "b1", "b2", "c1"}, 4, "[]"},
	} {
		t.Run(fmt.Sprint(c.taken, c.limit), func(t *testing.T) {
			s := &contested{Store: mem.New(mem.Options{}), taken: c.taken}
			defer s.Close()
			q, err := New(s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			for _, sub := range []Submission{
				{ID: "a1", Function: "a", Priority: 9}, {ID: "b1", Function: "b"}, {ID: "b2", Function: "b"}, {ID: "c1", Function: "c", Priority: 5},
			} {
				if _, err := q.Enqueue(t.Context(), sub); err != nil {
					t.Fatal(err)
				}
			}
			jobs, err := q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: []string{"a", "b", "c"}, Limit: c.limit})
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, j := range jobs {
				got = append(got, j.ID)
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("claimed %v, want %s", got, c.want)
			}
		})
	}
}
