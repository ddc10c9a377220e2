package ledger

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// refused demands an ErrFull and returns what it says.
func refused(t testing.TB, l *Ledger, scope, key string) *FullError {
	t.Helper()
	req := reserveReq(key, "t")
	req.Scope = scope
	reply, err := l.Reserve(t.Context(), req, nil)
	var full *FullError
	if !errors.As(err, &full) || !errors.Is(err, ErrFull) {
		t.Fatalf("reserve of %s in %q: %v, %v; want ErrFull", key, scope, reply.State, err)
	}
	return full
}

// TestTheFirstAnswerIsStillThere: 101,000 keys inside the window, which is what one client
// reserves and commits in 8 s, push no answer out that has not expired.
func TestTheFirstAnswerIsStillThere(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	for i := range 101_000 {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
		mustCommit(t, l, name("k", i), "t", "x")
	}
	mustReserve(t, l, "k0", "retry", api.StateCommitted)
	if s := stats(t, l); s.Committed != 101_000 {
		t.Errorf("%d answers are left", s.Committed)
	}
}

func TestDefaultsOfTheWindow(t *testing.T) {
	o := Options{}.WithDefaults()
	if o.MaxBytes != 512<<20 || o.MaxEntries != 1<<20 || o.ScopeShare != 0.75 {
		t.Errorf("%+v", o)
	}
	if all, scope := o.KeysPerSecond(true); int(all) != 3495 || int(scope) != 2621 {
		t.Errorf("%v keys/s, %v of one scope", all, scope)
	}
	o = Options{MaxEntries: 100_000, ScopeShare: -1}.WithDefaults()
	if all, scope := o.KeysPerSecond(true); int(all) != 333 || scope != all {
		t.Errorf("%v keys/s, %v of one scope", all, scope)
	}
}

// TestAFullWindowRefuses: nothing that has not expired makes room, and what is there
// continues as if there were room.
func TestAFullWindowRefuses(t *testing.T) {
	l, c := newTestLedger(t, Options{MaxEntries: 4, ScopeShare: -1, CommittedTTL: 30 * time.Second, PendingTTL: time.Hour})
	for i := range 3 {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
		mustCommit(t, l, name("k", i), "t", "x")
		c.advance(time.Second)
	}
	mustReserve(t, l, "p", "t", api.StateReserved)
	if full := refused(t, l, "s", "new"); full.RetryAfter != 27*time.Second || full.Share {
		t.Errorf("%+v; the first entry expires in 27 s", full)
	}
	mustReserve(t, l, "k0", "retry", api.StateCommitted)
	mustReserve(t, l, "p", "t", api.StateReserved)
	mustReserve(t, l, "p", "u", api.StatePending)
	mustCommit(t, l, "p", "t", "x")
	refused(t, l, "s", "new")
	c.advance(27 * time.Second) // no sweep
	mustReserve(t, l, "new", "t", api.StateReserved)
	if full := refused(t, l, "s", "newer"); full.RetryAfter != time.Second {
		t.Errorf("%+v", full)
	}
	if s := stats(t, l); s.Calls[OpReserve][OutcomeFull] != 3 || s.Expired != 1 {
		t.Errorf("%+v", s)
	}
}

// TestAWindowFullOfBytesRefuses: the answers that are to come count before they come,
// and when they turn out larger than expected, they are recorded as well.
func TestAWindowFullOfBytesRefuses(t *testing.T) {
	const limit = 1 << 20
	l, c := newTestLedger(t, Options{MaxBytes: limit, ScopeShare: -1})
	n := 0
	for ; ; n++ {
		if _, err := l.Reserve(t.Context(), reserveReq(name("k", n), "t"), nil); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if got := int64(n) * (TypicalEntryBytes - 64); got > limit {
		t.Errorf("%d reservations in %d bytes", n, limit)
	}
	if n < 1000 {
		t.Errorf("only %d reservations", n)
	}
	body := strings.Repeat("x", 100<<10)
	for i := range n {
		mustCommit(t, l, name("k", i), "t", body)
	}
	s := stats(t, l)
	if s.Bytes > limit+limit/8 || s.Bytes != bytesOf(t, l) {
		t.Errorf("%d bytes", s.Bytes)
	}
	if s.Committed != n || s.WithoutAnswer == 0 {
		t.Errorf("%d outcomes recorded of %d: %+v", s.Committed, n, s)
	}
	if r := mustReserve(t, l, "k0", "retry", api.StateCommitted); string(r.Result) != string(answer(201, body)) {
		t.Errorf("the first answer has become %.60q", r.Result)
	}
	r := mustReserve(t, l, name("k", n-1), "retry", api.StateCommitted)
	var result api.Result
	if err := result.ParseRaw(r.Result); err != nil || result.Status != 201 || !result.BodyOmitted {
		t.Errorf("the last answer: %+v, %v", result, err)
	}
	refused(t, l, "s", "new")
	c.advance(time.Hour)
	mustReserve(t, l, "new", "t", api.StateReserved)
}

// TestLateOutcomesAreBounded: they may fill an eighth more than the window, and no more.
func TestLateOutcomesAreBounded(t *testing.T) {
	l, _ := newTestLedger(t, Options{MaxEntries: 80, ScopeShare: -1})
	for i := range 80 {
		mustReserve(t, l, name("k", i), "t", api.StateReserved)
	}
	for i := range 11 {
		mustCommit(t, l, name("late", i), "t", "x")
	}
	if err := l.Commit(t.Context(), finishReq("later", "t", "x")); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	for i := range 80 {
		mustCommit(t, l, name("k", i), "t", "x")
	}
	if s := stats(t, l); s.Committed != 91 || s.Calls[OpCommit][OutcomeFull] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestManyReserversAtTheLimit: the limit holds for as many as come at once, and each
// outcome of theirs is recorded.
func TestManyReserversAtTheLimit(t *testing.T) {
	const limit, callers, each = 1000, 64, 40
	l := durableLedgerOf(t, Options{MaxEntries: limit, ScopeShare: -1})
	var reserved, full atomic.Int64
	atOnce(callers, callers*each, func(i int) {
		_, err := l.Reserve(context.Background(), reserveReq(name("k", i), "t"), nil)
		switch {
		case errors.Is(err, ErrFull):
			full.Add(1)
			return
		case err != nil:
			t.Error(err)
			return
		}
		reserved.Add(1)
		if err := l.Commit(context.Background(), finishReq(name("k", i), "t", "x")); err != nil {
			t.Error(err)
		}
	})
	if s := stats(t, l); reserved.Load() != limit || full.Load() != callers*each-limit || s.Committed != limit {
		t.Errorf("%d reserved, %d refused: %+v", reserved.Load(), full.Load(), s)
	}
}

// fillScope reserves and commits new keys of a scope until one is refused, at most n.
func fillScope(t testing.TB, l *Ledger, scope string, n int) (done int) {
	t.Helper()
	for i := range n {
		req := reserveReq(name("k", i), "t")
		req.Scope = scope
		if _, err := l.Reserve(t.Context(), req, nil); errors.Is(err, ErrFull) {
			return i
		} else if err != nil {
			t.Fatal(err)
		}
		f := finishReq(name("k", i), "t", "x")
		f.Scope = scope
		if err := l.Commit(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestEachScopeFindsRoom: any number of scopes that take what they can get leave
// something for one that comes later, also after a restart, and on an engine where
// each manager knows only what it inserted itself.
func TestEachScopeFindsRoom(t *testing.T) {
	const limit = 2000
	t.Run("local", func(t *testing.T) {
		disk := new(faultfs.FS)
		opts := Options{MaxEntries: limit, ScopeShare: 0.5}
		l := ledgerOn(t, storeOn(t, disk), opts)
		for _, c := range []struct {
			scope string
			want  int
		}{{"flood", 1000}, {"second", 500}, {"third", 250}} {
			if got := fillScope(t, l, c.scope, 10*limit); got != c.want {
				t.Errorf("%s has %d entries, want %d", c.scope, got, c.want)
			}
		}
		if full := refused(t, l, "flood", "more"); !full.Share || full.RetryAfter < time.Second {
			t.Errorf("%+v", full)
		}
		stopLedger(t, l)
		l = ledgerOn(t, storeOn(t, disk), opts)
		refused(t, l, "flood", "more")
		refused(t, l, "third", "more")
		if got := fillScope(t, l, "small", 100); got != 100 {
			t.Errorf("a small scope has %d entries of 100", got)
		}
		if s := stats(t, l); s.Calls[OpReserve][OutcomeOverShare] != 2 {
			t.Errorf("%+v", s)
		}
		// What a scope held is free again once it is gone.
		for i := range 900 {
			if _, err := l.Delete(t.Context(), "flood", name("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		if got := fillScope(t, l, "third", 10*limit); got == 0 || got > 1000 {
			t.Errorf("the third went up by %d", got)
		}
	})
	t.Run("shared", func(t *testing.T) {
		l := ledgerOn(t, sharedStore{mem.New(mem.Options{})}, Options{MaxEntries: limit, ScopeShare: 0.5})
		if got := fillScope(t, l, "flood", 10*limit); got < 900 || got > 1100 {
			t.Errorf("the flood has %d entries, want about 1000", got)
		}
		if got := fillScope(t, l, "small", 100); got != 100 {
			t.Errorf("a small scope has %d entries of 100", got)
		}
		for range 200 {
			l.scopes.Decay(10*time.Second, 300*time.Second)
		}
		if n := heldBy(l, "flood").Entries; n != 0 {
			t.Errorf("%d entries are not forgotten after 2000 s", n)
		}
	})
}

// TestBytesOfScopes: the share is one of bytes as well.
func TestBytesOfScopes(t *testing.T) {
	l, _ := newTestLedger(t, Options{MaxBytes: 4 << 20, MaxEntries: 1_000_000, ScopeShare: 0.5})
	n := fillScope(t, l, "flood", 100_000)
	if s := stats(t, l); s.Bytes < 3<<19 || s.Bytes > 5<<19 {
		t.Errorf("%d entries of the flood have %d bytes of %d", n, s.Bytes, s.MaxBytes)
	}
	if got := fillScope(t, l, "small", 100); got != 100 {
		t.Errorf("a small scope has %d entries of 100", got)
	}
}

// TestPressureIsTold: once when it begins, and then no more than so often.
func TestPressureIsTold(t *testing.T) {
	l, _ := newTestLedger(t, Options{MaxEntries: 2, ScopeShare: -1})
	mustReserve(t, l, "k0", "t", api.StateReserved)
	mustReserve(t, l, "k1", "t", api.StateReserved)
	refused(t, l, "s", "more")
	refused(t, l, "s", "more")
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan Pressure, 10)
	var wg sync.WaitGroup
	wg.Go(func() { l.WatchPressure(ctx, 5*time.Millisecond, func(p Pressure) { reports <- p }) })
	if got := <-reports; got != (Pressure{Refused: 2}) {
		t.Errorf("first %+v", got)
	}
	refused(t, l, "s", "more")
	if got := <-reports; got != (Pressure{Refused: 1}) {
		t.Errorf("then %+v", got)
	}
	cancel()
	wg.Wait()
	if len(reports) != 0 {
		t.Errorf("reports %+v for nothing", <-reports)
	}
}

// TestOneKeyDoesNotTakeAllPlaces: a storm on one key leaves places for callers that wait
// for others, also when there are several storms.
func TestOneKeyDoesNotTakeAllPlaces(t *testing.T) {
	l, _ := newTestLedger(t, Options{MaxWaiters: 100, MaxWait: time.Hour})
	for _, key := range []string{"a", "b", "c", "d"} {
		mustReserve(t, l, key, "t", api.StateReserved)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	storm := func(key string) (held int) {
		for i := range 200 {
			in := make(chan bool, 2)
			wg.Go(func() {
				req := reserveReq(key, name("w", i))
				req.Wait = time.Hour
				_, _ = l.Reserve(ctx, req, func() (context.Context, func()) {
					in <- true
					return ctx, func() {}
				})
				in <- false
			})
			if <-in {
				held++
			}
		}
		return held
	}
	for _, c := range []struct {
		key  string
		want int
	}{{"a", 50}, {"b", 25}, {"c", 13}, {"d", 6}} {
		if got := storm(c.key); got != c.want {
			t.Errorf("%d wait for %s, want %d", got, c.key, c.want)
		}
	}
	if s := stats(t, l); s.Waiters != 94 || s.WaitsRefused != 4*200-94 {
		t.Errorf("%+v", s)
	}
}
