package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

// waitUntil waits for a condition that other goroutines bring about.
func waitUntil(ok func() bool) {
	for !ok() {
		runtime.Gosched()
	}
}

func (g *share[T]) waiting() int { return g.Waiting() }

// begun begins a share, which ends with the test.
func begun[T any](t *testing.T, g *share[T]) *share[T] {
	g.begin(batch.NewLife(t.Context()))
	t.Cleanup(g.Life.End)
	return g
}

// occupy lets no lane continue until the function returned is called.
func (g *share[T]) occupy(t *testing.T, request func(lane int) T) (goOn func()) {
	t.Helper()
	run, gate, entered := g.run, make(chan struct{}), make(chan struct{})
	g.run = func(ctx context.Context, batch []T) error {
		select {
		case entered <- struct{}{}:
			<-gate
		case <-gate:
		}
		return run(ctx, batch)
	}
	var wg sync.WaitGroup
	for lane := range shareLanes {
		wg.Go(func() {
			if err := g.do(context.Background(), request(lane)); err != nil {
				t.Errorf("the call that keeps lane %d busy: %v", lane, err)
			}
		})
		<-entered
	}
	return sync.OnceFunc(func() { close(gate); wg.Wait() })
}

func TestRequestsThatWaitGoTogether(t *testing.T) {
	var mu sync.Mutex
	var batches [][]int
	g := begun(t, &share[int]{run: func(_ context.Context, batch []int) error {
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, batch)
		return nil
	}, fits: func(_ []int, request int) bool { return request != 13 }})
	goOn := g.occupy(t, func(lane int) int { return -lane })
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if err := g.do(t.Context(), i+1); err != nil {
				t.Errorf("%d: %v", i+1, err)
			}
		})
	}
	wg.Go(func() {
		if err := g.do(t.Context(), 13); !errors.Is(err, errAlone) {
			t.Errorf("a request that does not fit: %v", err)
		}
	})
	waitUntil(func() bool { return g.waiting() == 11 })
	// A call that ends while it waits is not run.
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := g.do(ctx, 99); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call: %v", err)
		}
	})
	waitUntil(func() bool { return g.waiting() == 12 })
	cancel()
	waitUntil(func() bool { return g.waiting() == 11 })
	goOn()
	wg.Wait()
	if len(batches) != shareLanes+1 || !slices.ContainsFunc(batches, func(b []int) bool { return len(b) == 10 }) {
		t.Errorf("the calls that waited went as %v", batches)
	}
}

// TestABatchThatNobodyWaitsForEnds, and not before the last call has left it.
func TestABatchThatNobodyWaitsForEnds(t *testing.T) {
	running := make(chan context.Context)
	g := begun(t, &share[int]{run: func(ctx context.Context, _ []int) error {
		running <- ctx
		<-ctx.Done()
		return ctx.Err()
	}})
	var calls sync.WaitGroup
	var leave []func()
	call := func() {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		calls.Go(func() {
			if err := g.do(ctx, 0); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
	var first []context.Context
	for range shareLanes {
		call()
		first = append(first, <-running)
	}
	call()
	call()
	waitUntil(func() bool { return g.waiting() == 2 })
	leave[0]()
	<-first[0].Done()
	shared := <-running // the two go together on the free lane
	leave[2]()
	if shared.Err() != nil {
		t.Error("the batch ended although a call waits for it")
	}
	leave[3]()
	<-shared.Done()
	leave[1]()
	calls.Wait()
}

// TestSharedCommitsAreJudgedOneByOne lets transactions share a commit of which one meets a change: it runs again, and the others
// are committed as they are.
func TestSharedCommitsAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	s, other := open(t, dsn), open(t, dsn)
	ctx := t.Context()
	put := func(s *Store, key, value string) error {
		return s.Update(ctx, func(tx store.Tx) error {
			return tx.Put("things", key, []byte(value), store.Entry{Index: "i", SortKey: value})
		})
	}
	const members = 8
	for i := range members {
		if err := put(s, fmt.Sprint(i), "0"); err != nil {
			t.Fatal(err)
		}
	}
	goOn := s.commits.occupy(t, func(int) *changes { return &changes{} })
	runs := make([]int, members)
	var wg sync.WaitGroup
	for i := range members {
		wg.Go(func() {
			if err := s.Update(ctx, func(tx store.Tx) error {
				runs[i]++
				v, err := tx.Get("things", fmt.Sprint(i))
				if err != nil {
					return err
				}
				return tx.Put("things", fmt.Sprint(i), append(bytes.Clone(v), '+'), store.Entry{Index: "i", SortKey: "changed"})
			}); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	waitUntil(func() bool { return s.commits.waiting() == members })
	if err := put(other, "3", "other"); err != nil {
		t.Fatal(err)
	}
	goOn()
	wg.Wait()
	for i := range members {
		want, wantRuns := "0+", 1
		if i == 3 {
			want, wantRuns = "other+", 2
		}
		if err := s.View(ctx, func(tx store.Tx) error {
			v, err := tx.Get("things", fmt.Sprint(i))
			if string(v) != want || runs[i] != wantRuns {
				t.Errorf("%d: %q after %d runs, want %q after %d", i, v, runs[i], want, wantRuns)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := other.Len(ctx, "things", "i"); err != nil || n != members {
		t.Errorf("%d index entries, %v", n, err)
	}
}

// TestASharedCommitUsesNoMemoryOfItsCallers: a call that ended early may use its buffers again while the commit that it
// shares is on its way.
func TestASharedCommitUsesNoMemoryOfItsCallers(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	run, gate, entered := s.commits.run, make(chan struct{}), make(chan struct{})
	s.commits.run = func(_ context.Context, batch []*changes) error {
		entered <- struct{}{}
		<-gate
		return run(context.Background(), batch) // as if another call still waited
	}
	ctx, cancel := context.WithCancel(t.Context())
	buffer := []byte("the value")
	done := make(chan error)
	go func() {
		done <- s.Update(ctx, func(tx store.Tx) error { return tx.Put("things", "key", buffer) })
	}()
	<-entered
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	copy(buffer, "#########")
	close(gate)
	waitUntil(s.commits.Idle)
	if err := s.View(t.Context(), func(tx store.Tx) error {
		v, err := tx.Get("things", "key")
		if string(v) != "the value" {
			t.Errorf("stored %q", v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestATransactionStaysOnOneServer: a version that one server returned means another transaction on the server that took
// over, so nothing is written after it there, and what both returned is never seen together.
func TestATransactionStaysOnOneServer(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "a", "1"); err != nil {
		t.Fatal(err)
	}
	read, reads, old := s.reads.run, 0, 0
	s.reads.run = func(ctx context.Context, batch []*reading) error {
		err := read(ctx, batch)
		if reads++; reads == old {
			batch[0].server = "the one before"
		}
		return err
	}
	for name, both := range map[string]bool{"read and commit": false, "two reads": true} {
		runs := 0
		reads, old = 0, 1
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			runs++
			if _, err := tx.Get("things", "a"); err != nil {
				return err
			}
			if both {
				if _, err := tx.Get("things", "b"); !errors.Is(err, store.ErrNotFound) {
					return err
				}
				return nil
			}
			return tx.Put("things", "a", []byte("2"))
		}); err != nil || runs != 2 {
			t.Errorf("%s: %d runs, %v", name, runs, err)
		}
	}
}

// TestSharingNeedsNoConnectionThatItsCallersHold: when transactions with connections of their own hold all of the pool, what
// they read and commit next must not wait for another one.
func TestSharingNeedsNoConnectionThatItsCallersHold(t *testing.T) {
	t.Parallel()
	const conns = 3
	s, err := Open(t.Context(), Options{DSN: database(t), MaxConns: conns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := storetest.Put(t.Context(), s, "here", "1"); err != nil {
		t.Fatal(err)
	}
	many := make([]store.ID, shareRecords+1)
	for i := range many {
		many[i] = store.ID{Collection: "things", Key: fmt.Sprint("absent ", i)}
	}
	for name, begin := range map[string]func(store.Tx) error{
		"clock":    func(tx store.Tx) error { tx.Now(); return nil },
		"prefetch": func(tx store.Tx) error { return tx.Prefetch(many) },
		"scan": func(tx store.Tx) error {
			_, err := tx.Scan("things", "i", store.Range{Limit: 1})
			return err
		},
		"claim": func(tx store.Tx) error {
			_, err := tx.Scan("things", "i", store.Range{Limit: 1, Claim: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // ends only what hangs
			defer cancel()
			var all, calls sync.WaitGroup
			all.Add(conns)
			for i := range conns {
				first := true
				calls.Go(func() {
					if err := s.Update(ctx, func(tx store.Tx) error {
						if err := begin(tx); err != nil {
							return err
						}
						if first {
							first = false
							all.Done()
							all.Wait()
						}
						if _, err := tx.Get("things", "here"); err != nil {
							return err
						}
						return tx.Put("things", fmt.Sprint(name, i), []byte("1"))
					}); err != nil {
						t.Errorf("%d: %v", i, err)
					}
				})
			}
			calls.Wait()
		})
	}
}

// TestAHangingStatementEnds: calls without a deadline must not occupy the lanes forever when the server does not answer.
func TestAHangingStatementEnds(t *testing.T) {
	g := begun(t, &share[int]{run: func(ctx context.Context, _ []int) error {
		<-ctx.Done()
		return fmt.Errorf("driver: %w", ctx.Err())
	}})
	g.Within = time.Millisecond
	for range 2 * shareLanes {
		if err := g.do(context.Background(), 0); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	}
}

// TestALockedRecordDoesNotOccupyALane: a commit that has to wait for a lock gives its lane back soon, also when it is the
// only one, and waits on.
func TestALockedRecordDoesNotOccupyALane(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	if err := storetest.Put(t.Context(), s, "locked", "0"); err != nil {
		t.Fatal(err)
	}
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, stmt := range []string{`BEGIN`, `SELECT FROM oncegate.records WHERE key = 'locked' FOR UPDATE`} {
		if _, err := conn.Exec(t.Context(), stmt); err != nil {
			t.Fatal(err)
		}
	}
	run, answered := s.commits.run, make(chan error, 1)
	s.commits.run = func(ctx context.Context, batch []*changes) error {
		err := run(ctx, batch)
		answered <- err
		return err
	}
	done := make(chan error)
	go func() {
		done <- s.Update(t.Context(), func(tx store.Tx) error {
			if _, err := tx.Get("things", "locked"); err != nil {
				return err
			}
			return tx.Put("things", "locked", []byte("1"))
		})
	}()
	if err := <-answered; !errors.Is(err, errAlone) {
		t.Errorf("the lane's answer is %v", err)
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestOnlyAnErrorSaysThatNothingWasWritten: a server that panics for want of space may have stored the commit before.
func TestOnlyAnErrorSaysThatNothingWasWritten(t *testing.T) {
	for severity, want := range map[string]error{"ERROR": store.ErrNoSpace, "FATAL": store.ErrUnavailable, "PANIC": store.ErrUnavailable} {
		full := &pgconn.PgError{SeverityUnlocalized: severity, Code: "53100", Message: "could not write to file"}
		if err := unavailable(full); !errors.Is(err, want) {
			t.Errorf("%s: error %v", severity, err)
		}
		if conflict(&pgconn.PgError{SeverityUnlocalized: severity, Code: "53200"}) != (severity == "ERROR") {
			t.Errorf("%s: out of memory", severity)
		}
	}
}

// TestTransactionsThatShareACommitDoNotSkew: of two that wait together, and of which each read what the other writes, one
// sees what the other wrote. What they read may be there or absent.
func TestTransactionsThatShareACommitDoNotSkew(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for _, absent := range []bool{false, true} {
		keys := []string{fmt.Sprint("a", absent), fmt.Sprint("b", absent)}
		for _, key := range keys {
			if !absent {
				if err := storetest.Put(t.Context(), s, key, "0"); err != nil {
					t.Fatal(err)
				}
			}
		}
		run := s.commits.run
		goOn := s.commits.occupy(t, func(int) *changes { return &changes{} })
		saw := make([]string, 2)
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if err := s.Update(t.Context(), func(tx store.Tx) error {
					v, err := tx.Get("things", keys[1-i])
					if err != nil && !errors.Is(err, store.ErrNotFound) {
						return err
					}
					if _, err := tx.Get("things", keys[i]); err != nil && !errors.Is(err, store.ErrNotFound) {
						return err
					}
					saw[i] = string(v)
					return tx.Put("things", keys[i], []byte("written"))
				}); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		waitUntil(func() bool { return s.commits.waiting() == len(keys) })
		goOn()
		wg.Wait()
		s.commits.run = run
		if (saw[0] == "written") == (saw[1] == "written") {
			t.Errorf("absent %t: the transactions saw %q", absent, saw)
		}
	}
}
