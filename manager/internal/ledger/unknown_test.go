package ledger

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func mustUnknown(t testing.TB, l *Ledger, key, token string, ttl time.Duration) {
	t.Helper()
	req := reserveReq(key, token)
	req.UnknownTTL = ttl
	reply, err := l.Unknown(t.Context(), req)
	if err != nil || reply.State != api.StateUnknown || ttl != 0 && reply.ExpiresIn != ttl {
		t.Fatalf("unknown %s by %s: %v for %v, %v", key, token, reply.State, reply.ExpiresIn, err)
	}
}

func mustRenew(t testing.TB, l *Ledger, key, token string, ttl time.Duration) Reply {
	t.Helper()
	req := reserveReq(key, token)
	req.PendingTTL = ttl
	reply, err := l.Renew(t.Context(), req)
	if err != nil || reply.State != api.StateReserved {
		t.Fatalf("renew %s by %s: %v, %v", key, token, reply.State, err)
	}
	return reply
}

func expectUnknown(t testing.TB, l *Ledger, key, token string) {
	t.Helper()
	if reply, err := l.Reserve(t.Context(), reserveReq(key, token), nil); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("reserve %s by %s: %v, %v; want %v", key, token, reply.State, err, ErrOutcomeUnknown)
	}
}

// eachStored runs f with reservations that ran out before and after the sweeper has
// stored that.
func eachStored(t *testing.T, opts Options, f func(t *testing.T, l *Ledger, c *clock, sweep func())) {
	for name, stored := range map[string]bool{"lapsed": false, "stored": true} {
		t.Run(name, func(t *testing.T) {
			l, c := newTestLedger(t, opts)
			f(t, l, c, func() {
				if _, err := l.Sweep(t.Context()); stored && err != nil {
					t.Fatal(err)
				}
			})
			if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
				t.Errorf("counted %d bytes of %d", got, want)
			}
		})
	}
}

// A reservation that nobody ends does not free its key; it blocks it
// for as long as a known outcome would.
func TestVanishedOwnerBlocksItsKey(t *testing.T) {
	eachStored(t, Options{}, func(t *testing.T, l *Ledger, c *clock, sweep func()) {
		req := reserveReq("k", "t1")
		req.Fingerprint = "f"
		if _, err := l.Reserve(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		c.advance(time.Minute)
		sweep()
		for range 2 {
			expectUnknown(t, l, "k", "t2")
			expectUnknown(t, l, "k", "t1")
			req.Token, req.Fingerprint = "t2", "g"
			if _, err := l.Reserve(t.Context(), req, nil); !errors.Is(err, ErrFingerprintMismatch) {
				t.Errorf("another request: %v", err)
			}
			sweep()
			e, err := l.Get(t.Context(), "s", "k")
			if err != nil || e.State != api.StateUnknown || e.ExpiresIn > 300*time.Second {
				t.Errorf("%+v %v", e, err)
			}
			c.advance(150*time.Second - time.Millisecond)
		}
		c.advance(2 * time.Millisecond)
		mustReserve(t, l, "k", "t2", api.StateReserved)
		if s := stats(t, l); s.Calls[OpReserve][OutcomeUnknown] != 4 || s.Expired != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLateOutcomeReplacesUnknown: what the attempt itself says counts, and only that.
func TestLateOutcomeReplacesUnknown(t *testing.T) {
	eachStored(t, Options{}, func(t *testing.T, l *Ledger, c *clock, sweep func()) {
		for _, k := range []string{"commit", "reject", "release", "renew", "other"} {
			mustReserve(t, l, k, "t1", api.StateReserved)
		}
		c.advance(2 * time.Minute)
		sweep()
		mustCommit(t, l, "commit", "t1", "x")
		if r := mustReserve(t, l, "commit", "t2", api.StateCommitted); !bytes.Equal(r.Result, answer(201, "x")) || r.ExpiresIn != 300*time.Second {
			t.Errorf("%q for %v", r.Result, r.ExpiresIn)
		}
		if err := l.Reject(t.Context(), finishReq("reject", "t1", "x")); err != nil {
			t.Error(err)
		}
		mustReserve(t, l, "reject", "t2", api.StateRejected)
		if err := l.Release(t.Context(), releaseReq("release", "t1")); err != nil {
			t.Error(err)
		}
		mustReserve(t, l, "release", "t2", api.StateReserved)
		mustRenew(t, l, "renew", "t1", 10*time.Second)
		mustReserve(t, l, "renew", "t2", api.StatePending)
		c.advance(10 * time.Second)
		expectUnknown(t, l, "renew", "t2")

		stranger := reserveReq("other", "t2")
		_, renewed := l.Renew(t.Context(), stranger)
		_, noted := l.Unknown(t.Context(), stranger)
		for i, err := range []error{
			l.Commit(t.Context(), finishReq("other", "t2", "x")), l.Reject(t.Context(), finishReq("other", "t2", "x")),
			l.Release(t.Context(), releaseReq("other", "t2")), renewed, noted,
		} {
			if !errors.Is(err, ErrFenced) {
				t.Errorf("stranger's call %d: %v", i, err)
			}
		}
		expectUnknown(t, l, "other", "t1")
		if s := stats(t, l); s.Calls[OpRenew][OutcomeDone] != 1 || s.Calls[OpRenew][OutcomeFenced] != 1 || s.Calls[OpCommit][OutcomeDone] != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRenewExtendsAReservation(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	if r := mustRenew(t, l, "k", "t1", 10*time.Second); r.ExpiresIn != time.Minute {
		t.Errorf("a renewal left %v", r.ExpiresIn)
	}
	for range 10 {
		c.advance(59 * time.Second)
		if r := mustRenew(t, l, "k", "t1", 0); r.ExpiresIn != time.Minute {
			t.Errorf("a renewal left %v", r.ExpiresIn)
		}
		mustReserve(t, l, "k", "t2", api.StatePending)
	}
	if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.Age != 590*time.Second {
		t.Errorf("%+v %v", e, err)
	}
	mustCommit(t, l, "k", "t1", "x")
	if _, err := l.Renew(t.Context(), reserveReq("k", "t1")); !errors.Is(err, ErrConflict) {
		t.Errorf("after the outcome: %v", err)
	}
	// Gone, and nobody asked since: the work still runs.
	mustRenew(t, l, "gone", "t1", 0)
	mustReserve(t, l, "gone", "t2", api.StatePending)
	if s := stats(t, l); s.Calls[OpRenew] != [outcomeCount]uint64{OutcomeDone: 11, OutcomeLate: 1, OutcomeConflict: 1} {
		t.Errorf("%v", s.Calls[OpRenew])
	}
}

// TestRenewKeepsUnknownTTL: a renewal that says nothing of it does not change what the
// reservation asked for.
func TestRenewKeepsUnknownTTL(t *testing.T) {
	eachStored(t, Options{}, func(t *testing.T, l *Ledger, c *clock, sweep func()) {
		req := reserveReq("k", "t1")
		req.UnknownTTL = time.Hour
		if _, err := l.Reserve(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			mustRenew(t, l, "k", "t1", time.Minute)
			c.advance(time.Minute)
			sweep()
			if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.State != api.StateUnknown || e.ExpiresIn != time.Hour {
				t.Errorf("%+v %v", e, err)
			}
		}
		req.UnknownTTL = api.NoUnknown
		if _, err := l.Renew(t.Context(), req); err != nil {
			t.Error(err)
		}
		c.advance(time.Minute)
		mustReserve(t, l, "k", "t2", api.StateReserved)
	})
}

func TestUnknownBlocksItsKey(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	mustUnknown(t, l, "k", "t1", time.Hour)
	expectUnknown(t, l, "k", "t2")
	c.advance(time.Minute)
	if r, err := l.Unknown(t.Context(), reserveReq("k", "t1")); err != nil || r.State != api.StateUnknown || r.ExpiresIn != 59*time.Minute {
		t.Errorf("the same call again: %+v %v", r, err)
	}
	c.advance(59 * time.Minute)
	mustReserve(t, l, "k", "t2", api.StateReserved)

	mustUnknown(t, l, "gone", "t1", 0)
	if e, err := l.Get(t.Context(), "s", "gone"); err != nil || e.State != api.StateUnknown || e.ExpiresIn != 300*time.Second {
		t.Errorf("%+v %v", e, err)
	}
	mustCommit(t, l, "final", "t1", "x")
	if _, err := l.Unknown(t.Context(), reserveReq("final", "t1")); !errors.Is(err, ErrConflict) {
		t.Errorf("after the outcome: %v", err)
	}
	if s := stats(t, l); s.Calls[OpUnknown] != [outcomeCount]uint64{OutcomeDone: 1, OutcomeLate: 1, OutcomeRepeated: 1, OutcomeConflict: 1} {
		t.Errorf("%v", s.Calls[OpUnknown])
	}
}

// TestUnknownTurnedOff: where nothing is to be remembered, the reservation runs out as it
// always did; what a reservation asks for itself counts more than the manager's default.
func TestUnknownTurnedOff(t *testing.T) {
	l, c := newTestLedger(t, Options{UnknownTTL: api.NoUnknown})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	asks := reserveReq("asks", "t1")
	asks.UnknownTTL = time.Minute
	if _, err := l.Reserve(t.Context(), asks, nil); err != nil {
		t.Fatal(err)
	}
	c.advance(50 * time.Second)
	if r, err := l.Unknown(t.Context(), reserveReq("k", "t1")); err != nil || r.State != api.StatePending || r.ExpiresIn != 10*time.Second {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := l.Unknown(t.Context(), reserveReq("none", "t1")); err != nil || r.State != api.StateNone {
		t.Errorf("%+v %v", r, err)
	}
	c.advance(10 * time.Second)
	mustReserve(t, l, "k", "t2", api.StateReserved)
	expectUnknown(t, l, "asks", "t2")
	c.advance(time.Minute)
	mustReserve(t, l, "asks", "t2", api.StateReserved)
}

func TestFieldsThatRenewAndUnknownDoNotTake(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	for _, c := range []struct {
		call  func() (Reply, error)
		field string
	}{
		{func() (Reply, error) {
			return l.Renew(t.Context(), &api.ReserveRequest{Key: "k", Token: "t", Wait: time.Second})
		}, "wait_ms"},
		{func() (Reply, error) {
			return l.Unknown(t.Context(), &api.ReserveRequest{Key: "k", Token: "t", Wait: time.Second})
		}, "wait_ms"},
		{func() (Reply, error) {
			return l.Unknown(t.Context(), &api.ReserveRequest{Key: "k", Token: "t", PendingTTL: time.Second})
		}, "pending_ttl_ms"},
		{func() (Reply, error) {
			return l.Unknown(t.Context(), &api.ReserveRequest{Key: "k", Token: "t", UnknownTTL: api.NoUnknown})
		}, "unknown_ttl_ms"},
		{func() (Reply, error) { return l.Unknown(t.Context(), &api.ReserveRequest{Key: "k"}) }, "token"},
	} {
		_, err := c.call()
		var field *api.FieldError
		if !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

// TestWaitersAreToldThatItIsUnknown: at once, all of them, and in order.
func TestWaitersAreToldThatItIsUnknown(t *testing.T) {
	wantUnknown := func(t *testing.T, h *held, after time.Duration) {
		t.Helper()
		<-h.done
		if !errors.Is(h.err, ErrOutcomeUnknown) || h.took < after || h.took > after+2*minTimer {
			t.Errorf("%s: %v %v after %v", h.token, h.reply.State, h.err, h.took)
		}
	}
	waiting(t, Options{PendingTTL: 4 * time.Second}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a, b := hold(t.Context(), l, "k", "a", 30*time.Second), hold(t.Context(), l, "k", "b", 30*time.Second)
		wantUnknown(t, a, 4*time.Second)
		wantUnknown(t, b, 4*time.Second)

		mustReserve(t, l, "said", "t0", api.StateReserved)
		a, b = hold(t.Context(), l, "said", "a", 30*time.Second), hold(t.Context(), l, "said", "b", 30*time.Second)
		time.Sleep(time.Second)
		mustUnknown(t, l, "said", "t0", time.Minute)
		wantUnknown(t, a, time.Second)
		wantUnknown(t, b, time.Second)
	})
}

// TestWaiterSeesTheRenewal: one that waits for a reservation that is renewed keeps waiting
// waiting.
func TestWaiterSeesTheRenewal(t *testing.T) {
	waiting(t, Options{PendingTTL: 3 * time.Second}, func(t *testing.T, l *Ledger) {
		mustReserve(t, l, "k", "t0", api.StateReserved)
		a := hold(t.Context(), l, "k", "a", 30*time.Second)
		for range 6 {
			time.Sleep(2 * time.Second)
			mustRenew(t, l, "k", "t0", 0)
			if !a.waits() {
				t.Fatalf("%v %v", a.reply.State, a.err)
			}
		}
		mustCommit(t, l, "k", "t0", "x")
		synctest.Wait()
		a.expect(t, api.StateCommitted)
	})
}

func TestOperatorsSettleUnknownOutcomes(t *testing.T) {
	eachStored(t, Options{}, func(t *testing.T, l *Ledger, c *clock, sweep func()) {
		bare := api.Result{Status: 200, BodyOmitted: true}
		for _, k := range []string{"a", "b", "c", "pending"} {
			mustReserve(t, l, k, "t1", api.StateReserved)
		}
		resolve := func(key string, res Resolution, want api.State) {
			t.Helper()
			if e, err := l.Resolve(t.Context(), "s", key, res); err != nil || e.State != want {
				t.Errorf("%s: %+v %v", key, e, err)
			}
		}
		var state *StateError
		released := Resolution{As: api.StateReleased}
		if _, err := l.Resolve(t.Context(), "s", "pending", released); !errors.As(err, &state) || state.State != api.StatePending {
			t.Errorf("a reservation that holds: %v", err)
		}
		mustCommit(t, l, "pending", "t1", "x")
		if _, err := l.Resolve(t.Context(), "s", "pending", released); !errors.As(err, &state) || state.State != api.StateCommitted {
			t.Errorf("an outcome that is known: %v", err)
		}
		if _, err := l.Resolve(t.Context(), "s", "none", released); !errors.Is(err, ErrNotFound) {
			t.Errorf("nothing: %v", err)
		}
		c.advance(time.Minute)
		sweep()
		resolve("a", Resolution{As: api.StateCommitted, Result: bare.AppendRaw(nil)}, api.StateCommitted)
		resolve("b", Resolution{As: api.StateRejected, Result: answer(409, "no"), TTL: time.Hour}, api.StateRejected)
		resolve("c", released, api.StateReleased)
		if r := mustReserve(t, l, "a", "t2", api.StateCommitted); !bytes.Equal(r.Result, bare.AppendRaw(nil)) {
			t.Errorf("%q", r.Result)
		}
		if r := mustReserve(t, l, "b", "t2", api.StateRejected); !bytes.Equal(r.Result, answer(409, "no")) || r.ExpiresIn != time.Hour {
			t.Errorf("%q for %v", r.Result, r.ExpiresIn)
		}
		mustReserve(t, l, "c", "t2", api.StateReserved)
		// The attempt's own outcome comes after all.
		mustCommit(t, l, "a", "t1", "x")
		if err := l.Commit(t.Context(), finishReq("b", "t1", "x")); !errors.Is(err, ErrConflict) {
			t.Errorf("late: %v", err)
		}
		if err := l.Commit(t.Context(), finishReq("c", "t1", "x")); !errors.Is(err, ErrFenced) {
			t.Errorf("late: %v", err)
		}
		if s := stats(t, l); s.Calls[OpResolve] != [outcomeCount]uint64{OutcomeDone: 3, OutcomeConflict: 2, OutcomeNotFound: 1} {
			t.Errorf("%v", s.Calls[OpResolve])
		}
	})
}

// TestUnknownKeepsItsRoom: in a full window UNKNOWN entries are as good as final ones.
func TestUnknownKeepsItsRoom(t *testing.T) {
	eachStored(t, Options{MaxEntries: 1, UnknownTTL: 2 * time.Minute}, func(t *testing.T, l *Ledger, c *clock, sweep func()) {
		mustReserve(t, l, "a", "t", api.StateReserved)
		c.advance(90 * time.Second)
		sweep()
		refused(t, l, "s", "b")
		expectUnknown(t, l, "a", "t")
		c.advance(90 * time.Second)
		mustReserve(t, l, "b", "t", api.StateReserved)
	})
}

// TestDefaultOfUnknownTTL: a reservation that left it to the manager follows the manager
// that finds it.
func TestDefaultOfUnknownTTL(t *testing.T) {
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	t.Cleanup(func() { _ = st.Close() })
	long, off := ledgerOn(t, st, Options{UnknownTTL: time.Hour}), ledgerOn(t, st, Options{UnknownTTL: api.NoUnknown})
	mustReserve(t, off, "k", "t1", api.StateReserved)
	c.advance(2 * time.Minute)
	expectUnknown(t, long, "k", "t2")
	mustReserve(t, off, "k", "t2", api.StateReserved)
}

// TestDowntimeOfARenewedReservation: one that gets its whole time again gets that of its
// last renewal, however long its work has been running.
func TestDowntimeOfARenewedReservation(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	for range 60 {
		c.advance(time.Minute)
		mustRenew(t, l, "k", "t1", 0)
	}
	c.advance(30 * time.Second)
	key := EntryKey("s", "k")
	err := l.Update(t.Context(), func(tx *Tx) error {
		value, err := tx.Get(Collection, key)
		if err != nil {
			return err
		}
		extended, err := extendReservation(tx.Tx, key, value, store.Away{To: c.Now()})
		if !extended {
			t.Error("it was not extended")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.ExpiresIn != time.Minute {
		t.Errorf("%+v %v", e, err)
	}
}
