package ledgertest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

func (m *managers) wantUnknown(i int, key, token string) {
	m.t.Helper()
	reply, err := m.at(i).Reserve(m.t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: token}, nil)
	if !errors.Is(err, ledger.ErrOutcomeUnknown) {
		m.t.Fatalf("reserve %s by %s: %v, %v; want %v", key, token, reply.State, err, ledger.ErrOutcomeUnknown)
	}
}

// testUnknown: the outcome of a reservation that ran out is unknown to every manager, before
// and after that is stored. The outcome itself, or an operator, settles it.
func testUnknown(t *testing.T, m *managers) {
	m.start(ledger.Options{PendingTTL: 50 * time.Millisecond, UnknownTTL: time.Hour})
	ctx := t.Context()
	keys := []string{"late", "refused", "released", "renewed", "resolved", "kept"}
	for i, k := range keys {
		m.reserve(i, k, "t1", api.StateReserved)
	}
	for i := range m.ledgers { // whose clocks may differ a little
		m.eventually("the last one runs out", func() bool {
			_, err := m.at(i).Reserve(ctx, &api.ReserveRequest{Key: "kept", Scope: "s", Token: "t2"}, nil)
			return errors.Is(err, ledger.ErrOutcomeUnknown)
		})
	}
	for round := range 2 {
		for i, k := range keys {
			m.wantUnknown(i, k, "t2")
			m.wantUnknown(i+1, k, "t1")
			if err := m.at(i).Commit(ctx, finish(k, "t2", "x")); !errors.Is(err, ledger.ErrFenced) {
				t.Errorf("round %d: commit %s by a stranger: %v", round, k, err)
			}
		}
		list, _, err := views.List(ctx, m.at(round), api.StateUnknown, 100, "")
		if err != nil || len(list) != len(keys) {
			t.Errorf("round %d: %d are listed, %v", round, len(list), err)
		}
		m.sweep(round)
	}
	m.eventually("they are counted", func() bool {
		s := m.stats(1)
		return s.Pending == 0 && s.Unknown == len(keys)
	})
	m.commit(1, "late", "t1", "x")
	if r := m.reserve(0, "late", "t2", api.StateCommitted); !bytes.Equal(r.Result, answer("x")) {
		t.Errorf("replayed %q", r.Result)
	}
	m.reject(0, "refused", "t1", "no")
	m.reserve(1, "refused", "t2", api.StateRejected)
	m.release(1, "released", "t1")
	m.reserve(0, "released", "t2", api.StateReserved)
	if _, err := m.at(1).Renew(ctx, &api.ReserveRequest{Key: "renewed", Scope: "s", Token: "t1", PendingTTL: time.Hour}); err != nil {
		t.Error(err)
	}
	m.reserve(0, "renewed", "t2", api.StatePending)
	if _, err := m.at(0).Resolve(ctx, "s", "resolved", ledger.Resolution{As: api.StateCommitted, Result: answer("found out")}); err != nil {
		t.Error(err)
	}
	if r := m.reserve(1, "resolved", "t2", api.StateCommitted); !bytes.Equal(r.Result, answer("found out")) {
		t.Errorf("replayed %q", r.Result)
	}
	m.wantUnknown(1, "kept", "t2")
}

// testRenewal: a reservation holds, whichever manager renews it.
func testRenewal(t *testing.T, m *managers) {
	const ttl = 100 * time.Millisecond
	m.start(ledger.Options{PendingTTL: ttl})
	m.reserve(0, "k", "t1", api.StateReserved)
	for began, i := time.Now(), 0; time.Since(began) < 4*ttl; i++ {
		reply, err := m.at(i).Renew(t.Context(), &api.ReserveRequest{Key: "k", Scope: "s", Token: "t1", PendingTTL: time.Hour})
		if err != nil || reply.State != api.StateReserved || reply.ExpiresIn < time.Hour {
			t.Fatalf("%v for %v, %v", reply.State, reply.ExpiresIn, err)
		}
		m.reserve(i+1, "k", "t2", api.StatePending)
	}
	if _, err := m.at(1).Renew(t.Context(), &api.ReserveRequest{Key: "k", Scope: "s", Token: "t2"}); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("renewed by a stranger: %v", err)
	}
	m.commit(0, "k", "t1", "x")
	if _, err := m.at(1).Renew(t.Context(), &api.ReserveRequest{Key: "k", Scope: "s", Token: "t1"}); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("renewed after its end: %v", err)
	}
}

// testWaitForUnknown: callers that wait, at any manager, get an answer when the outcome is
// reported as unknown, and when the reservation runs out.
func testWaitForUnknown(t *testing.T, m *managers) {
	m.start(ledger.Options{MaxWait: patience})
	ctx := t.Context()
	short := &api.ReserveRequest{Key: "short", Scope: "s", Token: "t1", PendingTTL: 300 * time.Millisecond}
	if _, err := m.at(0).Reserve(ctx, short, nil); err != nil {
		t.Fatal(err)
	}
	m.reserve(0, "said", "t1", api.StateReserved)
	answers := make(chan error, 8)
	for i, key := range []string{"short", "said", "short", "said", "said", "short", "short", "said"} {
		l := m.at(i / 2)
		go func() {
			_, err := l.Reserve(ctx, &api.ReserveRequest{Key: key, Scope: "s", Token: "w", Wait: patience}, nil)
			answers <- err
		}()
	}
	m.eventually("those of one key wait", func() bool { return m.waiters() >= 4 })
	if _, err := m.at(1).Unknown(ctx, &api.ReserveRequest{Key: "said", Scope: "s", Token: "t1"}); err != nil {
		t.Fatal(err)
	}
	for range cap(answers) {
		if err := <-answers; !errors.Is(err, ledger.ErrOutcomeUnknown) {
			t.Errorf("answers %v", err)
		}
	}
}
