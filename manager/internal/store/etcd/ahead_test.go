package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// claims counts the requests of claims, by a clock that only the test moves.
type claims struct {
	*Store
	t     *testing.T
	clock *movedClock
	reads atomic.Int64
	with  []store.ID // read with each claim
}

func newClaims(t *testing.T, dsn string) *claims {
	s := open(t, Options{DSN: dsn})
	c := &claims{Store: s, t: t, clock: moveClock(s), with: []store.ID{{Collection: "jobs", Key: "control"}}}
	for _, b := range []*batcher{&s.reads, &s.fixed} {
		send := b.send
		b.send = func(ctx context.Context, calls []*call) error {
			c.reads.Add(1)
			return send(ctx, calls)
		}
	}
	return c
}

// want takes records in one claim, and compares how often that read.
func (c *claims) want(limit int, reads int64, want ...string) {
	c.t.Helper()
	before := c.reads.Load()
	r := queued(limit, true)
	r.With = c.with
	found := mustWork(c.t, c.Store, r)
	if did := c.reads.Load() - before; did != reads || !slices.Equal(found, want) {
		c.t.Errorf("took %q with %d requests, want %q with %d", found, did, want, reads)
	}
}

// twice makes two claims of two records each. The second reads ahead.
func (c *claims) twice() {
	c.t.Helper()
	c.want(2, 2, numbered(0, 2)...)
	c.want(2, 2, numbered(2, 4)...)
}

// TestClaimsReadAhead: of claims that follow each other most read nothing.
func TestClaimsReadAhead(t *testing.T) {
	t.Parallel()
	c := newClaims(t, fresh(t))
	enqueue(t, c.Store, numbered(0, 60)...)
	c.twice()
	for i := 4; i < 12; i += 2 {
		c.want(2, 0, numbered(i, i+2)...)
	}
	c.want(2, 2, numbered(12, 14)...)
	c.want(8, 0, numbered(14, 22)...)
	c.want(1, 2, numbered(22, 23)...)
	c.want(5, 2, numbered(23, 28)...) // more than the four that were read ahead
	c.want(20, 0, numbered(28, 48)...)
	c.want(20, 2, numbered(48, 60)...)
	c.want(20, 1)
}

// TestClaimsThatAreFarApartReadNothingAhead, and what was read long ago is read again.
func TestClaimsThatAreFarApartReadNothingAhead(t *testing.T) {
	t.Parallel()
	c := newClaims(t, fresh(t))
	enqueue(t, c.Store, numbered(0, 60)...)
	for i := 0; i < 8; i += 2 {
		c.want(2, 2, numbered(i, i+2)...)
		c.clock.pass(aheadWithin)
	}
	c.clock.pass(-1)
	c.want(2, 2, numbered(8, 10)...)
	c.clock.pass(longAgo - 1)
	c.want(2, 0, numbered(10, 12)...)
	c.clock.pass(1)
	c.want(2, 2, numbered(12, 14)...)
}

// TestWhatWasReadAheadIsNotOvertaken: what this process adds before it is taken first, and what it changes is not taken for
// what it was.
func TestWhatWasReadAheadIsNotOvertaken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(c *claims)
		reads  int64
		want   []string
	}{
		"nothing":                {func(*claims) {}, 0, numbered(4, 6)},
		"added before it":        {func(c *claims) { enqueue(c.t, c.Store, queuedFrom) }, 2, append([]string{queuedFrom}, numbered(4, 5)...)},
		"added after it":         {func(c *claims) { enqueue(c.t, c.Store, numbered(30, 31)...) }, 0, numbered(4, 6)},
		"added to another range": {func(c *claims) { enqueue(c.t, c.Store, "a", "z") }, 0, numbered(4, 6)},
		"changed here":           {func(c *claims) { c.put("job "+numbered(4, 5)[0], "taken:") }, 2, numbered(5, 7)},
		"deleted here":           {func(c *claims) { c.put("job "+numbered(4, 5)[0], "") }, 2, numbered(5, 7)},
		"left and came back": {func(c *claims) {
			c.put("job "+numbered(4, 5)[0], "taken:")
			c.put("job "+numbered(4, 5)[0], numbered(4, 5)[0])
		}, 2, numbered(4, 6)},
		"with a record that changed": {func(c *claims) {
			c.with = []store.ID{{Collection: "jobs", Key: "other"}}
		}, 2, numbered(4, 6)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClaims(t, fresh(t))
			enqueue(t, c.Store, numbered(0, 20)...)
			c.twice()
			test.change(c)
			c.want(2, test.reads, test.want...)
		})
	}
}

// put puts a record of a sort key, or deletes it.
func (c *claims) put(key, sortKey string) {
	c.t.Helper()
	err := c.Update(c.t.Context(), func(tx store.Tx) error {
		if sortKey == "" {
			return tx.Delete("jobs", key)
		}
		return tx.Put("jobs", key, []byte(sortKey), store.Entry{Index: "state", SortKey: sortKey})
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestWhatOthersChangeIsReadAgain: the commit finds that out, also for the records with.
func TestWhatOthersChangeIsReadAgain(t *testing.T) {
	t.Parallel()
	first, later := "job "+numbered(4, 5)[0], "job "+numbered(6, 7)[0]
	for name, key := range map[string]string{"a job": first, "a later job": later, "a record with": "switch", "an absent record": "absent"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := fresh(t)
			c, other := newClaims(t, dsn), &claims{t: t, Store: open(t, Options{DSN: dsn})}
			c.with = []store.ID{{Collection: "jobs", Key: "switch"}, {Collection: "jobs", Key: "absent"}}
			other.put("switch", "on")
			enqueue(t, c.Store, numbered(0, 20)...)
			c.twice()
			other.put(key, "changed:")
			runs := 0
			var taken []string
			err := c.Update(t.Context(), func(tx store.Tx) error {
				runs++
				taken = nil
				r := queued(2, true)
				r.With = c.with
				hits, err := tx.Scan("jobs", "state", r)
				if err != nil {
					return err
				}
				for _, id := range c.with {
					if v, err := tx.Get(id.Collection, id.Key); runs == 2 && id.Key == key && (err != nil || string(v) != "changed:") {
						t.Errorf("%s is %q, %v", id.Key, v, err)
					}
				}
				for _, h := range hits {
					taken = append(taken, h.SortKey)
					if err := tx.Put("jobs", h.Key, []byte("taken:"), store.Entry{Index: "state", SortKey: "taken:"}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil || len(taken) != 2 || "job "+taken[0] == key || "job "+taken[1] == key {
				t.Errorf("took %q, %v", taken, err)
			}
			if key == later && (runs != 1 || !slices.Equal(taken, numbered(4, 6))) || key != later && runs != 2 {
				t.Errorf("the function ran %d times and took %q", runs, taken)
			}
		})
	}
}

// TestLargeRecordsAreNotReadAhead, nor what comes after them.
func TestLargeRecordsAreNotReadAhead(t *testing.T) {
	t.Parallel()
	c := newClaims(t, fresh(t))
	enqueue(t, c.Store, numbered(0, 20)...)
	large := numbered(6, 7)[0]
	if err := c.Update(t.Context(), func(tx store.Tx) error {
		return tx.Put("jobs", "job "+large, []byte(large+strings.Repeat("x", recentBytes)), store.Entry{Index: "state", SortKey: large})
	}); err != nil {
		t.Fatal(err)
	}
	c.twice()
	c.want(2, 0, numbered(4, 6)...)
	c.want(2, 2, numbered(7, 8)...) // a hit whose value is not its sort key counts as stale here
}

// TestWhatAClaimLeavesComesNext: a claim that fails, or that takes less than it found, leaves the rest in order, whether it
// read ahead or took what was read ahead.
func TestWhatAClaimLeavesComesNext(t *testing.T) {
	t.Parallel()
	errLeft, errEarly := errors.New("left"), errors.New("too early")
	for name, claims := range map[string]int{"the one that reads ahead": 1, "the next one": 2} {
		for how, err := range map[string]error{"fails": errLeft, "takes another one": nil, "has read the time too early": errEarly} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				c := newClaims(t, fresh(t))
				enqueue(t, c.Store, numbered(0, 20)...)
				for i := range claims {
					c.want(2, 2, numbered(2*i, 2*i+2)...)
				}
				first := 2 * claims
				want := numbered(first, first+2)
				runs := 0
				got := c.Update(t.Context(), func(x store.Tx) error {
					if runs++; runs == 1 && err == errEarly {
						x.(*tx).now = time.Unix(1, 0)
					}
					r := queued(2, true)
					r.With = c.with
					hits, serr := x.Scan("jobs", "state", r)
					if serr != nil || err != nil {
						return errors.Join(serr, err)
					}
					return x.Put("jobs", hits[1].Key, []byte("taken:"), store.Entry{Index: "state", SortKey: "taken:"})
				})
				if !errors.Is(got, err) {
					t.Fatalf("%v, want %v", got, err)
				}
				if err == nil {
					want = append(numbered(first, first+1), numbered(first+2, first+3)...)
				}
				r := queued(2, true)
				r.With = c.with
				if found := mustWork(t, c.Store, r); !slices.Equal(found, want) {
					t.Errorf("took %q, want %q", found, want)
				}
			})
		}
	}
}
