package feed

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// homeLedger is a ledger with an origin that is not the home of the keys of these tests.
func homeLedger(t *testing.T) (*site, *clock) {
	l, c := newFeed(t, ledger.Options{PendingTTL: time.Minute})
	return l, c
}

// imported is a change of dc2, the home.
func imported(token string, hlc uint64, lasts time.Duration) ledger.FeedChange {
	return ledger.FeedChange{Origin: "dc2", Scope: "s", Key: "k", Token: token, State: api.StateCommitted, HLC: hlc, ExpiresIn: lasts, Result: answer(200, token)}
}

func wantReply(t *testing.T, l *site, key, token string, want api.State) {
	t.Helper()
	if reply, err := l.Reserve(t.Context(), reserveReq(key, token), nil); err != nil || reply.State != want {
		t.Fatalf("reserve %s by %s: %v, %v; want %v", key, token, reply.State, err, want)
	}
}

func mustImport(t *testing.T, l *site, changes ...ledger.FeedChange) {
	t.Helper()
	if _, err := l.Import(t.Context(), changes, nil); err != nil {
		t.Fatal(err)
	}
}

func mustFollow(t *testing.T, l *site, token string) {
	t.Helper()
	if err := l.Follow(t.Context(), reserveReq("k", token), "dc2", ledger.Seen{}); err != nil {
		t.Fatal(err)
	}
}

// overtaken notes an attempt, and returns the outcome that keeps it from being noted.
func overtaken(t *testing.T, l *site, token string, seen ledger.Seen) ledger.Seen {
	t.Helper()
	err := l.Follow(t.Context(), reserveReq("k", token), "dc2", seen)
	var newer *ledger.OvertakenError
	if !errors.As(err, &newer) || !errors.Is(err, ledger.ErrElsewhere) {
		t.Fatalf("the note of %s: %v, want an OvertakenError", token, err)
	}
	return newer.Seen
}

// wantHome checks that the home decides about the calls of a token.
func wantHome(t *testing.T, l *site, token string) {
	t.Helper()
	var away *ledger.HomeError
	if err := l.Commit(t.Context(), finishReq("k", token, "b")); !errors.As(err, &away) || away.Home != "dc2" {
		t.Errorf("commit of %s: %v, want the home dc2", token, err)
	}
	if _, err := l.Renew(t.Context(), reserveReq("k", token)); !errors.As(err, &away) || away.Home != "dc2" {
		t.Errorf("renew of %s: %v, want the home dc2", token, err)
	}
}

// TestLateImportAfterFollow: an earlier attempt's outcome that arrives late does not end the note of a newer attempt,
// whose calls go to the home. Without the note this ledger would record the outcome, and the home would run the key again.
func TestLateImportAfterFollow(t *testing.T) {
	l, c := homeLedger(t)
	mustFollow(t, l, "new")
	mustImport(t, l, imported("old", 1, time.Second))
	wantHome(t, l, "new")
	if s := l.OriginStats(); s.Deferred != 1 || s.Imported != 0 {
		t.Errorf("%+v", s)
	}
	mustImport(t, l, imported("new", 2, time.Hour))
	wantReply(t, l, "k", "other", api.StateCommitted)
	// A note that is over does not keep outcomes away.
	c.advance(2 * time.Hour)
	mustFollow(t, l, "third")
	c.advance(2 * time.Hour)
	mustImport(t, l, imported("fourth", 3, time.Hour))
	wantReply(t, l, "k", "other", api.StateCommitted)
}

// TestFollowAfterLateImport: the home has given its reservation again, so a copy of the outcome of before is over.
func TestFollowAfterLateImport(t *testing.T) {
	l, _ := homeLedger(t)
	mustImport(t, l, imported("old", 1, time.Second))
	// The home may have answered before it recorded the outcome.
	seen := overtaken(t, l, "new", ledger.Seen{})
	wantReply(t, l, "k", "new", api.StateCommitted)
	if err := l.Follow(t.Context(), reserveReq("k", "new"), "dc2", seen); err != nil {
		t.Fatal(err)
	}
	wantHome(t, l, "new")
	// One more outcome is another doubt.
	l, _ = homeLedger(t)
	mustImport(t, l, imported("old", 1, time.Second), imported("newer", 2, time.Second))
	overtaken(t, l, "new", seen)
	wantReply(t, l, "k", "new", api.StateCommitted)
	// An outcome of this ledger's own stays.
	l, _ = homeLedger(t)
	wantReply(t, l, "k", "own", api.StateReserved)
	mustCommit(t, l, "k", "own", "b")
	mustFollow(t, l, "new")
	wantReply(t, l, "k", "new", api.StateCommitted)
}

// TestLaterImportEndsANote: an outcome that the home has while another attempt is noted here ends the note. Otherwise
// this data centre would not know an acknowledged outcome until the note is over.
func TestLaterImportEndsANote(t *testing.T) {
	l, _ := homeLedger(t)
	mustFollow(t, l, "gone")
	later, other := imported("later", 5, time.Hour), imported("other", 5, time.Hour)
	other.Origin = "dc3"
	done, err := l.Import(t.Context(), []ledger.FeedChange{other, later}, func(_ store.Tx, done ledger.Imported) error {
		if len(done.Notes) != 1 {
			t.Errorf("the notes are not known where the cursor is kept: %+v", done)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	note := ledger.Note{Scope: "s", Key: "k", Token: "gone", HLC: 5}
	if done.New != 0 || done.Deferred != 2 || !slices.Equal(done.Notes, []ledger.Note{note}) {
		t.Fatalf("%+v", done)
	}
	// Only the home knows, and only what it says of this attempt.
	for _, notes := range [][]ledger.Note{{{Scope: "s", Key: "k", Token: "another", HLC: 5}}, {{Scope: "s", Key: "l", Token: "gone", HLC: 5}}, {note}} {
		if done, err = l.Settle(t.Context(), notes, []ledger.FeedChange{other}); err != nil || done.New != 0 || done.Deferred != 1 {
			t.Errorf("%+v: %+v, %v", notes, done, err)
		}
	}
	wantHome(t, l, "gone")
	if done, err = l.Settle(t.Context(), []ledger.Note{note}, []ledger.FeedChange{later}); err != nil || done.New != 1 || done.Deferred != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	wantReply(t, l, "k", "next", api.StateCommitted)
	// A note that is newer than the question stays.
	l, _ = homeLedger(t)
	mustFollow(t, l, "gone")
	mustFollow(t, l, "new")
	if done, err = l.Settle(t.Context(), []ledger.Note{note}, []ledger.FeedChange{later}); err != nil || done.New != 0 || len(done.Notes) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	wantHome(t, l, "new")
}

// TestImportsKeepNumbersFree: a peer with a damaged clock or fence does not use up the numbers of this ledger's own
// outcomes, which could not be read then.
func TestImportsKeepNumbersFree(t *testing.T) {
	for _, bad := range []ledger.FeedChange{
		{Origin: "dc2", Scope: "s", Key: "other", Token: "t", State: api.StateCommitted, HLC: ledger.MaxHLC, ExpiresIn: time.Second, Result: answer(200, "x")},
		{Origin: "dc2", Scope: "s", Key: "k", Token: "t", State: api.StateCommitted, HLC: 1, Fence: ledger.MaxHLC, ExpiresIn: time.Second, Result: answer(200, "x")},
	} {
		l, c := homeLedger(t)
		mustImport(t, l, bad)
		c.advance(time.Minute)
		wantReply(t, l, "k", "own", api.StateReserved)
		mustCommit(t, l, "k", "own", "b")
		wantReply(t, l, "k", "again", api.StateCommitted)
	}
}

// TestGlobalKeyHasOneOutcome: where another data centre is the home of a key, its outcome has come here, and the attempt
// that it is of is ended again, the answer is the home's. All data centres are one ledger for the key, so another outcome is
// no second attempt.
func TestGlobalKeyHasOneOutcome(t *testing.T) {
	l, _ := homeLedger(t)
	mustFollow(t, l, "t")
	mustImport(t, l, imported("t", 1, time.Hour))
	// This data centre may have become the home since.
	for _, away := range []*ledger.HomeError{{Home: "dc2"}, nil} {
		end := func(op ledger.Op, body string) error {
			it := ledger.Item{Op: op, Finish: *finishReq("k", "t", body), Away: away}
			it.Finish.Durability = api.DurabilityGlobal
			l.Make(t.Context(), &it)
			return it.Err
		}
		if err := end(ledger.OpCommit, "another answer"); err != nil {
			t.Errorf("a commit of what is committed: %v", err)
		}
		if err := end(ledger.OpReject, "b"); !errors.Is(err, ledger.ErrConflict) {
			t.Errorf("a reject of what is committed: %v, want a conflict as at the home", err)
		}
	}
	if s := l.OriginStats(); s.Conflicts != 0 {
		t.Errorf("%+v", s)
	}
}
