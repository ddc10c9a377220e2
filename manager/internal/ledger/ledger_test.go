package ledger

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestReserveCommitReplay(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	first := mustReserve(t, l, "k", "t1", api.StateReserved)
	if first.ExpiresIn != 60*time.Second {
		t.Errorf("reserved for %v", first.ExpiresIn)
	}
	c.advance(10 * time.Second)
	again := mustReserve(t, l, "k", "t1", api.StateReserved)
	if again.ExpiresIn != 50*time.Second {
		t.Errorf("the same call again says %v, want what is left: 50s", again.ExpiresIn)
	}
	other := mustReserve(t, l, "k", "t2", api.StatePending)
	if other.ExpiresIn != 50*time.Second {
		t.Errorf("pending for %v", other.ExpiresIn)
	}
	mustCommit(t, l, "k", "t1", "hello")
	mustCommit(t, l, "k", "t1", "another body changes nothing")
	if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.Age != 10*time.Second {
		t.Errorf("age %v, %v: must count from the reservation", e.Age, err)
	}
	c.advance(time.Second)
	for _, token := range []string{"t1", "t2"} {
		reply := mustReserve(t, l, "k", token, api.StateCommitted)
		if !bytes.Equal(reply.Result, answer(201, "hello")) || reply.ExpiresIn != 299*time.Second {
			t.Errorf("replay %q for %v", reply.Result, reply.ExpiresIn)
		}
	}
	if err := l.Reject(t.Context(), finishReq("k", "t1", "no")); !errors.Is(err, ErrConflict) {
		t.Errorf("reject after commit by the same attempt: %v", err)
	}
	if err := l.Release(t.Context(), releaseReq("k", "t1")); !errors.Is(err, ErrConflict) {
		t.Errorf("release after commit by the same attempt: %v", err)
	}
	if err := l.Release(t.Context(), releaseReq("k", "t2")); !errors.Is(err, ErrFenced) {
		t.Errorf("release by a stranger: %v", err)
	}
}

func TestScopesAreApart(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	reply, err := l.Reserve(t.Context(), &api.ReserveRequest{Key: "k", Scope: "other", Token: "t2"}, nil)
	if err != nil || reply.State != api.StateReserved {
		t.Errorf("same key in another scope: %v %v", reply.State, err)
	}
}

func TestExpiryIsImmediate(t *testing.T) {
	for _, state := range storedStates {
		t.Run(state.String(), func(t *testing.T) {
			l, c := newTestLedger(t, Options{
				PendingTTL: time.Minute, CommittedTTL: time.Minute, RejectedTTL: time.Minute, UnknownTTL: api.NoUnknown,
			})
			mustReserve(t, l, "k", "t1", api.StateReserved)
			switch state {
			case api.StateCommitted:
				mustCommit(t, l, "k", "t1", "x")
			case api.StateRejected:
				if err := l.Reject(t.Context(), finishReq("k", "t1", "x")); err != nil {
					t.Fatal(err)
				}
			case api.StateUnknown:
				mustUnknown(t, l, "k", "t1", time.Minute)
			}
			c.advance(time.Minute - time.Millisecond)
			if e, err := l.Get(t.Context(), "s", "k"); err != nil || e.State != state || e.ExpiresIn != time.Millisecond {
				t.Fatalf("just before: %+v %v", e, err)
			}
			c.advance(time.Millisecond)
			if _, err := l.Get(t.Context(), "s", "k"); !errors.Is(err, ErrNotFound) {
				t.Fatalf("at its end: %v", err)
			}
			mustReserve(t, l, "k", "t2", api.StateReserved)
			if got := stats(t, l); got.Pending != 1 || got.Committed+got.Rejected+got.Unknown != 0 || got.Expired != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestLateOutcomeIsAccepted(t *testing.T) {
	for _, swept := range []bool{false, true} {
		l, c := newTestLedger(t, Options{})
		mustReserve(t, l, "k", "t1", api.StateReserved)
		c.advance(time.Hour)
		if swept {
			if n, err := l.Sweep(t.Context()); n != 1 || err != nil {
				t.Fatalf("sweep: %d %v", n, err)
			}
		}
		mustCommit(t, l, "k", "t1", "late")
		reply := mustReserve(t, l, "k", "t2", api.StateCommitted)
		if !bytes.Equal(reply.Result, answer(201, "late")) {
			t.Errorf("replay %q", reply.Result)
		}
		if got := stats(t, l); got.Calls[OpCommit][OutcomeLate] != 1 || got.Committed != 1 {
			t.Errorf("swept %v: %+v", swept, got)
		}
		if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
			t.Errorf("counted %d bytes of %d", got, want)
		}
	}
}

func TestSupersededTokenIsFenced(t *testing.T) {
	l, c := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	c.advance(time.Hour)
	mustReserve(t, l, "k", "t2", api.StateReserved)
	for i, err := range []error{
		l.Commit(t.Context(), finishReq("k", "t1", "x")),
		l.Reject(t.Context(), finishReq("k", "t1", "x")),
		l.Release(t.Context(), releaseReq("k", "t1")),
	} {
		if !errors.Is(err, ErrFenced) {
			t.Errorf("call %d of the old attempt: %v", i, err)
		}
	}
	mustCommit(t, l, "k", "t2", "mine")
	if err := l.Commit(t.Context(), finishReq("k", "t1", "x")); !errors.Is(err, ErrFenced) {
		t.Errorf("after the new attempt's outcome: %v", err)
	}
	if reply := mustReserve(t, l, "k", "t3", api.StateCommitted); !bytes.Equal(reply.Result, answer(201, "mine")) {
		t.Errorf("recorded %q", reply.Result)
	}
	got, byOp := stats(t, l), map[string]uint64{}
	got.EachFenced(func(op string, n uint64) { byOp[op] = n })
	if want := map[string]uint64{"commit": 2, "reject": 1, "unknown": 0, "release": 1, "renew": 0}; !maps.Equal(byOp, want) || got.FencedOutcomes() != 3 {
		t.Errorf("counted %v fenced calls and %d fenced outcomes, want %v and 3", byOp, got.FencedOutcomes(), want)
	}
}

func TestReleaseFreesTheKey(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	mustReserve(t, l, "k", "t1", api.StateReserved)
	for range 2 { // the second time is the same call
		if err := l.Release(t.Context(), releaseReq("k", "t1")); err != nil {
			t.Fatal(err)
		}
	}
	mustReserve(t, l, "k", "t2", api.StateReserved)
}

func TestOtherFingerprintIsRefused(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	reserve := func(token, fp string) error {
		req := reserveReq("k", token)
		req.Fingerprint = fp
		_, err := l.Reserve(t.Context(), req, nil)
		return err
	}
	if err := reserve("t1", "f"); err != nil {
		t.Fatal(err)
	}
	before, _ := l.Get(t.Context(), "s", "k")
	if err := reserve("t1", "g"); !errors.Is(err, ErrFingerprintMismatch) {
		t.Errorf("another fingerprint while pending: %v", err)
	}
	if err := reserve("t2", ""); err != nil {
		t.Errorf("no fingerprint: %v", err)
	}
	req := finishReq("k", "t1", "x")
	req.Fingerprint = "g"
	if err := l.Commit(t.Context(), req); !errors.Is(err, ErrFingerprintMismatch) {
		t.Errorf("commit with another fingerprint: %v", err)
	}
	if after, _ := l.Get(t.Context(), "s", "k"); after.State != before.State || after.Fingerprint != "f" {
		t.Errorf("a mismatch changed the entry: %+v", after)
	}
	req.Fingerprint = ""
	if err := l.Commit(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := reserve("t3", "g"); !errors.Is(err, ErrFingerprintMismatch) {
		t.Errorf("another fingerprint once final: %v", err)
	}
	if err := reserve("t3", "f"); err != nil {
		t.Errorf("the fingerprint of the reservation was lost: %v", err)
	}
}

func TestRequestedTTLs(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	req := reserveReq("k", "t")
	req.PendingTTL = 5 * time.Second
	if reply, err := l.Reserve(t.Context(), req, nil); err != nil || reply.ExpiresIn != 5*time.Second {
		t.Fatalf("%v %v", reply, err)
	}
	fin := finishReq("k", "t", "x")
	fin.TTL = 7 * time.Second
	if err := l.Commit(t.Context(), fin); err != nil {
		t.Fatal(err)
	}
	if reply := mustReserve(t, l, "k", "u", api.StateCommitted); reply.ExpiresIn != 7*time.Second {
		t.Errorf("remembered for %v", reply.ExpiresIn)
	}
}

func TestInvalidRequestsChangeNothing(t *testing.T) {
	l, _ := newTestLedger(t, Options{MaxResultBytes: 100})
	long := strings.Repeat("x", 300)
	calls := map[string]func() error{
		"empty key":       func() error { _, err := l.Reserve(t.Context(), &api.ReserveRequest{Token: "t"}, nil); return err },
		"key of 256":      func() error { _, err := l.Reserve(t.Context(), reserveReq(long[:256], "t"), nil); return err },
		"key with a line": func() error { _, err := l.Reserve(t.Context(), reserveReq("a\nb", "t"), nil); return err },
		"no token":        func() error { _, err := l.Reserve(t.Context(), reserveReq("k", ""), nil); return err },
		"ttl": func() error {
			r := reserveReq("k", "t")
			r.PendingTTL = api.MaxTTL + 1
			_, err := l.Reserve(t.Context(), r, nil)
			return err
		},
		"commit ttl": func() error { r := finishReq("k", "t", ""); r.TTL = -1; return l.Commit(t.Context(), r) },
		"ref":        func() error { r := finishReq("k", "t", ""); r.Ref = long; return l.Commit(t.Context(), r) },
		"garbage": func() error {
			r := finishReq("k", "t", "")
			r.Result = []byte("garbage")
			return l.Commit(t.Context(), r)
		},
		"header injection": func() error {
			bad := api.Result{Status: 200, Headers: []api.Header{{Name: "a", Value: "b\r\nc: d"}}}
			r := finishReq("k", "t", "")
			r.Result = bad.AppendRaw(nil)
			return l.Commit(t.Context(), r)
		},
		"release": func() error { return l.Release(t.Context(), releaseReq("", "t")) },
	}
	for what, call := range calls {
		err := call()
		if outcomeOf(err) != OutcomeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := l.Commit(t.Context(), finishReq("k", "t", long)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a result over the limit: %v", err)
	}
	if got := stats(t, l); got.Pending+got.Committed+got.Rejected != 0 {
		t.Errorf("something was stored: %+v", got)
	}
}

// fault is an error that a test switches on and off.
type fault struct{ p atomic.Pointer[error] }

func (f *fault) set(err error) { f.p.Store(&err) }

func (f *fault) get() error {
	if p := f.p.Load(); p != nil {
		return *p
	}
	return nil
}

// faultyStore fails on request.
type faultyStore struct {
	store.Store
	update, view fault
	// after makes Update fail after it happened: the outcome is unknown.
	after fault
}

func (s *faultyStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.update.get(); err != nil {
		return err
	}
	if err := s.Store.Update(ctx, fn); err != nil {
		return err
	}
	return s.after.get()
}

func (s *faultyStore) View(ctx context.Context, fn func(store.Tx) error) error {
	if err := s.view.get(); err != nil {
		return err
	}
	return s.Store.View(ctx, fn)
}

func TestStoreErrorsReachTheCaller(t *testing.T) {
	st := &faultyStore{Store: mem.New(mem.Options{})}
	l := ledgerOn(t, st, Options{})
	st.update.set(store.ErrNoSpace)
	if _, err := l.Reserve(t.Context(), reserveReq("k", "t"), nil); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("reserve: %v", err)
	}
	if err := l.Commit(t.Context(), finishReq("k", "t", "x")); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("commit: %v", err)
	}
	st.view.set(store.ErrUnavailable)
	if _, _, err := l.Recorded(t.Context(), reserveReq("k", "t")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("recorded: %v", err)
	}
	st.update.set(nil)
	st.view.set(nil)
	if got := stats(t, l); got.Calls[OpReserve][OutcomeError] != 2 || got.Calls[OpCommit][OutcomeError] != 1 {
		t.Errorf("errors are counted as %v", got.Calls)
	}
	mustReserve(t, l, "k", "t", api.StateReserved)
}

// The answer was lost, the same call settles it, and the
// count of bytes is the truth.
func TestSameCallSettlesALostAnswer(t *testing.T) {
	st := &faultyStore{Store: mem.New(mem.Options{})}
	l := ledgerOn(t, st, Options{})
	st.after.set(store.ErrUnconfirmed)
	if _, err := l.Reserve(t.Context(), reserveReq("k", "t"), nil); !errors.Is(err, store.ErrUnconfirmed) {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context(), finishReq("k", "t", "x")); !errors.Is(err, store.ErrUnconfirmed) {
		t.Fatal(err)
	}
	st.after.set(nil)
	mustCommit(t, l, "k", "t", "x")
	mustReserve(t, l, "k", "u", api.StateCommitted)
	if err := l.maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want || want == 0 {
		t.Errorf("counted %d bytes of %d", got, want)
	}
}

func TestCorruptRecordIsToldAndKept(t *testing.T) {
	st := mem.New(mem.Options{})
	l := ledgerOn(t, st, Options{})
	key := EntryKey("s", "k")
	garbage := []byte{99, 1, 2, 3}
	if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(Collection, key, garbage) }); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Reserve(t.Context(), reserveReq("k", "t"), nil); !errors.Is(err, store.ErrUnreadable) || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("reserve: %v", err)
	}
	if err := l.Commit(t.Context(), finishReq("k", "t", "x")); !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("commit: %v", err)
	}
	if err := st.View(t.Context(), func(tx store.Tx) error {
		v, err := tx.Get(Collection, key)
		if !bytes.Equal(v, garbage) {
			t.Errorf("the record became %x", v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestUpdateIsOneTransaction: submission reserves, writes and commits at once.
func TestUpdateIsOneTransaction(t *testing.T) {
	l, _ := newTestLedger(t, Options{})
	errStop := errors.New("stop")
	submit := func(token string, fail error) (reply Reply, err error) {
		err = l.Update(t.Context(), func(tx *Tx) error {
			var err error
			if reply, err = tx.Reserve(reserveReq("k", token)); err != nil || reply.State != api.StateReserved {
				return err
			}
			if err := tx.Put("jobs", "job-1", []byte("work")); err != nil {
				return err
			}
			fin := finishReq("k", token, "job-1")
			fin.Ref = "job-1"
			if err := tx.Finish(OpCommit, fin); err != nil {
				return err
			}
			return fail
		})
		return reply, err
	}
	if _, err := submit("t1", errStop); !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	if got := stats(t, l); got.Committed+got.Pending != 0 || got.Calls[OpReserve][OutcomeDone] != 0 || stats(t, l).Bytes != 0 {
		t.Fatalf("an aborted transaction left %+v", got)
	}
	if reply, err := submit("t2", nil); err != nil || reply.State != api.StateReserved {
		t.Fatalf("%v %v", reply, err)
	}
	reply, err := submit("t3", nil)
	if err != nil || reply.State != api.StateCommitted || !bytes.Equal(reply.Result, answer(201, "job-1")) {
		t.Fatalf("the retry: %+v %v", reply, err)
	}
	e, err := EntryByRef(t.Context(), l, "job-1")
	if err != nil || e.Key != "k" || e.State != api.StateCommitted {
		t.Errorf("by job id: %+v %v", e, err)
	}
	if _, err := EntryByRef(t.Context(), l, "job"); !errors.Is(err, ErrNotFound) {
		t.Errorf("by a prefix of the id: %v", err)
	}
	got := stats(t, l)
	if got.Calls[OpReserve][OutcomeDone] != 1 || got.Calls[OpCommit][OutcomeDone] != 1 || got.Calls[OpReserve][OutcomeReplayed] != 1 {
		t.Errorf("%+v", got.Calls)
	}
	if got, want := stats(t, l).Bytes, bytesOf(t, l); got != want {
		t.Errorf("counted %d bytes of %d", got, want)
	}
}

func TestEntriesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Ledger, store.Store) {
		st, err := mem.Open(t.Context(), dir, mem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return ledgerOn(t, st, Options{}), st
	}
	l, st := open()
	mustReserve(t, l, "done", "t1", api.StateReserved)
	mustCommit(t, l, "done", "t1", "body")
	mustReserve(t, l, "open", "t2", api.StateReserved)
	want := stats(t, l).Bytes
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	l, st = open()
	defer st.Close()
	if got := stats(t, l).Bytes; got != want {
		t.Errorf("counted %d bytes after the restart, %d before", got, want)
	}
	reply := mustReserve(t, l, "done", "t3", api.StateCommitted)
	if !bytes.Equal(reply.Result, answer(201, "body")) {
		t.Errorf("%q", reply.Result)
	}
	mustReserve(t, l, "open", "t2", api.StateReserved)
	mustReserve(t, l, "open", "t4", api.StatePending)
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for what, o := range map[string]Options{
		"PendingTTL": {PendingTTL: -1}, "CommittedTTL": {CommittedTTL: api.MaxTTL + 1}, "RejectedTTL": {RejectedTTL: 1},
		"MaxEntries": {MaxEntries: -1}, "MaxBytes": {MaxBytes: -1}, "MaxResultBytes": {MaxResultBytes: MaxResultLimit + 1},
		"CleanupInterval": {CleanupInterval: -1}, "MaxWaiters": {MaxWaiters: -1}, "PollInterval": {PollInterval: -1},
		"OpTimeout": {OpTimeout: -1},
	} {
		if _, err := New(mem.New(mem.Options{}), o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
