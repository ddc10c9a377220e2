package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// dataCentre is one of a world whose clocks differ by hours.
type dataCentre struct {
	*site
	t       *testing.T
	name    string
	st      *mem.Store
	clock   *clock
	cursors map[string]string
	pages   []Page // that it has pulled
	held    map[string]string
}

func (dc *dataCentre) open() {
	dc.t.Helper()
	dc.site = ledgerOn(dc.t, dc.st, ledger.Options{Origin: dc.name, CommittedTTL: 100 * time.Hour, RejectedTTL: 100 * time.Hour, PendingTTL: time.Hour})
	dc.kept = 6
	if err := dc.Open(dc.t.Context(), ""); err != nil {
		dc.t.Fatal(err)
	}
}

func newWorld(t *testing.T) []*dataCentre {
	t.Helper()
	var all []*dataCentre
	for i, skew := range []time.Duration{0, -7 * time.Hour, 13 * time.Hour} {
		dc := &dataCentre{t: t, name: fmt.Sprint("dc", i+1), clock: newClock(), cursors: make(map[string]string), held: make(map[string]string)}
		dc.clock.advance(skew)
		dc.st = mem.New(mem.Options{Clock: dc.clock.Now})
		t.Cleanup(func() { _ = dc.st.Close() })
		dc.open()
		all = append(all, dc)
	}
	return all
}

// pull takes a page of another one's feed. With lose, it is lost on its way, and only the cursor moves.
func (dc *dataCentre) pull(from *dataCentre, lose bool) (all bool) {
	dc.t.Helper()
	if err := from.Publish(dc.t.Context()); err != nil {
		dc.t.Fatal(err)
	}
	f, err := from.Changes(dc.t.Context(), from.name, dc.cursors[from.name], 3)
	if errors.Is(err, ErrCursorGone) {
		delete(dc.cursors, from.name)
		return false
	}
	if err != nil {
		dc.t.Fatal(err)
	}
	dc.cursors[from.name] = f.Cursor
	dc.pages = append(dc.pages, f)
	if !lose {
		dc.take(f)
	}
	return !f.Copying && f.Sequence == f.Head
}

func (dc *dataCentre) take(f Page) {
	dc.t.Helper()
	if _, err := dc.Import(dc.t.Context(), f.Changes, nil); err != nil {
		dc.t.Fatal(err)
	}
}

// digest is what a data centre holds of an origin.
func (dc *dataCentre) digest(origin string) []Digest {
	dc.t.Helper()
	d, _, err := dc.Digests(dc.t.Context(), origin, LeastSpan)
	if err != nil {
		dc.t.Fatal(err)
	}
	return d
}

// repair imports the spans of which another one holds something else. It reports whether there were any.
func (dc *dataCentre) repair(from *dataCentre) bool {
	dc.t.Helper()
	mine, differs := dc.digest(from.name), false
	for _, d := range from.digest(from.name) {
		if slices.Contains(mine, d) {
			continue
		}
		differs = true
		for after := ""; ; {
			f, err := from.Outcomes(dc.t.Context(), from.name, d.From, d.From+LeastSpan, after, 3)
			if err != nil {
				dc.t.Fatal(err)
			}
			dc.take(f)
			if after = f.Cursor; after == "" {
				break
			}
		}
	}
	return differs
}

// outcome is what a retry gets: the winner's answer.
func (dc *dataCentre) outcome(key string) string {
	dc.t.Helper()
	e, err := dc.Get(dc.t.Context(), "s", key)
	if err != nil {
		return err.Error()
	}
	return e.State.String() + string(e.Result)
}

// TestDataCentresAgree: random histories of three ledgers whose clocks differ by hours, with pages of feeds that are
// lost, late and repeated, and restarts. In the end all hold the same outcomes, choose the same winners, and list each
// key that more than one ran with all its outcomes.
func TestDataCentresAgree(t *testing.T) {
	for seed := range deep.Rounds(20, 150) {
		agree(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func agree(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 15))
	all := newWorld(t)
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	ran := map[string]map[string]bool{} // key -> origins whose outcome was acknowledged
	for range 80 {
		dc, other := all[rng.IntN(3)], all[rng.IntN(3)]
		key := keys[rng.IntN(len(keys))]
		token := dc.name + key
		switch n := rng.IntN(12); {
		case n < 3:
			if dc.held[key] != "" {
				continue
			}
			reply, err := dc.Reserve(t.Context(), reserveReq(key, token), nil)
			if err != nil {
				t.Fatalf("reserve: %v", err)
			}
			if reply.State == api.StateReserved {
				dc.held[key] = token
			}
		case n < 6 && dc.held[key] != "":
			end := dc.Commit
			if rng.IntN(3) == 0 {
				end = dc.Reject
			}
			if err := end(t.Context(), finishReq(key, token, key+" of "+dc.name)); err != nil {
				t.Fatalf("the outcome of %s at %s: %v", key, dc.name, err)
			}
			if ran[key] == nil {
				ran[key] = map[string]bool{}
			}
			ran[key][dc.name] = true
			delete(dc.held, key)
		case n < 9 && dc != other:
			dc.pull(other, rng.IntN(3) == 0)
		case n == 9 && len(dc.pages) > 0:
			dc.take(dc.pages[rng.IntN(len(dc.pages))])
		case n == 10:
			dc.open() // another process on the same data
		default:
			dc.clock.advance(time.Duration(rng.IntN(200)) * time.Second)
		}
	}
	for range 4 { // what one learns last, it sends first in the next round
		for _, dc := range all {
			for _, other := range all {
				for dc != other && !dc.pull(other, false) {
				}
				if dc != other {
					dc.repair(other)
				}
			}
		}
	}
	for _, dc := range all {
		for _, of := range all {
			if a, b := fmt.Sprint(dc.digest(of.name)), fmt.Sprint(of.digest(of.name)); a != b {
				t.Errorf("of %s, %s holds %s instead of %s", of.name, dc.name, a, b)
			}
		}
		list, _, err := views.Conflicts(t.Context(), dc.Ledger, 100, "")
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]string{}
		for _, c := range list {
			var origins []string
			for _, o := range c.Outcomes {
				if !strings.Contains(string(o.Result), c.Key+" of "+o.Origin) {
					t.Errorf("%s: %s has %q of %s", dc.name, c.Key, o.Result, o.Origin)
				}
				origins = append(origins, o.Origin)
			}
			slices.Sort(origins)
			listed[c.Key] = strings.Join(origins, ",")
		}
		for _, key := range keys {
			var origins []string
			for _, of := range all {
				if ran[key][of.name] {
					origins = append(origins, of.name)
				}
			}
			want := strings.Join(origins, ",")
			if len(origins) < 2 {
				want = ""
			}
			if listed[key] != want {
				t.Errorf("%s lists %q for %s, which %q ran", dc.name, listed[key], key, want)
			}
			if a, b := dc.outcome(key), all[0].outcome(key); len(origins) > 0 && a != b {
				t.Errorf("%s: %s answers %q, dc1 %q", key, dc.name, a, b)
			}
		}
	}
}

// TestPeersCannotUseUpNumbers: changes with a clock of the distant future, or with an absurd fence, are refused. The data
// centre that got them still sends others its own outcomes.
func TestPeersCannotUseUpNumbers(t *testing.T) {
	all := newWorld(t)
	dc, other := all[0], all[1]
	now := dc.clock.Now()
	at := func(d time.Duration) uint64 { return uint64(now.Add(d).UnixMilli()) << 16 }
	change := func(key string, hlc, fence uint64) ledger.FeedChange {
		return ledger.FeedChange{Origin: "dc2", Scope: "s", Key: key, Token: "t", State: api.StateCommitted, HLC: hlc, Fence: fence, ExpiresIn: time.Minute, Result: answer(200, "x")}
	}
	done, err := dc.Import(t.Context(), []ledger.FeedChange{
		change("fifty-years", at(50*365*24*time.Hour), 0),
		change("too-far", at(ledger.MaxPeerAhead+time.Second), 0),
		change("half-of-all", 1<<61, 0),
		change("all", 1<<64-1, 0),
		change("fence", at(0), 1<<32+1),
		change("near", at(ledger.MaxPeerAhead-time.Second), 0),
		change("largest-fence", at(0), 1<<32),
	}, nil)
	if err != nil || done.New != 2 || done.Refused != 5 || done.Why == nil || done.Until != now.Add(time.Second) {
		t.Fatalf("%+v, %v", done, err)
	}
	for _, key := range []string{"fifty-years", "too-far", "half-of-all", "all", "fence"} {
		if got := dc.outcome(key); got != ledger.ErrNotFound.Error() {
			t.Errorf("%s is %q", key, got)
		}
	}
	dc.clock.advance(2 * time.Minute) // the outcomes of the peer are over
	for _, key := range []string{"own", "largest-fence"} {
		mustReserve(t, dc.site, key, "own")
		mustCommit(t, dc.site, key, "own", "own")
	}
	for !other.pull(dc, false) {
	}
	for _, key := range []string{"own", "largest-fence"} {
		if got := other.outcome(key); !strings.Contains(got, "own") {
			t.Errorf("the other data centre has %q of %s", got, key)
		}
	}
}

// TestImportsMakeRoom: outcomes of other data centres take what is free, and new keys of this one take it back.
func TestImportsMakeRoom(t *testing.T) {
	l, _ := newFeed(t, ledger.Options{MaxEntries: 10, ScopeShare: -1})
	for i := range 4 {
		key := fmt.Sprint("own", i)
		if _, err := l.Reserve(t.Context(), reserveReq(key, key), nil); err != nil {
			t.Fatal(err)
		}
		if err := l.Commit(t.Context(), finishReq(key, key, "own")); err != nil {
			t.Fatal(err)
		}
	}
	var changes []ledger.FeedChange
	for i := range 30 {
		changes = append(changes, ledger.FeedChange{Origin: "dc2", Sequence: uint64(i), Scope: "s", Key: fmt.Sprint("other", i), Token: "t", State: api.StateCommitted,
			HLC: uint64(i + 1), ExpiresIn: time.Minute, Result: answer(200, "other")})
	}
	if _, err := l.Import(t.Context(), changes, nil); err != nil {
		t.Fatal(err)
	}
	if s := l.OriginStats(); s.Imported != 6 || s.Dropped != 24 {
		t.Errorf("%+v", s)
	}
	for i := range 6 {
		key := fmt.Sprint("new", i)
		if reply, err := l.Reserve(t.Context(), reserveReq(key, key), nil); err != nil || reply.State != api.StateReserved {
			t.Errorf("%s: %v, %v", key, reply.State, err)
		}
	}
	for i := range 4 {
		if _, err := l.Get(t.Context(), "s", fmt.Sprint("own", i)); err != nil {
			t.Errorf("own%d: %v", i, err)
		}
	}
}

// TestRecordsWithoutOrigin: what was recorded before there was an origin answers as before, and meets others as this
// ledger's own.
func TestRecordsWithoutOrigin(t *testing.T) {
	c := newClock()
	st := mem.New(mem.Options{Clock: c.Now})
	defer st.Close()
	old := ledgerOn(t, st, ledger.Options{})
	if _, err := old.Reserve(t.Context(), reserveReq("k", "t1"), nil); err != nil {
		t.Fatal(err)
	}
	if err := old.Commit(t.Context(), finishReq("k", "t1", "old")); err != nil {
		t.Fatal(err)
	}
	l := feedOn(t, old.store, ledger.Options{})
	if err := l.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f, err := l.Changes(t.Context(), "dc1", "", 10); err != nil || len(f.Changes) != 0 {
		t.Errorf("the feed has %v, %v", f.Changes, err)
	}
	later := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: "k", Token: "t2", State: api.StateCommitted, HLC: uint64(c.Now().UnixMilli()+1) << 16,
		ExpiresIn: time.Minute, Result: answer(200, "other")}
	if _, err := l.Import(t.Context(), []ledger.FeedChange{later}, nil); err != nil {
		t.Fatal(err)
	}
	list, _, err := views.Conflicts(t.Context(), l.Ledger, 10, "")
	if err != nil || len(list) != 1 || list[0].Winner != "dc1" || len(list[0].Outcomes) != 2 {
		t.Errorf("conflicts %+v, %v", list, err)
	}
	// A ledger without an origin still reads all of it.
	again := ledgerOn(t, old.store, ledger.Options{})
	if reply, err := again.Reserve(t.Context(), reserveReq("k", "t3"), nil); err != nil || string(reply.Result) != string(answer(201, "old")) {
		t.Errorf("%q, %v", reply.Result, err)
	}
}

// TestOutcomesFromBeforeTheOriginArePublished: what a ledger recorded while it had no origin reaches other data centres once
// it has one, on engines with and without an outbox.
func TestOutcomesFromBeforeTheOriginArePublished(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{
		"one process": func(s store.Store) store.Store { return s },
		"shared":      func(s store.Store) store.Store { return sharedStore{s} },
	} {
		t.Run(name, func(t *testing.T) {
			st := mem.New(mem.Options{})
			t.Cleanup(func() { _ = st.Close() })
			old, o := numbered(2*256+10), ledger.Options{CommittedTTL: time.Hour}
			recordTogether(t, ledgerOn(t, wrap(st), o), old...)
			first := feedOn(t, wrap(st), o)
			recordKeys(t, first, "own")
			publish(t, first)
			recordTogether(t, ledgerOn(t, wrap(st), o), "meanwhile") // without an origin again
			l := feedOn(t, wrap(st), o)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				l.Feed.Run(ctx, func(err error) { t.Error(err) })
			}()
			defer func() { cancel(); <-done }()
			want := append([]string{"own", "meanwhile"}, old...)
			slices.Sort(want)
			var got []string
			for end := time.Now().Add(2 * time.Minute); !slices.Equal(got, want); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d keys are published, want %d", len(got), len(want))
				}
				got, _ = read(t, l, "", 500)
				slices.Sort(got)
				got = slices.Compact(got)
			}
		})
	}
}

// TestLaterOutcomeLoses: an outcome that this ledger knows stays the answer when its own work ends later, although its
// clock is hours behind and it was restarted since the import.
func TestLaterOutcomeLoses(t *testing.T) {
	l, c := newFeed(t, ledger.Options{})
	if _, err := l.Reserve(t.Context(), reserveReq("k", "t1"), nil); err != nil {
		t.Fatal(err)
	}
	other := ledger.FeedChange{Origin: "dc2", Scope: "s", Key: "k", Token: "t2", State: api.StateCommitted, HLC: uint64(c.Now().Add(5*time.Hour).UnixMilli()) << 16,
		ExpiresIn: time.Minute, Result: answer(200, "other")}
	if _, err := l.Import(t.Context(), []ledger.FeedChange{other}, nil); err != nil {
		t.Fatal(err)
	}
	again := feedOn(t, l.store, ledger.Options{})
	if err := again.Commit(t.Context(), finishReq("k", "t1", "own")); err != nil {
		t.Fatal(err)
	}
	list, _, err := views.Conflicts(t.Context(), again.Ledger, 10, "")
	if err != nil || len(list) != 1 || list[0].Winner != "dc2" {
		t.Errorf("conflicts %+v, %v", list, err)
	}
}

// TestUnreadableOutcomeOfAConflict: an outcome that lost and cannot be read stops neither the feed nor the imports of
// other keys.
func TestUnreadableOutcomeOfAConflict(t *testing.T) {
	l, c := newFeed(t, ledger.Options{})
	change := func(key, token string, after time.Duration) ledger.FeedChange {
		return ledger.FeedChange{Origin: "dc2", Scope: "s", Key: key, Token: token, State: api.StateCommitted,
			HLC: uint64(c.Now().Add(after).UnixMilli()) << 16, ExpiresIn: time.Minute, Result: answer(200, key)}
	}
	take := func(changes ...ledger.FeedChange) {
		t.Helper()
		if _, err := l.Import(t.Context(), changes, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"k", "other"} {
		if _, err := l.Reserve(t.Context(), reserveReq(key, "own"), nil); err != nil {
			t.Fatal(err)
		}
	}
	take(change("k", "theirs", 0))
	for _, key := range []string{"k", "other"} { // the first one loses
		if err := l.Commit(t.Context(), finishReq(key, "own", "own")); err != nil {
			t.Fatal(err)
		}
	}
	for _, origin := range []string{"dc1", "dc2"} {
		err := l.store.Update(t.Context(), func(tx store.Tx) error {
			return tx.Put(ledger.ConflictCollection, origin+" 1:sk", []byte("\xffnobody reads this"))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := l.Changes(t.Context(), "dc1", "", 10)
	if err != nil || len(f.Changes) != 1 || f.Changes[0].Key != "other" {
		t.Errorf("the feed: %+v, %v", f, err)
	}
	later := change("k", "later", time.Hour)
	later.Origin = "dc3"
	err = l.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.Put(ledger.ConflictCollection, "dc3 1:sk", []byte("\xffnobody reads this"))
	})
	if err != nil {
		t.Fatal(err)
	}
	take(later, change("next", "theirs", time.Hour))
	if _, err := l.Get(t.Context(), "s", "next"); err != nil {
		t.Errorf("the next one: %v", err)
	}
}
