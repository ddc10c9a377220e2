package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// othersKeys says that keys which begin with o belong to another ledger.
type othersKeys struct{}

func (othersKeys) Owner(_ store.Tx, _, key string) (string, bool, error) {
	return "other", key[0] == 'o', nil
}

// quarantineOf is how much longer it lasts.
type quarantineOf time.Duration

func (q *quarantineOf) Left(store.Tx) (time.Duration, error) { return time.Duration(*q), nil }

func (*quarantineOf) Record() (store.ID, bool) { return store.ID{}, false }

func (othersKeys) Record() (store.ID, bool) { return store.ID{}, false }

// While a quarantine lasts, no reserve of a key without an entry says that the work may run, here or at
// another shard. Every other call is as always.
func TestQuarantineRefusesUnknownKeys(t *testing.T) {
	var left quarantineOf
	l, _ := newTestLedger(t, Options{Owners: othersKeys{}, Quarantine: &left})
	mustReserve(t, l, "running", "t", api.StateReserved)
	mustReserve(t, l, "done", "t", api.StateReserved)
	mustCommit(t, l, "done", "t", "x")
	reserve := func(key, token string) error {
		_, err := l.Reserve(t.Context(), reserveReq(key, token), nil)
		return err
	}
	batch := func(item Item) error {
		items := []Item{item}
		l.Batch(t.Context(), items)
		return items[0].Err
	}
	job := func(key string) error { // as a submission does it
		return l.Update(t.Context(), func(tx *Tx) error {
			_, err := tx.Reserve(reserveReq(key, "t"))
			return err
		})
	}
	cases := []struct {
		name string
		call func() error
		want error
	}{
		{"a new key", func() error { return reserve("n1", "t") }, ErrQuarantine},
		{"a new key in a batch", func() error { return batch(Item{Op: OpReserve, Reserve: *reserveReq("n2", "t")}) }, ErrQuarantine},
		{"a new key of a job", func() error { return job("n3") }, ErrQuarantine},
		{"another shard's key", func() error { return reserve("o1", "t") }, ErrQuarantine},
		{"another shard's key in a batch", func() error { return batch(Item{Op: OpReserve, Reserve: *reserveReq("o2", "t")}) }, ErrQuarantine},
		{"another shard's key of a job", func() error { return job("o3") }, ErrQuarantine},
		{"the holder again", func() error { return reserve("running", "t") }, nil},
		{"a duplicate that is pending", func() error { return reserve("running", "u") }, nil},
		{"a duplicate that is done", func() error { return reserve("done", "u") }, nil},
		{"renew", func() error { _, err := l.Renew(t.Context(), reserveReq("running", "t")); return err }, nil},
		{"renew of what was forgotten", func() error { _, err := l.Renew(t.Context(), reserveReq("f1", "t")); return err }, nil},
		{"commit of what was forgotten", func() error { return l.Commit(t.Context(), finishReq("f2", "t", "x")) }, nil},
		{"commit of another shard's", func() error { return l.Commit(t.Context(), finishReq("o4", "t", "x")) }, nil},
		{"unknown of what was forgotten", func() error { _, err := l.Unknown(t.Context(), reserveReq("f3", "t")); return err }, nil},
		{"release", func() error { return l.Release(t.Context(), releaseReq("running", "t")) }, nil},
		{"a key that was released", func() error { return reserve("running", "t") }, ErrQuarantine},
	}
	left = quarantineOf(time.Minute)
	get := func(key string) error {
		_, err := l.Get(t.Context(), "s", key)
		return err
	}
	if known, unknown := get("done"), get("forgotten"); known != nil || !errors.Is(unknown, ErrQuarantine) {
		t.Errorf("look-ups: %v, %v", known, unknown)
	}
	var n uint64
	for _, c := range cases {
		err := c.call()
		var q *QuarantineError
		if !errors.Is(err, c.want) || errors.As(err, &q) && q.RetryAfter != time.Minute {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want != nil {
			n++
		}
	}
	if got := stats(t, l).Calls[OpReserve][OutcomeQuarantine]; got != n {
		t.Errorf("%d calls were counted, want %d", got, n)
	}
	left = 0
	if err := get("forgotten"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a look-up after the quarantine: %v", err)
	}
	if err := reserve("n1", "t"); err != nil {
		t.Errorf("after the quarantine: %v", err)
	}
	if err := reserve("o1", "t"); !errors.Is(err, ErrKeyMoved) {
		t.Errorf("another shard's key after the quarantine: %v", err)
	}
}

// Longest learns the longest time that any write asked for.
func TestLongestTTLIsLearned(t *testing.T) {
	longest := new(Longest)
	l, c := newTestLedger(t, Options{Longest: longest})
	expect := func(what string, want time.Duration) {
		t.Helper()
		if got := longest.Get(); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("at the start", 0)
	mustReserve(t, l, "k", "t", api.StateReserved)
	expect("a reservation that may become unknown", 6*time.Minute)
	c.advance(30 * time.Second)
	req := finishReq("k", "t", "x")
	req.TTL = 24 * time.Hour
	if err := l.Commit(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	expect("a commit with a TTL of its own", 24*time.Hour)
	mustCommit(t, l, "late", "t", "x")
	expect("a commit without", 24*time.Hour)
	mustUnknown(t, l, "u", "t", 48*time.Hour)
	expect("unknown", 48*time.Hour)
	mustRenew(t, l, "r", "t", 72*time.Hour)
	expect("renew", 72*time.Hour+5*time.Minute)
}
