package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Amounts move between accounts, and accounts come and go, while changes are flushed and copies are made. Every view and
// every copy has the same sum and number of accounts, and an index has the same accounts.
func TestMovesDuringFlushes(t *testing.T) {
	const accounts, names, each, movers = 300, 600, 10, 4
	fs := &faultfs.FS{}
	opts := options(fs)
	opts.Log.SegmentBytes = 4 << 20
	opts.LayerBytes, opts.CacheBytes = 20<<10, 1<<20
	s := mustOpen(t, opts)
	name := func(i int) string { return fmt.Sprintf("account%05d", i) }
	set := func(tx store.Tx, key string, n int) error {
		return tx.Put(things, key, []byte(strconv.Itoa(n)), store.Entry{Index: byName, SortKey: strconv.Itoa(n & 7)})
	}
	mustUpdate(t, s, func(tx store.Tx) error {
		for i := range accounts {
			if err := set(tx, name(i), each); err != nil {
				return err
			}
		}
		return nil
	})
	moved := make(chan struct{})
	var wg sync.WaitGroup
	var moves, views atomic.Int64
	for m := range movers {
		wg.Go(func() {
			for i := m; moves.Load() < int64(deep.Rounds(1500, 20000)); i += movers {
				from, to := name(i*7919%names), name(i*104729%names)
				err := s.Update(context.Background(), func(tx store.Tx) error {
					a, err := get(tx, from)
					if err != nil || a == absent || from == to {
						return err
					}
					b, err := get(tx, to)
					if err != nil {
						return err
					}
					if b == absent {
						n, err := strconv.Atoi(a)
						return errors.Join(err, tx.Delete(things, from), set(tx, to, n))
					}
					n, err := strconv.Atoi(a)
					n2, err2 := strconv.Atoi(b)
					return errors.Join(err, err2, set(tx, from, n+1), set(tx, to, n2-1))
				})
				if err != nil {
					t.Error(err)
					return
				}
				moves.Add(1)
			}
		})
	}
	count := func(sum, n int, what string) {
		if sum != accounts*each || n != accounts {
			t.Errorf("%s has %d accounts with %d in all, want %d with %d", what, n, sum, accounts, accounts*each)
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() { // views
		for done := false; !done; views.Add(1) {
			select {
			case <-moved:
				done = true
			default:
			}
			var sum, n int
			err := s.View(context.Background(), func(tx store.Tx) error {
				sum, n = 0, 0
				hits, err := tx.Scan(things, byName, store.Range{Limit: store.MaxScan})
				if err != nil {
					return err
				}
				ids := make([]store.ID, len(hits))
				for i, h := range hits {
					ids[i] = store.ID{Collection: things, Key: h.Key}
				}
				if err := tx.Prefetch(ids); err != nil {
					return err
				}
				for _, h := range hits {
					v, err := get(tx, h.Key)
					if err != nil {
						return err
					}
					amount, err := strconv.Atoi(v)
					if err != nil || strconv.Itoa(amount&7) != h.SortKey {
						return fmt.Errorf("%v has %q, %v", h, v, err)
					}
					sum, n = sum+amount, n+1
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			count(sum, n, "a view")
		}
	})
	readers.Go(func() { // copies
		for done := false; !done; {
			select {
			case <-moved:
				done = true
			default:
			}
			if sum, n, ok := copiedSum(t, s); ok {
				count(sum, n, "a copy")
			}
		}
	})
	wg.Wait()
	close(moved)
	readers.Wait()
	if s.generation == 0 || views.Load() == 0 {
		t.Errorf("%d flushes, %d views", s.generation, views.Load())
	}
	t.Logf("%d moves, %d flushes, %d views", moves.Load(), s.generation, views.Load())
	want := dumped(t, s)
	image := fs.Crash()
	mustClose(t, s)
	opts.Log.FS, opts.State = image, image.Pebble()
	s = mustOpen(t, opts)
	if got := dumped(t, s); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("after a crash there are %d records, want %d", len(got), len(want))
	}
	mustClose(t, s)
}

// copiedSum adds up a copy; ok is false before the first flush.
func copiedSum(t *testing.T, s *Store) (sum, n int, ok bool) {
	c, err := s.OpenCopy(context.Background())
	if err != nil {
		t.Error(err)
		return 0, 0, false
	}
	if c == nil {
		return 0, 0, false
	}
	defer c.Close()
	for {
		body, ok, err := c.Next()
		if err != nil {
			t.Error(err)
			return 0, 0, false
		}
		if !ok {
			return sum, n, true
		}
		_, err = DecodeWriteSet(body, func(ch *Change) error {
			amount, err := strconv.Atoi(string(ch.Value))
			sum, n = sum+amount, n+1
			return err
		})
		if err != nil {
			t.Error(err)
			return 0, 0, false
		}
	}
}

// A record that was read from disk and then changed, flushed and dropped from memory, while the function that needed it
// waited for another one, is read again: the change is not lost.
func TestChangeOfARecordThatWasRead(t *testing.T) {
	for name, change := range map[string]func(store.Tx) error{
		"replaced": put("k000", "changed", store.Entry{Index: byName, SortKey: "new"}),
		"deleted":  func(tx store.Tx) error { return tx.Delete(things, "k000") },
	} {
		t.Run(name, func(t *testing.T) {
			fs := &faultfs.FS{}
			s := onDisk(t, fs, options(fs), 50)
			mustGet(t, s, "k000") // its block is in memory now
			tables := fs.Names()  // the flush below must read its own
			g := newGate(fs, func(op faultfs.Op) bool { return isStateRead(op) && slices.Contains(tables, op.Path) })
			var seen string
			call := start("the call", func() error {
				return s.Update(t.Context(), func(tx store.Tx) (err error) {
					if err := tx.Prefetch([]store.ID{{Collection: things, Key: "k000"}, {Collection: things, Key: "k049"}}); err != nil {
						return err
					}
					if seen, err = get(tx, "k000"); err != nil {
						return err
					}
					return tx.Put(things, "k000", []byte(seen+"!"))
				})
			})
			<-g.entered // k049 cannot be read
			mustUpdate(t, s, change)
			want := mustGet(t, s, "k000")
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.release()
			if err := inTime(t, "the call", func() error { return <-call.done }); err != nil {
				t.Fatal(err)
			}
			if seen != want {
				t.Errorf("the function saw %.20q, want %q", seen, want)
			}
			dumped(t, s)
			mustClose(t, s)
		})
	}
}
