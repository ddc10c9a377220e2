package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

// centre is a data centre: managers on data of their own, and its places in the feeds of others.
type centre struct {
	*managers
	feeds   []*feed.Feed
	name    string
	cursors map[string]string
}

func (m *managers) centre(name string, o ledger.Options) *centre {
	m.t.Helper()
	c := &centre{managers: &managers{t: m.t, stores: m.open(), slack: m.slack, open: m.open}, name: name, cursors: make(map[string]string)}
	c.startAll(o)
	return c
}

// startAll starts the managers and opens their feeds.
func (c *centre) startAll(o ledger.Options) {
	c.t.Helper()
	o.Origin = c.name
	c.start(o)
	for i, l := range c.ledgers {
		c.feeds = append(c.feeds, feed.New(c.stores[i], l, feed.Options{}))
	}
	c.openFeeds("")
}

func (c *centre) openFeeds(restored string) {
	c.t.Helper()
	for _, f := range c.feeds {
		if err := f.Open(c.t.Context(), restored); err != nil {
			c.t.Fatal(err)
		}
	}
}

// feed returns the feeds in turn, as at does ledgers.
func (c *centre) feed(i int) *feed.Feed { return c.feeds[i%len(c.feeds)] }

// changes reads a page of the feed, by the managers in turn.
func (c *centre) changes(i int, after string, limit int) feed.Page {
	c.t.Helper()
	if err := c.feed(i).Publish(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	f, err := c.feed(i).Changes(c.t.Context(), c.name, after, limit)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// pull imports all that from has recorded since the last time, by the managers in turn.
func (c *centre) pull(from *centre) {
	c.t.Helper()
	c.pullBy(func(page int) int { return page }, from)
}

// pullBy is pull by the managers that by names for each page.
func (c *centre) pullBy(by func(page int) int, from *centre) {
	c.t.Helper()
	for i := 0; ; i++ {
		var f feed.Page
		// The index of a shared engine may be a moment old.
		c.eventually("the feed continues", func() bool {
			f = from.changes(i, c.cursors[from.name], 7)
			return f.Copying || f.Sequence == f.Head || f.Cursor != c.cursors[from.name]
		})
		if _, err := c.feed(by(i)).Import(c.t.Context(), f.Changes, nil); err != nil {
			c.t.Fatal(err)
		}
		c.cursors[from.name] = f.Cursor
		if !f.Copying && f.Sequence == f.Head {
			return
		}
	}
}

func testFeed(t *testing.T, m *managers) {
	a, b := m.centre("dc1", ledger.Options{}), m.centre("dc2", ledger.Options{})
	if f := a.changes(0, "", 10); len(f.Changes) != 0 || f.Cursor == "" {
		t.Fatalf("an empty feed: %+v", f)
	}
	const n, all = 40, 104
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			key := fmt.Sprintf("k%d", i)
			l := a.at(i)
			if reply, err := l.Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "t" + key, Fingerprint: "f"}, nil); err != nil || reply.State != api.StateReserved {
				t.Errorf("%s: %v %v", key, reply.State, err)
			}
			end := l.Commit
			if i%4 == 0 {
				end = l.Reject
			}
			if err := end(t.Context(), finish(key, "t"+key, "of "+key)); err != nil {
				t.Errorf("%s: %v", key, err)
			}
			_ = a.feed(i).Publish(t.Context()) // publishers meet
		})
	}
	for from := n; from < all; from += 8 { // and batches, one transaction each
		wg.Go(func() {
			a.record(from/8, from, 8)
			_ = a.feed(from / 8).Publish(t.Context())
		})
	}
	wg.Wait()
	seen, cursor, last := map[string]bool{}, "", uint64(0)
	m.eventually("the feed has everything", func() bool {
		f := a.changes(len(seen), cursor, 7)
		for _, c := range f.Changes {
			if c.Sequence != last+1 || c.Origin != "dc1" || seen[c.Key] || c.HLC == 0 || c.ExpiresIn <= 0 || c.Fingerprint != "f" || !bytes.Equal(c.Result, answer("of "+c.Key)) {
				t.Errorf("change %+v after %d", c, last)
			}
			seen[c.Key], last = true, c.Sequence
		}
		cursor = f.Cursor
		return len(seen) == all && f.Sequence == f.Head
	})
	old := a.changes(0, "", 500)
	b.pull(a)
	for i := range all {
		key := fmt.Sprintf("k%d", i)
		want := api.StateCommitted
		if i%4 == 0 && i < n {
			want = api.StateRejected
		}
		if reply := b.reserve(i, key, "later", want); !bytes.Equal(reply.Result, answer("of "+key)) || reply.ExpiresIn > 5*time.Minute+m.slack {
			t.Errorf("%s on the other side: %q for %v", key, reply.Result, reply.ExpiresIn)
		}
	}
	if f := b.changes(0, "", 10); len(f.Changes) != 0 {
		t.Errorf("imports come back: %+v", f)
	}
	// Old pages do nothing.
	before := b.ledgers[0].OriginStats()
	if _, err := b.feeds[0].Import(t.Context(), old.Changes, nil); err != nil {
		t.Fatal(err)
	}
	if after := b.ledgers[0].OriginStats(); after.Imported != before.Imported || after.Repeated != before.Repeated+all {
		t.Errorf("old pages: %+v, before %+v", after, before)
	}
	same(t, a, b)
	for origin, after := range map[string]string{"dc2": "", "": "", "dc1": "dc2:x:1"} {
		if _, err := a.feed(0).Changes(t.Context(), origin, after, 1); !errors.Is(err, feed.ErrNoOrigin) && !errors.Is(err, ledger.ErrCursor) {
			t.Errorf("changes of %q after %q: %v", origin, after, err)
		}
	}
}

// record reserves n keys from k<from> on, in one batch, and commits them in another one.
func (m *managers) record(i, from, n int) {
	for _, op := range []ledger.Op{ledger.OpReserve, ledger.OpCommit} {
		items := make([]ledger.Item, n)
		for j := range items {
			key := fmt.Sprintf("k%d", from+j)
			items[j] = ledger.Item{Op: op, Reserve: api.ReserveRequest{Key: key, Scope: "s", Token: "t" + key, Fingerprint: "f"}, Finish: *finish(key, "t"+key, "of "+key)}
		}
		for j, it := range m.batch(i, items...) {
			if it.Err != nil {
				m.t.Errorf("%v k%d: %v", op, from+j, it.Err)
			}
		}
	}
}

// testFeedFromBefore: outcomes that were recorded before the ledger had an origin are published once it has one.
func testFeedFromBefore(t *testing.T, m *managers) {
	before := &managers{t: t, stores: m.open(), slack: m.slack}
	before.start(ledger.Options{})
	const all = 300 // more than one step, and more than one transaction of etcd holds
	for from := 0; from < all; from += 20 {
		before.record(from/20, from, 20)
	}
	a := &centre{managers: &managers{t: t, stores: before.stores, slack: m.slack}, name: "dc1", cursors: make(map[string]string)}
	a.startAll(ledger.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var feeds sync.WaitGroup
	defer feeds.Wait()
	defer cancel()
	for _, f := range a.feeds {
		feeds.Go(func() { f.Run(ctx, func(err error) { t.Error(err) }) })
	}
	seen, cursor := map[string]bool{}, ""
	m.eventually("the feed has everything", func() bool {
		f := a.changes(0, cursor, 100)
		for _, c := range f.Changes {
			seen[c.Key] = true
		}
		cursor = f.Cursor
		return len(seen) == all
	})
}

// exchange has each data centre pull from all others, twice.
func exchange(all ...*centre) {
	for range 2 {
		for _, to := range all {
			for _, from := range all {
				if to != from {
					to.pull(from)
				}
			}
		}
	}
}

// same compares what data centres hold of each origin.
func same(t *testing.T, all ...*centre) {
	t.Helper()
	for _, of := range all {
		var want string
		for i, c := range all {
			digests, _, err := c.feed(i).Digests(t.Context(), of.name, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(digests); i == 0 {
				want = got
			} else if got != want {
				t.Errorf("of %s, %s has %s and %s has %s", of.name, c.name, got, all[0].name, want)
			}
		}
	}
}

// conflictsOf are the conflicts of a data centre, as text.
func (c *centre) conflictsOf() map[string]string {
	c.t.Helper()
	all, cursor := map[string]string{}, ""
	for {
		list, next, err := views.Conflicts(c.t.Context(), c.at(len(all)), 2, cursor)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, k := range list {
			outcomes := map[string]string{}
			for _, o := range k.Outcomes {
				outcomes[o.Origin] = o.State.String() + string(o.Result)
			}
			all[k.Key] = fmt.Sprint(k.Scope, k.Winner, outcomes)
		}
		if cursor = next; cursor == "" {
			return all
		}
		if url.QueryEscape(cursor) != cursor {
			c.t.Errorf("the cursor %q does not fit into a query as it is", cursor)
		}
	}
}

// testConflictsAreBounded: outcomes that lost take no more than their share of the window, also where several managers keep
// them.
func testConflictsAreBounded(t *testing.T, m *managers) {
	o := ledger.Options{MaxEntries: 80}
	a, b, c := m.centre("dc1", o), m.centre("dc2", o), m.centre("dc3", o)
	clash := func(other *centre, by int, keys ...string) {
		for _, key := range keys {
			other.reserve(0, key, "t"+other.name, api.StateReserved)
			a.reserve(0, key, "tdc1", api.StateReserved)
			a.commit(0, key, "tdc1", key+" of dc1")
		}
		first := func(int) int { return 0 }
		other.pullBy(first, a)
		for _, key := range keys {
			other.commit(0, key, "t"+other.name, key+" of "+other.name) // later than the outcome that came, so it loses
		}
		a.pullBy(func(int) int { return by }, other)
	}
	const keys = 30
	var list []string
	for i := range keys {
		list = append(list, fmt.Sprintf("k%02d", i))
	}
	clash(b, 0, list...)
	// A quarter of 80 for its own, an eighth for what the other one recorded. Nobody learns of what has no room at home.
	for _, want := range []struct {
		*centre
		kept, of int
	}{{b, 21, keys}, {a, 11, 21}} {
		got, s := len(want.conflictsOf()), want.at(0).OriginStats()
		if got != want.kept || s.Conflicts != uint64(want.of) || s.Unkept != uint64(want.of-want.kept) {
			t.Errorf("%s lists %d conflicts, and counts %+v; want %d of %d", want.name, got, s, want.kept, want.of)
		}
	}
	// Another manager keeps no more, once it has counted.
	a.eventually("the other manager has counted", func() bool {
		if err := a.feed(1).Open(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		return a.at(1).OriginStats().Losers == 11
	})
	before := a.at(1).OriginStats().Unkept
	clash(c, 1, "more0", "more1", "more2")
	if got, unkept := len(a.conflictsOf()), a.at(1).OriginStats().Unkept-before; got != 11 || unkept != 3 {
		t.Errorf("with another manager, dc1 lists %d conflicts, and %d more had no room", got, unkept)
	}
}

func testConflicts(t *testing.T, m *managers) {
	dcs := []*centre{m.centre("dc1", ledger.Options{}), m.centre("dc2", ledger.Options{}), m.centre("dc3", ledger.Options{})}
	for _, key := range []string{"both", "all", "later"} {
		for i, c := range dcs {
			if key == "both" && i == 2 {
				continue
			}
			c.reserve(0, key, "t"+c.name+key, api.StateReserved)
			if key == "later" && i == 1 {
				continue
			}
			c.commit(1, key, "t"+c.name+key, key+" of "+c.name)
		}
	}
	a, b := dcs[0], dcs[1]
	b.pull(a) // finds an attempt of "later" under way
	if reply := b.reserve(0, "later", "retry", api.StateCommitted); !bytes.Equal(reply.Result, answer("later of dc1")) {
		t.Errorf("a retry gets %q", reply.Result)
	}
	b.commit(0, "later", "tdc2later", "later of dc2")
	b.commit(1, "later", "tdc2later", "later of dc2") // again
	exchange(dcs...)
	want := a.conflictsOf()
	if len(want) != 3 {
		t.Errorf("conflicts %v", want)
	}
	for i, c := range dcs {
		if got := c.conflictsOf(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s lists %v, dc1 %v", c.name, got, want)
		}
		for key := range want {
			mine, others := c.reserve(i, key, "x", api.StateCommitted), a.reserve(i, key, "x", api.StateCommitted)
			if !bytes.Equal(mine.Result, others.Result) {
				t.Errorf("%s: %s answers %q, dc1 %q", key, c.name, mine.Result, others.Result)
			}
		}
	}
	same(t, dcs...)
	// A copy has outcomes that lost as well.
	late := m.centre("dc4", ledger.Options{})
	for _, c := range dcs {
		late.pull(c)
	}
	if got := late.conflictsOf(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("dc4 lists %v, dc1 %v", got, want)
	}
	if err := errors.Join(late.at(0).Commit(t.Context(), finish("all", "tdc4", "all of dc4"))); err != nil {
		t.Errorf("a fourth outcome: %v", err)
	}
}

// testOneToken: callers of two data centres use the same token for attempts of their own. Two outcomes are a conflict
// as well, and the report of one outcome in two data centres is none.
func testOneToken(t *testing.T, m *managers) {
	dcs := []*centre{m.centre("dc1", ledger.Options{}), m.centre("dc2", ledger.Options{}), m.centre("dc3", ledger.Options{})}
	a, b := dcs[0], dcs[1]
	for _, key := range []string{"both", "states", "later", "later-states", "report"} {
		a.reserve(0, key, "t", api.StateReserved)
		b.reserve(0, key, "t", api.StateReserved)
		a.commit(1, key, "t", "of dc1")
	}
	b.commit(1, "both", "t", "of dc2")
	b.commit(1, "report", "t", "of dc1")
	b.reject(0, "states", "t", "of dc2")
	b.pull(a) // finds the attempts of "later" and "later-states" under way
	for range 2 {
		b.commit(0, "later", "t", "of dc2")
		b.reject(0, "later-states", "t", "of dc2")
	}
	exchange(dcs...)
	for _, c := range dcs {
		got := c.conflictsOf()
		if len(got) != 4 || got["report"] != "" {
			t.Errorf("%s lists %v", c.name, got)
		}
		for key, text := range got {
			if fmt.Sprint(text) != fmt.Sprint(a.conflictsOf()[key]) {
				t.Errorf("%s: %s lists %v, dc1 %v", key, c.name, text, a.conflictsOf()[key])
			}
		}
		for _, key := range []string{"both", "states", "later", "later-states", "report"} {
			if reply := c.reserve(0, key, "x", api.StateCommitted); !bytes.Equal(reply.Result, answer("of dc1")) {
				t.Errorf("%s: %s answers %q", key, c.name, reply.Result)
			}
		}
	}
	same(t, dcs...)
}

func testFeedTooOld(t *testing.T, m *managers) {
	a, b := m.centre("dc1", ledger.Options{}), m.centre("dc2", ledger.Options{})
	for i := range a.feeds {
		a.feeds[i] = feed.New(a.stores[i], a.ledgers[i], feed.Options{Kept: 5})
	}
	commit := func(from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Sprintf("k%d", i)
			a.reserve(i, key, "t"+key, api.StateReserved)
			a.commit(i, key, "t"+key, key)
		}
	}
	commit(0, 3)
	b.pull(a)
	cursor := b.cursors["dc1"]
	commit(3, 23)
	m.eventually("the feed forgot", func() bool {
		if err := a.feed(0).Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := a.feed(0).Changes(t.Context(), "dc1", cursor, 7)
		return errors.Is(err, feed.ErrCursorGone)
	})
	delete(b.cursors, "dc1")
	m.eventually("everything is there", func() bool {
		b.pull(a)
		digests, _, err := b.feed(0).Digests(t.Context(), "dc1", 1<<40)
		return err == nil && len(digests) > 0 && digests[0].Outcomes == 23
	})
	same(t, a, b)
	commit(23, 25)
	b.pull(a)
	same(t, a, b)
}

// testFeedAfterRestore: data that were restored to an older point do not use numbers again.
func testFeedAfterRestore(t *testing.T, m *managers) {
	a, b := m.centre("dc1", ledger.Options{}), m.centre("dc2", ledger.Options{})
	a.reserve(0, "k1", "t1", api.StateReserved)
	a.commit(0, "k1", "t1", "one")
	b.pull(a)
	cursor := b.cursors["dc1"]
	for range 2 { // a second start after the same restore
		a.openFeeds("restore 1")
		a.reserve(0, "k2", "t2", map[bool]api.State{true: api.StateReserved, false: api.StateCommitted}[cursor != ""])
		if cursor == "" {
			break
		}
		a.commit(0, "k2", "t2", "two")
		if _, err := a.feed(0).Changes(t.Context(), "dc1", cursor, 7); !errors.Is(err, feed.ErrCursorGone) {
			t.Errorf("a cursor from before the restore: %v", err)
		}
		cursor = ""
	}
	delete(b.cursors, "dc1")
	b.pull(a)
	same(t, a, b)
	if f := a.changes(0, b.cursors["dc1"], 5); f.Sequence < 1<<32 {
		t.Errorf("numbers continue at %d", f.Sequence)
	}
	other, err := ledger.New(a.stores[0], ledger.Options{Origin: "dc9"})
	if err != nil {
		t.Fatal(err)
	}
	var origin *feed.OriginError
	if err := feed.New(a.stores[0], other, feed.Options{}).Open(t.Context(), ""); !errors.As(err, &origin) || origin.Have != "dc1" {
		t.Errorf("another origin: %v", err)
	}
}
