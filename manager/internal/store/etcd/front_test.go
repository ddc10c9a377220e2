package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

const (
	queuedFrom, queuedTo = "queued:", "queued;"
	// longAgo is when the last scan of a whole range counts no longer, and what was found is the front.
	longAgo = 100 * time.Millisecond
)

// movedClock is a clock that only the test moves.
type movedClock struct {
	mu  sync.Mutex
	now time.Time
}

// moveClock makes the fronts of the store follow a clock that begins anywhere.
func moveClock(s *Store) *movedClock {
	c := &movedClock{now: time.Unix(1, 0)}
	s.fronts.Now = func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now
	}
	return c
}

func (c *movedClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// starts are the sort keys at which requests for the index of queued records began. That of a whole range is queuedFrom.
type starts struct {
	mu   sync.Mutex
	keys []string
}

func startsOf(s *Store) *starts {
	all, prefix := &starts{}, s.indexKey("jobs", "state")
	for _, b := range []*batcher{&s.reads, &s.fixed} {
		send := b.send
		b.send = func(ctx context.Context, calls []*call) error {
			for _, c := range calls {
				for _, op := range c.ops {
					r := op.GetRequestRange()
					rest, of := strings.CutPrefix(string(r.Key), prefix)
					if !of || len(r.RangeEnd) == 0 {
						continue
					}
					if h, err := member.Split(rest); err == nil {
						rest = h.SortKey
					}
					all.mu.Lock()
					all.keys = append(all.keys, rest)
					all.mu.Unlock()
				}
			}
			return send(ctx, calls)
		}
	}
	return all
}

// take returns the starts since the last call.
func (a *starts) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.keys
	a.keys = nil
	return keys
}

// numbered are sort keys in order.
func numbered(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprintf("%s%05d", queuedFrom, i))
	}
	return keys
}

// enqueue adds a record for each sort key.
func enqueue(t *testing.T, s *Store, sortKeys ...string) {
	t.Helper()
	for part := range slices.Chunk(sortKeys, 40) {
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			for _, k := range part {
				if err := tx.Put("jobs", "job "+k, []byte(k), store.Entry{Index: "state", SortKey: k}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func queued(limit int, claim bool) store.Range {
	return store.Range{From: queuedFrom, To: queuedTo, Limit: limit, Claim: claim, Repeated: !claim}
}

// work takes the records that a scan finds, and returns the sort keys that they had.
func work(ctx context.Context, s *Store, r store.Range) (taken []string, err error) {
	err = s.Update(ctx, func(tx store.Tx) error {
		taken = nil
		hits, err := tx.Scan("jobs", "state", r)
		if err != nil {
			return err
		}
		for _, h := range hits {
			v, err := tx.Get("jobs", h.Key)
			if err != nil {
				return err
			}
			if string(v) != h.SortKey { // the hit is stale
				continue
			}
			taken = append(taken, h.SortKey)
			if err := tx.Put("jobs", h.Key, []byte("taken"), store.Entry{Index: "state", SortKey: "taken:" + h.SortKey}); err != nil {
				return err
			}
		}
		return nil
	})
	return taken, err
}

func mustWork(t *testing.T, s *Store, r store.Range) []string {
	t.Helper()
	taken, err := work(t.Context(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// TestScansStartWhereEntriesLive: of an index that is worked off from its beginning, few scans walk through what was taken.
func TestScansStartWhereEntriesLive(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		records int
		r       store.Range
	}{"claim": {3000, queued(20, true)}, "repeated": {400, queued(1, false)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{DSN: fresh(t)})
			clock, starts := moveClock(s), startsOf(s)
			enqueue(t, s, numbered(0, test.records)...)
			const step = longAgo / 10
			var taken []string
			scans, requests, whole, most := 0, 0, 0, 0
			for ; len(taken) < test.records; scans++ {
				found := mustWork(t, s, test.r)
				if len(found) == 0 {
					t.Fatalf("nothing is left after %d of %d records", len(taken), test.records)
				}
				for _, start := range starts.take() {
					if scans < 2*int(longAgo/step) {
						continue // there is no front yet
					}
					if requests++; start == queuedFrom {
						whole++
						continue
					}
					dead := 0
					for _, k := range taken {
						if k >= start {
							dead++
						}
					}
					most = max(most, dead)
				}
				taken = append(taken, found...)
				clock.pass(step)
			}
			t.Logf("%d of %d requests of %d scans are for the whole range, the others walk through at most %d dead entries", whole, requests, scans, most)
			if requests == 0 || whole > scans/5 {
				t.Errorf("%d requests of %d scans begin at the beginning of the range", whole, scans)
			}
			// The front is as old as what was found, and that was found when the one before it became the front.
			if limit := 3 * int(longAgo/step) * test.r.Limit; most > limit {
				t.Errorf("a scan from the front walks through %d dead entries, want at most %d", most, limit)
			}
			slices.Sort(taken)
			if !slices.Equal(taken, numbered(0, test.records)) {
				t.Errorf("%d records were taken, some twice or never", len(taken))
			}
			if found := mustWork(t, s, test.r); len(found) > 0 {
				t.Errorf("%q are left", found)
			}
		})
	}
}

// TestManyClaimEachRecordOnce: claims of two managers overlap, and fail, and none leaves a record.
func TestManyClaimEachRecordOnce(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	managers := []*Store{open(t, Options{DSN: dsn}), open(t, Options{DSN: dsn})}
	const records = 800
	enqueue(t, managers[0], numbered(0, records)...)
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	var mu sync.Mutex
	var taken []string
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				found, err := work(ctx, managers[i%2], queued(7, true))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				taken = append(taken, found...)
				n := len(taken)
				mu.Unlock()
				if n >= records {
					return
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(taken)
	if !slices.Equal(taken, numbered(0, records)) {
		t.Errorf("%d of %d records were taken, some twice or never", len(taken), records)
	}
}

// TestWhatOthersAddBeforeTheFrontIsFound: a manager that does not know of it finds it with a scan of the whole range.
func TestWhatOthersAddBeforeTheFrontIsFound(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{true, false} {
		t.Run(fmt.Sprint("moved clock ", moved), func(t *testing.T) {
			t.Parallel()
			dsn := fresh(t)
			s, other := open(t, Options{DSN: dsn}), open(t, Options{DSN: dsn})
			pass := func(time.Duration) {}
			if moved {
				pass = moveClock(s).pass
			}
			starts := startsOf(s)
			enqueue(t, s, numbered(100, 120)...)
			mustWork(t, s, queued(5, true))
			look := func() (found []store.Hit) {
				t.Helper()
				if err := s.Update(t.Context(), func(tx store.Tx) (err error) {
					found, err = tx.Scan("jobs", "state", queued(1, false))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				pass(longAgo / 10)
				return found
			}
			eventually(t, "a scan from the front", func() bool {
				found, at := look(), starts.take()
				return len(found) == 1 && at[len(at)-1] == found[0].SortKey
			})
			enqueue(t, other, numbered(50, 51)...)
			looks := 0
			eventually(t, "the other manager's record", func() bool {
				looks++
				return look()[0].SortKey == numbered(50, 51)[0]
			})
			if moved && (looks < 2 || looks > 11) {
				t.Errorf("scan %d found it, and each takes a tenth of the time after which the whole range is scanned", looks)
			}
			if found, want := mustWork(t, s, queued(3, true)), append(numbered(50, 51), numbered(105, 107)...); !slices.Equal(found, want) {
				t.Errorf("taken %q, want %q", found, want)
			}
		})
	}
}

// TestWhatOthersAddInOrderIsFoundFromTheFront: the next scan finds it, also when the range was empty.
func TestWhatOthersAddInOrderIsFoundFromTheFront(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	s, other := open(t, Options{DSN: dsn}), open(t, Options{DSN: dsn})
	clock, starts := moveClock(s), startsOf(s)
	enqueue(t, s, numbered(0, 10)...)
	mustWork(t, s, queued(10, true))
	for range 25 { // the first entry becomes the front, and then the last
		if found := mustWork(t, s, queued(1, true)); len(found) > 0 {
			t.Fatalf("%q are left", found)
		}
		clock.pass(longAgo / 10)
	}
	starts.take()
	want := func(r store.Range, want []string) {
		t.Helper()
		found := mustWork(t, s, r)
		if at := starts.take(); !slices.Equal(found, want) || !slices.Equal(at, numbered(9, 10)) {
			t.Errorf("scans from %q found %q, want %q from %q", at, found, want, numbered(9, 10))
		}
	}
	enqueue(t, other, numbered(10, 13)...)
	want(queued(1, true), numbered(10, 11))
	want(queued(1, false), numbered(11, 12))
	enqueue(t, other, numbered(13, 14)...)
	want(queued(2, true), numbered(12, 14))
}

// TestOrderIsExactBeforeTheFront: the next scan finds what this manager adds there, and an end of the range that lies there
// changes nothing.
func TestOrderIsExactBeforeTheFront(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	clock, starts := moveClock(s), startsOf(s)
	enqueue(t, s, numbered(50, 60)...)
	mustWork(t, s, queued(5, true))
	look := func(r store.Range, want []string) {
		t.Helper()
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("jobs", "state", r)
			var found []string
			for _, h := range hits {
				found = append(found, h.SortKey)
			}
			if err == nil && !slices.Equal(found, want) {
				t.Errorf("%+v: found %q, want %q", r, found, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		clock.pass(longAgo / 10)
	}
	for range 25 {
		look(queued(5, false), numbered(55, 60))
	}
	short := queued(1, false)
	short.To = numbered(40, 41)[0]
	for range 25 {
		look(short, nil)
	}
	look(queued(1, false), numbered(55, 56)) // of the whole range, of which the short ones say nothing
	starts.take()
	look(queued(1, false), numbered(55, 56))
	if at := starts.take(); !slices.Equal(at, numbered(55, 56)) {
		t.Errorf("the scan starts at %q", at)
	}
	enqueue(t, s, numbered(30, 31)...)
	look(queued(2, false), append(numbered(30, 31), numbered(55, 56)...))
}

// TestScanOfAFixedStateAdvancesNothing: a transaction that has read before does not know what was added since.
func TestScanOfAFixedStateAdvancesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	clock := moveClock(s)
	now := s.fronts.Now
	s.fronts.Now = func() time.Time { // a scan takes so long that the whole range counts for longer than longAgo
		clock.pass(longAgo / 10)
		return now()
	}
	enqueue(t, s, numbered(100, 102)...)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		if _, err := tx.Get("jobs", "none"); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("get: %w", err)
		}
		enqueue(t, s, numbered(50, 51)...)
		hits, err := tx.Scan("jobs", "state", queued(1, false))
		if err == nil && (len(hits) != 1 || hits[0].SortKey != numbered(100, 101)[0]) {
			err = fmt.Errorf("hits %v", hits)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	clock.pass(longAgo)
	if found := mustWork(t, s, queued(1, true)); !slices.Equal(found, numbered(50, 51)) {
		t.Errorf("the next scan found %q", found)
	}
}
