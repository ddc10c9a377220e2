package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// homeLedger is a ledger with an origin that is not the home of the keys of these tests.
func homeLedger(t *testing.T) (*Ledger, *clock) {
	l, c := newTestLedger(t, Options{Origin: "dc1", PendingTTL: time.Minute})
	if err := l.OpenFeed(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return l, c
}

// imported is a change of dc2, the home.
func imported(token string, hlc uint64, lasts time.Duration) FeedChange {
	return FeedChange{Origin: "dc2", Scope: "s", Key: "k", Token: token, State: api.StateCommitted, HLC: hlc, ExpiresIn: lasts, Result: answer(200, token)}
}

func mustImport(t *testing.T, l *Ledger, changes ...FeedChange) {
	t.Helper()
	if _, err := l.Import(t.Context(), changes, nil); err != nil {
		t.Fatal(err)
	}
}

func mustFollow(t *testing.T, l *Ledger, token string) {
	t.Helper()
	if err := l.Follow(t.Context(), reserveReq("k", token), "dc2"); err != nil {
		t.Fatal(err)
	}
}

// wantHome checks that the home decides about the calls of a token.
func wantHome(t *testing.T, l *Ledger, token string) {
	t.Helper()
	var away *HomeError
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
	if s := l.FeedStats(); s.Deferred != 1 || s.Imported != 0 {
		t.Errorf("%+v", s)
	}
	mustImport(t, l, imported("new", 2, time.Hour))
	mustReserve(t, l, "k", "other", api.StateCommitted)
	// A note that is over does not keep outcomes away.
	c.advance(2 * time.Hour)
	mustFollow(t, l, "third")
	c.advance(2 * time.Hour)
	mustImport(t, l, imported("fourth", 3, time.Hour))
	mustReserve(t, l, "k", "other", api.StateCommitted)
}

// TestFollowAfterLateImport: the home has given its reservation again, so a copy of the outcome of before is over.
func TestFollowAfterLateImport(t *testing.T) {
	l, _ := homeLedger(t)
	mustImport(t, l, imported("old", 1, time.Second))
	mustFollow(t, l, "new")
	wantHome(t, l, "new")
	// An outcome of this ledger's own stays.
	l, _ = homeLedger(t)
	mustReserve(t, l, "k", "own", api.StateReserved)
	mustCommit(t, l, "k", "own", "b")
	mustFollow(t, l, "new")
	mustReserve(t, l, "k", "new", api.StateCommitted)
}

// TestImportsKeepNumbersFree: a peer with a damaged clock or fence does not use up the numbers of this ledger's own
// outcomes, which could not be read then.
func TestImportsKeepNumbersFree(t *testing.T) {
	for _, bad := range []FeedChange{
		{Origin: "dc2", Scope: "s", Key: "other", Token: "t", State: api.StateCommitted, HLC: maxHLC, ExpiresIn: time.Second, Result: answer(200, "x")},
		{Origin: "dc2", Scope: "s", Key: "k", Token: "t", State: api.StateCommitted, HLC: 1, Fence: maxHLC, ExpiresIn: time.Second, Result: answer(200, "x")},
	} {
		l, c := homeLedger(t)
		mustImport(t, l, bad)
		c.advance(time.Minute)
		mustReserve(t, l, "k", "own", api.StateReserved)
		mustCommit(t, l, "k", "own", "b")
		mustReserve(t, l, "k", "again", api.StateCommitted)
	}
}
