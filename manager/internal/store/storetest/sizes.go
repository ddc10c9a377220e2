package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/store"
)

var sizeCases = []testCase{
	{name: "SizesFollowEveryChange", test: testSizes, sizes: true},
	{name: "SizesAreExactUnderConcurrency", test: testSizesExact, sizes: true},
	{name: "LenCountsWhatAViewHasSeen", test: testLenAfterView, sizes: true},
	{name: "SizesSurvive", test: testSizesSurvive, sizes: true, durable: true},
}

func size(tx store.Tx, c store.Collection) (string, error) {
	records, bytes, err := tx.Size(c)
	return fmt.Sprintf("%d/%d", records, bytes), err
}

// wantSize checks the size in an Update and in a View.
func (e *env) wantSize(s store.Store, want string) {
	e.Helper()
	for what, call := range map[string]func(store.Store, func(store.Tx) error){"Update": e.update, "View": e.view} {
		call(s, func(tx store.Tx) error {
			if got, err := size(tx, things); err != nil || got != want {
				e.Errorf("%s: size %s, %v; want %s", what, got, err, want)
			}
			return nil
		})
	}
}

func testSizes(e *env) {
	s := e.store()
	e.wantSize(s, "0/0")
	e.put(s, "abc", "12345", store.Entry{Index: byName, SortKey: "not counted"})
	e.wantSize(s, "1/8")
	e.put(s, "abc", "1")
	e.wantSize(s, "1/4")
	e.put(s, "empty", "")
	e.wantSize(s, "2/9")
	e.update(s, func(tx store.Tx) error {
		// The function's own writes are not counted.
		err := errors.Join(tx.Put(things, "x", []byte("1")), tx.Put(things, "x", []byte("22")), tx.Delete(things, "abc"), tx.Delete(things, "none"),
			tx.Put(things, "y", []byte("1")), tx.Delete(things, "y"))
		if got, sizeErr := size(tx, things); sizeErr != nil || got != "2/9" {
			e.Errorf("after writes: %s, %v", got, sizeErr)
		}
		if got, sizeErr := size(tx, "others"); sizeErr != nil || got != "0/0" {
			e.Errorf("another collection: %s, %v", got, sizeErr)
		}
		if _, sizeErr := size(tx, "Not a name"); sizeErr == nil {
			e.Error("a bad name has a size")
		}
		return err
	})
	e.wantSize(s, "2/8")
	failed := errors.New("failed")
	if err := s.Update(e.ctx, func(tx store.Tx) error {
		return errors.Join(tx.Put(things, "z", []byte("1")), tx.Delete(things, "x"), failed)
	}); !errors.Is(err, failed) {
		e.Errorf("an Update whose function failed: %v", err)
	}
	e.wantSize(s, "2/8")
	e.delete(s, "x")
	e.delete(s, "x")
	e.delete(s, "empty")
	e.wantSize(s, "0/0")
}

// testSizesExact: callers that respect the size keep a limit exactly, even when many run concurrently.
func testSizesExact(e *env) {
	const workers, limit = 8, 50
	s := e.store()
	var inserted, refused atomic.Int64
	full := errors.New("full")
	e.concurrently(workers, func(ctx context.Context, w int) error {
		for i := range limit {
			err := update(ctx, s, func(tx store.Tx) error {
				n, bytes, err := tx.Size(things)
				if err != nil {
					return err
				}
				if bytes != int64(4*n) {
					return fmt.Errorf("%d records of %d bytes", n, bytes)
				}
				if n >= limit {
					return full
				}
				return tx.Put(things, fmt.Sprintf("%d%02d", w, i), []byte("v"))
			})
			switch {
			case errors.Is(err, full):
				refused.Add(1)
			case err != nil:
				return err
			default:
				inserted.Add(1)
			}
		}
		return nil
	})
	if inserted.Load() != limit || refused.Load() != (workers-1)*limit {
		e.Errorf("%d inserted, %d refused", inserted.Load(), refused.Load())
	}
	e.wantSize(s, fmt.Sprintf("%d/%d", limit, 4*limit))
}

// testLenAfterView: a caller that has seen records and then counts them finds no fewer, even if the call that wrote them has
// not returned yet.
func testLenAfterView(e *env) {
	s := e.store()
	const (
		records, readers = 300, 3
		seenKey          = "number"
		counted          = store.Collection("counted")
	)
	e.concurrently(1+readers, func(ctx context.Context, worker int) error {
		for seen := 0; seen < records; {
			if worker == 0 {
				seen++
				err := s.Update(ctx, func(tx store.Tx) error {
					return errors.Join(putInt(tx, seenKey, seen), tx.Put(counted, strconv.Itoa(seen), nil))
				})
				if err != nil {
					return err
				}
				continue
			}
			err := s.View(ctx, func(tx store.Tx) (err error) {
				seen, err = getInt(tx, seenKey)
				return err
			})
			if err != nil {
				return err
			}
			if n, err := s.Len(ctx, counted, ""); err != nil || n < seen {
				return fmt.Errorf("the store counts %d (%v) after a View of %d records", n, err, seen)
			}
		}
		return nil
	})
}

func testSizesSurvive(e *env) {
	s := e.store()
	e.put(s, "abc", "12345")
	e.put(s, "abc", "123")
	e.put(s, "gone", "1")
	e.delete(s, "gone")
	e.close(s)
	s = e.store()
	e.wantSize(s, "1/6")
	e.delete(s, "abc")
	e.wantSize(s, "0/0")
}
