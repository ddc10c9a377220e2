package ledgertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Engine opens stores of one kind for Run.
type Engine struct {
	Name string
	// Open returns stores on the same, empty data: two if managers can share the
	// engine, else one. The test's end closes them.
	Open func(t testing.TB) []store.Store
	// Divided are the names of engines, this one among them, that divide the cases beyond the core of the suite between
	// them in make test: each runs on one of them, and in make test-deep on the others. Nil: this engine runs all cases.
	Divided []string
	// Slack is by how much the times of the stores may differ from each other, and from this machine's.
	Slack time.Duration
}

// patience is how long a test waits for something that must happen. Only a failing
// test waits that long.
const patience = 2 * time.Minute

// core are the cases that run on each engine in make test, too.
var core = []string{"Life", "OneReservation", "WaitForCommit", "FullWindow", "Batch", "Histories"}

// Run tests the contract of the ledger on an engine.
func Run(t *testing.T, e Engine) {
	for name, test := range map[string]func(*testing.T, *managers){
		"Life":                  testLife,
		"Refusals":              testRefusals,
		"Expiry":                testExpiry,
		"Unknown":               testUnknown,
		"Renewal":               testRenewal,
		"WaitForUnknown":        testWaitForUnknown,
		"OneReservation":        testOneReservation,
		"Window":                testWindow,
		"FullWindow":            testFullWindow,
		"Shares":                testShares,
		"OnlyPending":           testOnlyPending,
		"Replays":               testReplays,
		"Listing":               testListing,
		"WaitForCommit":         testWaitForCommit,
		"WaitInLine":            testWaitInLine,
		"Submission":            testSubmission,
		"Moved":                 testMoved,
		"MovedWhileWaiting":     testMovedWhileWaiting,
		"MovedAtOnce":           testMovedAtOnce,
		"Unreadable":            testUnreadable,
		"UnreadableAmongOthers": testUnreadableAmongOthers,
		"UnreadableAtTheLimit":  testUnreadableAtTheLimit,
		"Batch":                 testBatch,
		"BatchesMeet":           testBatchesMeet,
		"BatchWaitsForNobody":   testBatchWaitsForNobody,
		"Histories":             testHistories,
		"Feed":                  testFeed,
		"Conflicts":             testConflicts,
		"OneToken":              testOneToken,
		"ConflictsAreBounded":   testConflictsAreBounded,
		"FeedTooOld":            testFeedTooOld,
		"FeedFromBefore":        testFeedFromBefore,
		"FeedAfterRestore":      testFeedAfterRestore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if e.Divided == nil || slices.Contains(core, name) {
				deep.Quick(t)
			} else {
				deep.Case(t, name, e.Name, e.Divided)
			}
			test(t, &managers{t: t, stores: e.Open(t), slack: e.Slack, open: func() []store.Store { return e.Open(t) }})
		})
	}
}

// managers are ledgers on the same data.
type managers struct {
	t       *testing.T
	stores  []store.Store
	ledgers []*ledger.Ledger
	slack   time.Duration
	open    func() []store.Store // on other data
}

func (m *managers) start(o ledger.Options) {
	m.t.Helper()
	for _, st := range m.stores {
		l, err := ledger.New(st, o)
		if err != nil {
			m.t.Fatal(err)
		}
		m.ledgers = append(m.ledgers, l)
	}
}

// at returns the ledgers in turn, so that consecutive calls meet different
// managers.
func (m *managers) at(i int) *ledger.Ledger { return m.ledgers[i%len(m.ledgers)] }

func (m *managers) eventually(what string, cond func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("never: %s", what)
		}
	}
}

func answer(body string) []byte {
	r := api.Result{Status: 201, Headers: []api.Header{{Name: "x", Value: "y"}}, Body: []byte(body)}
	return r.AppendRaw(nil)
}

func finish(key, token, body string) *ledger.FinishRequest {
	return &ledger.FinishRequest{Key: key, Scope: "s", Token: token, Result: answer(body)}
}

func (m *managers) reserve(i int, key, token string, want api.State) ledger.Reply {
	m.t.Helper()
	reply, err := m.at(i).Reserve(m.t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: token}, nil)
	if err != nil || reply.State != want {
		m.t.Fatalf("reserve %s by %s: %v, %v; want %v", key, token, reply.State, err, want)
	}
	return reply
}

func (m *managers) commit(i int, key, token, body string) {
	m.t.Helper()
	if err := m.at(i).Commit(m.t.Context(), finish(key, token, body)); err != nil {
		m.t.Fatalf("commit %s by %s: %v", key, token, err)
	}
}

func (m *managers) reject(i int, key, token, body string) {
	m.t.Helper()
	if err := m.at(i).Reject(m.t.Context(), finish(key, token, body)); err != nil {
		m.t.Fatalf("reject %s by %s: %v", key, token, err)
	}
}

func (m *managers) release(i int, key, token string) {
	m.t.Helper()
	if err := m.at(i).Release(m.t.Context(), &api.ReleaseRequest{Key: key, Scope: "s", Token: token}); err != nil {
		m.t.Fatalf("release %s by %s: %v", key, token, err)
	}
}

func (m *managers) sweep(i int) int {
	m.t.Helper()
	n, err := m.at(i).Sweep(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

func (m *managers) stats(i int) ledger.Stats {
	m.t.Helper()
	s, err := m.at(i).Stats(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// waiters is how many calls wait at all managers.
func (m *managers) waiters() (n int) {
	m.t.Helper()
	for i := range m.ledgers {
		n += m.stats(i).Waiters
	}
	return n
}

func testLife(t *testing.T, m *managers) {
	const blanks = `a  "b" c`
	m.start(ledger.Options{})
	m.reserve(0, blanks, "t1", api.StateReserved)
	if again := m.reserve(1, blanks, "t1", api.StateReserved); again.ExpiresIn > time.Minute || again.ExpiresIn < time.Second {
		t.Errorf("the same call again: %v left", again.ExpiresIn)
	}
	m.reserve(1, blanks, "t2", api.StatePending)
	m.commit(1, blanks, "t1", "body")
	m.commit(0, blanks, "t1", "other")
	for i := range 2 {
		if r := m.reserve(i, blanks, "t2", api.StateCommitted); !bytes.Equal(r.Result, answer("body")) {
			t.Errorf("replayed %q", r.Result)
		}
	}
	if found, _, err := views.Find(t.Context(), m.at(0), blanks, api.StateCommitted, 2, ""); err != nil || len(found) != 1 || found[0].Key != blanks {
		t.Errorf("found %+v, %v", found, err)
	}
	m.reserve(0, "a b c", "t1", api.StateReserved)
	m.reserve(0, "r", "t1", api.StateReserved)
	m.reject(1, "r", "t1", "no")
	m.reserve(0, "r", "t2", api.StateRejected)
	m.reserve(0, "f", "t1", api.StateReserved)
	for i := range 2 {
		m.release(i, "f", "t1")
	}
	m.reserve(0, "f", "t2", api.StateReserved)
	m.commit(0, "late", "t1", "late")
	m.reserve(1, "late", "t2", api.StateCommitted)
	if _, err := m.at(0).Delete(t.Context(), "s", "late"); err != nil {
		t.Fatal(err)
	}
	m.reserve(1, "late", "t2", api.StateReserved)
}

func testRefusals(t *testing.T, m *managers) {
	m.start(ledger.Options{MaxResultBytes: 4096})
	m.reserve(0, "k", "t1", api.StateReserved)
	if err := m.at(1).Commit(t.Context(), finish("k", "t2", "x")); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("commit by a stranger: %v", err)
	}
	if err := m.at(0).Release(t.Context(), &api.ReleaseRequest{Key: "k", Scope: "s", Token: "t2"}); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("release by a stranger: %v", err)
	}
	m.commit(0, "k", "t1", "x")
	if err := m.at(1).Reject(t.Context(), finish("k", "t1", "x")); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("reject after commit: %v", err)
	}
	if err := m.at(1).Commit(t.Context(), finish("k", "t1", string(make([]byte, 5000)))); !errors.Is(err, ledger.ErrTooLarge) {
		t.Errorf("a result over the limit: %v", err)
	}
	req := &api.ReserveRequest{Key: "p", Scope: "s", Token: "t1", Fingerprint: "f"}
	if _, err := m.at(0).Reserve(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	req.Token, req.Fingerprint = "t2", "g"
	if _, err := m.at(1).Reserve(t.Context(), req, nil); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Errorf("another fingerprint: %v", err)
	}
}

func testExpiry(t *testing.T, m *managers) {
	ttl := 100*time.Millisecond + m.slack // or what is compared below is less than nothing
	m.start(ledger.Options{PendingTTL: ttl, CommittedTTL: ttl, UnknownTTL: api.NoUnknown})
	began := time.Now()
	m.reserve(0, "k", "t1", api.StateReserved)
	m.eventually("the reservation runs out", func() bool {
		reply, err := m.at(1).Reserve(t.Context(), &api.ReserveRequest{Key: "k", Scope: "s", Token: "t2", PendingTTL: time.Hour}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return reply.State == api.StateReserved
	})
	// A clock that is off by some milliseconds is the engine's own matter.
	if took := time.Since(began); took < ttl-5*time.Millisecond-m.slack {
		t.Errorf("it ran out after %v", took)
	}
	if err := m.at(0).Commit(t.Context(), finish("k", "t1", "x")); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("the old attempt: %v", err)
	}
	m.commit(0, "gone", "t1", "x")
	m.eventually("the sweeper removes what has expired", func() bool {
		for i := range m.ledgers {
			m.sweep(i)
		}
		n, err := m.stores[0].Len(t.Context(), ledger.Collection, "committed")
		return err == nil && n == 0
	})
	// What has not expired is still there.
	m.reserve(0, "k", "t3", api.StatePending)
}

// testOneReservation: of the callers that ask at the same time, at any manager, one gets the reservation.
func testOneReservation(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	for round := range 5 {
		key := fmt.Sprintf("k%d", round)
		const callers = 32
		states := make([]api.State, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				reply, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: fmt.Sprintf("t%d", i)}, nil)
				if err != nil {
					t.Error(err)
				}
				states[i] = reply.State
			})
		}
		wg.Wait()
		reserved := 0
		for _, s := range states {
			switch s {
			case api.StateReserved:
				reserved++
			case api.StatePending:
			default:
				t.Errorf("answered %v", s)
			}
		}
		if reserved != 1 {
			t.Errorf("round %d: %d reservations of one key", round, reserved)
		}
	}
}

// testReplays: a client that only repeats keys takes no room, also if the window is nearly
// full and another client inserts.
func testReplays(t *testing.T, m *managers) {
	const limit, old, fresh, replayers = 66, 50, 10, 32
	m.start(ledger.Options{MaxEntries: limit, ScopeShare: -1})
	for i := range old {
		m.commit(i, fmt.Sprintf("old%d", i), "t", "x")
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	stop := sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
	defer stop()
	for w := range replayers {
		wg.Go(func() {
			for i := w; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("old%d", i%old)
				reply, err := m.at(i).Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "u"}, nil)
				if err != nil || reply.State != api.StateCommitted {
					t.Errorf("%s again: %v, %v", key, reply.State, err)
					return
				}
			}
		})
	}
	for i := range fresh {
		m.reserve(i, fmt.Sprintf("fresh%d", i), "t", api.StateReserved)
	}
}

func testListing(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("k%02d", i)
		want = append(want, key)
		m.reserve(i, key, "t", api.StateReserved)
		if i%2 == 0 {
			m.commit(i, key, "t", "x")
		}
	}
	var got []string
	for cursor := ""; ; {
		page, next, err := views.List(t.Context(), m.at(0), api.StateNone, 4, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			got = append(got, e.Key)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("listed %v", got)
	}
	found, _, err := views.Find(t.Context(), m.at(1), "k07", api.StateNone, 4, "")
	if err != nil || len(found) != 1 || found[0].Key != "k07" {
		t.Errorf("found %v %v", found, err)
	}
	if s := m.stats(0); s.FencedOutcomes() != 0 {
		t.Errorf("%+v", s)
	}
	m.eventually("the counts are right", func() bool {
		s := m.stats(1)
		return s.Pending == 12 && s.Committed == 13
	})
}

// held starts a reserve that waits.
func (m *managers) held(i int, key, token string) (<-chan ledger.Reply, func()) {
	out := make(chan ledger.Reply, 1)
	l := m.at(i)
	before := m.stats(i)
	go func() {
		reply, err := l.Reserve(m.t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: token, Wait: patience}, nil)
		if err != nil {
			m.t.Errorf("%s: %v", token, err)
		}
		out <- reply
	}()
	return out, func() {
		m.eventually(token+" waits", func() bool { return m.stats(i).Waiters > before.Waiters })
	}
}

func testWaitForCommit(t *testing.T, m *managers) {
	m.start(ledger.Options{MaxWait: patience})
	m.reserve(0, "k", "t1", api.StateReserved)
	var waiters []<-chan ledger.Reply
	for i := range 6 {
		w, waits := m.held(i, "k", fmt.Sprintf("w%d", i))
		waits()
		waiters = append(waiters, w)
	}
	m.commit(0, "k", "t1", "x")
	for i, w := range waiters {
		if reply := <-w; reply.State != api.StateCommitted || !bytes.Equal(reply.Result, answer("x")) {
			t.Errorf("waiter %d: %v %q", i, reply.State, reply.Result)
		}
	}
}

// testWaitInLine: the waiters of one manager get a released key in turn.
func testWaitInLine(t *testing.T, m *managers) {
	m.stores = m.stores[:1]
	m.start(ledger.Options{MaxWait: patience})
	m.reserve(0, "k", "w", api.StateReserved)
	var waiters []<-chan ledger.Reply
	for i := range 4 {
		w, waits := m.held(0, "k", fmt.Sprintf("w%d", i))
		waits()
		waiters = append(waiters, w)
	}
	last := "w"
	for i, w := range waiters {
		m.release(0, "k", last)
		if reply := <-w; reply.State != api.StateReserved {
			t.Fatalf("waiter %d: %v", i, reply.State)
		}
		last = fmt.Sprintf("w%d", i)
	}
}

// testSubmission: reserve, other writes and commit in one transaction.
func testSubmission(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	const callers = 16
	executed := make([]bool, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			err := m.at(i).Update(t.Context(), func(tx *ledger.Tx) error {
				executed[i] = false
				token := fmt.Sprintf("t%d", i)
				reply, err := tx.Reserve(&api.ReserveRequest{Key: "k", Scope: "s", Token: token})
				if err != nil || reply.State != api.StateReserved {
					return err
				}
				executed[i] = true
				if err := tx.Put("work", token, []byte("to do")); err != nil {
					return err
				}
				f := finish("k", token, token)
				f.Ref = "job-" + token
				return tx.Finish(ledger.OpCommit, f)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	winner := -1
	for i, e := range executed {
		if e && winner >= 0 {
			t.Errorf("both %d and %d were executed", winner, i)
		}
		if e {
			winner = i
		}
	}
	if winner < 0 {
		t.Fatal("nobody was executed")
	}
	if n, err := m.stores[0].Len(t.Context(), "work", ""); err != nil || n != 1 {
		t.Errorf("%d pieces of work, %v", n, err)
	}
	e, err := views.ByRef(t.Context(), m.at(1), fmt.Sprintf("job-t%d", winner))
	if err != nil || e.Key != "k" {
		t.Errorf("%+v %v", e, err)
	}
}
