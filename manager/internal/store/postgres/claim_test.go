package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

// TestClaimersSkipLockedRecords: while one transaction claims the head of an
// index, another's scan starts after it instead of waiting.
func TestClaimersSkipLockedRecords(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for i := range 6 {
		if err := storetest.Put(t.Context(), s, fmt.Sprintf("k%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(tx store.Tx) string {
		hits, err := tx.Scan("things", "byname", store.Range{Limit: 2, Claim: true})
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(hits)
	}
	err := s.Update(t.Context(), func(outer store.Tx) error {
		if got := scan(outer); got != "[{k0 k0} {k1 k1}]" {
			t.Errorf("first claimer got %s", got)
		}
		return s.Update(t.Context(), func(inner store.Tx) error {
			if got := scan(inner); got != "[{k2 k2} {k3 k3}]" {
				t.Errorf("second claimer got %s", got)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestClaimingScanReadsOtherRecords: records that a claim needs in any case cost it no statement of their own, whether
// they exist or not, and the commit fails if they have changed.
func TestClaimingScanReadsOtherRecords(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for _, key := range []string{"hit", "there"} {
		if err := storetest.Put(t.Context(), s, key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"there", "absent"} {
		runs := 0
		err := s.Update(t.Context(), func(stx store.Tx) error {
			runs++
			tx := stx.(*tx)
			if _, err := tx.Scan("things", "byname", store.Range{Limit: 1, Claim: true, With: []store.ID{{Collection: "things", Key: key}}}); err != nil {
				return err
			}
			before := tx.statements
			if _, err := tx.Get("things", key); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			if tx.Now().IsZero() || tx.statements != before {
				t.Errorf("%s: %d statements after the scan", key, tx.statements-before)
			}
			if runs == 1 {
				if err := storetest.Put(t.Context(), s, key, "2"); err != nil {
					return err
				}
			}
			return tx.Put("things", "hit", fmt.Append(nil, "after ", key))
		})
		if err != nil || runs != 2 {
			t.Errorf("%s: %d runs, %v", key, runs, err)
		}
	}
}
