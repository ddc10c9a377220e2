package jobs

import (
	"context"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// CheckSums compares the sums of what jobs take with a count of all jobs. It returns nil on a store that managers share.
func CheckSums(ctx context.Context, q *Queue) error {
	if q.shared {
		return nil
	}
	want := make(map[string]int64)
	var all []segment
	for _, index := range allIndexes {
		all = append(all, segment{index: index})
	}
	for l := (ListQuery{Limit: MaxExamined}); ; {
		next, err := q.walk(ctx, all, &l, func(r *record) error {
			switch c := r.stored; {
			case c.part == partLive && c.owner != "":
				want[ownerKey(c.owner)] += c.bytes
			case c.part == partDead:
				want[deadKey(r.Function)]++
				fallthrough
			case c.part == partDone:
				want[retainedKey] += c.bytes
			}
			return nil
		})
		if err != nil {
			return err
		}
		if l.Cursor = next; next == "" {
			break
		}
	}
	err := q.store.View(ctx, func(tx store.Tx) error {
		for key, n := range want {
			if got, known, err := sum(tx, q.opt.Unreadable, key); err != nil || !known || got != n {
				return fmt.Errorf("the sum %.8q is %d (%v, %v), want %d", key, got, known, err, n)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	n, err := q.store.Len(ctx, colUsage, "")
	if err == nil && n != len(want) {
		err = fmt.Errorf("%d sums, want %d", n, len(want))
	}
	return err
}
