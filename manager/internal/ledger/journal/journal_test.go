package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// inWords are the changes of a key in words.
func inWords(h History) string {
	var words []string
	for _, c := range h.Changes {
		w := c.What
		if c.Late {
			w += " late"
		}
		if c.Count > 1 {
			w += fmt.Sprintf(" x%d", c.Count)
		}
		if c.From != "" {
			w += " by " + c.From
		}
		words = append(words, w)
	}
	return strings.Join(words, ", ")
}

// TestHistoryTellsTheLifeOfAKey: who reserved it, what ended it, and what it was asked for since.
func TestHistoryTellsTheLifeOfAKey(t *testing.T) {
	l, _ := newSite(t, DefaultKeys, ledger.Options{})
	gate := ledger.WithCaller(t.Context(), "10.0.0.7:43122")
	other := ledger.WithCaller(t.Context(), "[2001:db8::1]:99")
	first := reserveReq("k", "t1")
	first.Fingerprint = "f1"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Reserve(gate, first, nil)
	must(err)
	for range 3 {
		_, err = l.Renew(gate, first)
		must(err)
	}
	if _, err = l.Reserve(other, reserveReq("k", "t2"), nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(other, releaseReq("k", "t2")); !errors.Is(err, ledger.ErrFenced) {
		t.Fatal(err)
	}
	must(l.Commit(gate, finishReq("k", "t1", "hi")))
	for range 4 {
		_, err = l.Reserve(other, reserveReq("k", "t3"), nil)
		must(err)
	}
	differs := reserveReq("k", "t4")
	differs.Fingerprint = "f2"
	if _, err := l.Reserve(other, differs, nil); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Fatal(err)
	}
	h := l.History("s", "k")
	if got, want := inWords(h), "reserve by 10.0.0.7, renew x3 by 10.0.0.7, commit by 10.0.0.7"; got != want {
		t.Errorf("changes %q, want %q", got, want)
	}
	for outcome, n := range map[string]int{"replayed": 4, "pending": 1, "fenced": 1, "mismatch": 1} {
		if h.Outcomes[outcome] != n {
			t.Errorf("%d times %s, want %d", h.Outcomes[outcome], outcome, n)
		}
	}
	if m := h.Mismatch; m == nil || m.Sent != "f2" || m.Recorded != "f1" || m.From != "[2001:db8::1]" || m.Op != ledger.OpReserve {
		t.Errorf("mismatch %+v", m)
	}
	for kind, want := range map[IncidentKind]string{IncidentMismatch: "reserve", IncidentFenced: "release"} {
		list, total := l.Incidents(kind, 10)
		if total != 1 || len(list) != 1 || list[0].Op.String() != want || list[0].Key != "k" || list[0].Scope != "s" {
			t.Errorf("%v: %d, %+v", kind, total, list)
		}
	}
	if got := l.ScopesOf("k"); !slices.Equal(got, []string{"s"}) {
		t.Errorf("scopes %q", got)
	}
	if h := l.History("", "k"); h.Changes != nil || !h.Last.IsZero() {
		t.Errorf("another scope has %+v", h)
	}
}

// TestHistoryOfWhatNoCallAsked: a lapse and a deletion are in the history, and calls of a batch are there like single ones.
func TestHistoryOfWhatNoCallAsked(t *testing.T) {
	l, c := newSite(t, DefaultKeys, ledger.Options{})
	items := []ledger.Item{{Op: ledger.OpReserve, Reserve: *reserveReq("a", "t")}, {Op: ledger.OpReserve, Reserve: *reserveReq("b", "t")}}
	l.Batch(ledger.WithCaller(t.Context(), "gate-1"), items)
	c.advance(time.Minute)
	if _, err := l.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Resolve(t.Context(), "s", "a", ledger.Resolution{As: api.StateCommitted, Result: answer(200, "")}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Delete(t.Context(), "s", "b"); err != nil {
		t.Fatal(err)
	}
	mustReserve(t, l, "d", "t")
	for key, want := range map[string]string{
		"a": "reserve by gate-1, lapse, resolve",
		"b": "reserve by gate-1, lapse, delete", "d": "reserve",
	} {
		if got := inWords(l.History("s", key)); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestChangesAreToldOfTheirOwnKeys: a transaction that changes other keys as well notes each change under its own key.
// A sweep lets several run out at once.
func TestChangesAreToldOfTheirOwnKeys(t *testing.T) {
	l, c := newSite(t, DefaultKeys, ledger.Options{})
	items := []ledger.Item{{Op: ledger.OpReserve, Reserve: *reserveReq("new0", "t")}, {Op: ledger.OpReserve, Reserve: *reserveReq("new1", "t")}}
	l.Batch(t.Context(), items)
	c.advance(time.Minute)
	if _, err := l.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range items {
		if got := inWords(l.History("s", items[i].Reserve.Key)); items[i].Err != nil || got != "reserve, lapse" {
			t.Errorf("%s: %v, %q", items[i].Reserve.Key, items[i].Err, got)
		}
	}
}

// TestJournalIsBounded: keys displace older ones, incidents older incidents, and changes the older changes of a key but
// the first. A refused new key displaces nothing.
func TestJournalIsBounded(t *testing.T) {
	l, _ := newSite(t, 64, ledger.Options{MaxEntries: 2000, ScopeShare: -1})
	for i := range 2000 {
		mustReserve(t, l, fmt.Sprint("k", i), "t")
	}
	before := l.keys()
	if len(before) > 64 || len(before) < 60 {
		t.Errorf("%d keys, want about 64", len(before))
	}
	for i := range MaxIncidents + 10 {
		if _, err := l.Reserve(t.Context(), reserveReq(fmt.Sprint("n", i), "t"), nil); !errors.Is(err, ledger.ErrFull) {
			t.Fatal(err)
		}
	}
	list, total := l.Incidents(IncidentFull, 1000)
	if len(list) != MaxIncidents || total != MaxIncidents+10 || list[0].Key != fmt.Sprint("n", MaxIncidents+9) || list[MaxIncidents-1].Key != fmt.Sprint("n", 10) {
		t.Errorf("%d incidents of %d, from %s to %s", len(list), total, list[0].Key, list[len(list)-1].Key)
	}
	if after := l.keys(); !slices.Equal(before, after) {
		t.Error("keys that were refused displaced others")
	}
	for range 10 {
		if err := l.Release(t.Context(), releaseReq("k1999", "t")); err != nil {
			t.Fatal(err)
		}
		mustReserve(t, l, "k1999", "t")
	}
	h := l.History("s", "k1999")
	if len(h.Changes) != maxMarks || h.Left != 21-maxMarks || h.Changes[0].What != "reserve" || h.Changes[maxMarks-1].What != "reserve" {
		t.Errorf("%d changes and %d that went: %s", len(h.Changes), h.Left, inWords(h))
	}
}

// TestJournalKeepsWhatIsWorthTelling: keys with a mismatch outlast keys that were only reserved.
func TestJournalKeepsWhatIsWorthTelling(t *testing.T) {
	l, _ := newSite(t, 16, ledger.Options{})
	req := reserveReq("odd", "t")
	req.Fingerprint = "f"
	if _, err := l.Reserve(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	req.Fingerprint = "g"
	if _, err := l.Reserve(t.Context(), req, nil); !errors.Is(err, ledger.ErrFingerprintMismatch) {
		t.Fatal(err)
	}
	for i := range 200 {
		mustReserve(t, l, fmt.Sprint("k", i), "t")
	}
	if h := l.History("s", "odd"); h.Mismatch == nil {
		t.Error("the key with a mismatch is forgotten")
	}
}

// TestJournalCopiesWhatCallsLend: a raw call's strings are views of a body that is used again.
func TestJournalCopiesWhatCallsLend(t *testing.T) {
	l, _ := newSite(t, DefaultKeys, ledger.Options{})
	body := (&api.ReserveRequest{Key: "k", Scope: "s", Token: "t", Fingerprint: "aaaa"}).AppendRaw(nil)
	fingerprint := body[strings.Index(string(body), "aaaa"):]
	for range 2 {
		var req api.ReserveRequest
		if err := req.ViewRaw(body); err != nil {
			t.Fatal(err)
		}
		_, _ = l.Reserve(t.Context(), &req, nil)
		copy(fingerprint, "bbbb")
	}
	clear(body)
	if m := l.History("s", "k").Mismatch; m == nil || m.Sent != "bbbb" || m.Recorded != "aaaa" || m.Key != "k" {
		t.Errorf("mismatch %+v", m)
	}
}

// TestHistoryOfWaits: the history has calls that wait, while they do and after.
func TestHistoryOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := mem.New(mem.Options{})
		defer st.Close()
		l := siteOn(t, st, DefaultKeys, ledger.Options{})
		mustReserve(t, l, "k", "t")
		waits := reserveReq("k", "u")
		waits.Wait = 10 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx := ledger.WithCaller(t.Context(), "gate-2")
			hold := func() (context.Context, func()) { return context.Background(), func() {} } // as a server's, of another parent
			if reply, err := l.Reserve(ctx, waits, hold); err != nil || reply.State != api.StateReserved {
				t.Errorf("%v, %v", reply.State, err)
			}
		})
		synctest.Wait()
		if h := l.History("s", "k"); l.Waiting("s", "k") != 1 || h.Waited != 1 {
			t.Errorf("%d wait, %d waited", l.Waiting("s", "k"), h.Waited)
		}
		if err := l.Release(t.Context(), releaseReq("k", "t")); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		h := l.History("s", "k")
		// The journal has a call after its transaction, so the release may come after the reserve that it woke.
		if got := inWords(h); l.Waiting("s", "k") != 0 || h.Waited != 1 || got != "reserve, release, reserve by gate-2" && got != "reserve, reserve by gate-2, release" {
			t.Errorf("%d wait, %d waited: %s", l.Waiting("s", "k"), h.Waited, got)
		}
	})
}

// TestJournalUnderLoad: many callers and readers at once, for the race detector; no call is lost.
func TestJournalUnderLoad(t *testing.T) {
	l, _ := newSite(t, 16, ledger.Options{})
	const callers, calls = 8, 200
	mustCommit(t, l, "hot", "t", "x")
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			ctx := ledger.WithCaller(t.Context(), fmt.Sprint("gate-", i))
			for n := range calls {
				if _, err := l.Reserve(ctx, reserveReq("hot", "u"), nil); err != nil {
					t.Error(err)
				}
				_, _ = l.Reserve(ctx, reserveReq(fmt.Sprint("k", n%40), fmt.Sprint("t", i)), nil)
				if n%20 == 0 {
					l.ScopesOf("hot")
					l.Incidents(IncidentFenced, 10)
				}
			}
		})
	}
	wg.Wait()
	if n := l.History("s", "hot").Outcomes["replayed"]; n > callers*calls {
		t.Errorf("%d replays of %d", n, callers*calls)
	}
	var none *Journal
	none.Note(t.Context(), ledger.Event{Key: ledger.EntryKey("s", "k")})
	none.Waits(ledger.EntryKey("s", "k"))
	if h := none.History("s", "k"); len(h.Changes) != 0 || none.ScopesOf("k") != nil {
		t.Errorf("a journal that is off has %+v", h)
	}
}

// keys are the keys that the journal has, in order.
func (j *Journal) keys() (keys []string) {
	for i := range j.sets {
		if s := j.sets[i].Load(); s != nil {
			for w := range s.lives {
				if s.hash[w] != 0 {
					keys = append(keys, s.lives[w].key)
				}
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// BenchmarkJournalNote is what the journal takes for a reserve and its commit of a new key, and for a replay.
func BenchmarkJournalNote(b *testing.B) {
	j := New(DefaultKeys)
	ctx := ledger.WithCaller(context.Background(), "10.0.0.7:43122")
	keys := make([]string, 1<<17)
	for i := range keys {
		keys[i] = ledger.EntryKey("c2NvcGUtb2YtdGhlLWNhbGxlcg", fmt.Sprint("host1.dc1:12345:", i))
	}
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			key := keys[n%len(keys)]
			j.Note(ctx, ledger.Event{Op: ledger.OpReserve, Key: key})
			j.Note(ctx, ledger.Event{Op: ledger.OpCommit, Key: key})
		}
	})
	b.Run("replay", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			j.Note(ctx, ledger.Event{Op: ledger.OpReserve, Outcome: ledger.OutcomeReplayed, Key: keys[0]})
		}
	})
}
