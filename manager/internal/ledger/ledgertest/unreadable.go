package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// many is more than one transaction of the sweeper looks at.
const many = 300

// recordKey is the key of the record of an entry of scope s.
func recordKey(key string) string { return "1:s" + key }

// expiry is the sort key of an entry that ends at that time.
func expiry(at time.Time) string {
	s := strconv.FormatInt(at.UnixMilli(), 36)
	return strings.Repeat("0", 9-len(s)) + s
}

// damages are values that no ledger can read.
var damages = [][]byte{nil, {1}, {99, 2, 0, 0, 0, 0, 0, 0}, {1, 77, 0, 0, 0, 0, 0, 0}, {1, 2, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{0xff}, 40)}

// plant writes records that cannot be read, with the index entries of good ones.
func (m *managers) plant(state api.State, ends time.Time, keys ...string) {
	m.t.Helper()
	for len(keys) > 0 {
		n := min(len(keys), 100)
		err := m.stores[0].Update(m.t.Context(), func(tx store.Tx) error {
			for i, key := range keys[:n] {
				entries := []store.Entry{{Index: state.String(), SortKey: expiry(ends)}, {Index: "ref", SortKey: "ref-" + key}}
				if err := tx.Put(ledger.Collection, recordKey(key), damages[i%len(damages)], entries...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			m.t.Fatal(err)
		}
		keys = keys[n:]
	}
}

func (m *managers) value(key string) []byte {
	m.t.Helper()
	var value []byte
	err := m.stores[0].View(m.t.Context(), func(tx store.Tx) error {
		v, err := tx.Get(ledger.Collection, recordKey(key))
		value = bytes.Clone(v)
		return err
	})
	if err != nil {
		m.t.Fatalf("record of %s: %v", key, err)
	}
	return value
}

// callAll makes every call that can name an entry, for an entry that cannot be read.
func (m *managers) callAll(key string) {
	m.t.Helper()
	before := m.value(key)
	ctx := m.t.Context()
	reserve := &api.ReserveRequest{Key: key, Scope: "s", Token: "t"}
	waits := *reserve
	waits.Wait = time.Minute
	for i := range m.ledgers {
		l := m.at(i)
		_, get := l.Get(ctx, "s", key)
		_, del := l.Delete(ctx, "s", key)
		_, ref := views.ByRef(ctx, l, "ref-"+key)
		_, res := l.Reserve(ctx, reserve, nil)
		_, wait := l.Reserve(ctx, &waits, nil)
		_, ren := l.Renew(ctx, reserve)
		_, unk := l.Unknown(ctx, reserve)
		for call, err := range map[string]error{
			"get": get, "delete": del, "get by ref": ref, "reserve": res, "reserve and wait": wait, "renew": ren, "unknown": unk,
			"commit":  l.Commit(ctx, finish(key, "t", "x")),
			"reject":  l.Reject(ctx, finish(key, "t", "x")),
			"release": l.Release(ctx, &api.ReleaseRequest{Key: key, Scope: "s", Token: "t"}),
		} {
			var u *store.UnreadableError
			if !errors.As(err, &u) || u.Collection != ledger.Collection || u.Key != recordKey(key) || u.Reason == "" {
				m.t.Errorf("%s of %s: %v, want an UnreadableError", call, key, err)
			}
		}
	}
	if after := m.value(key); !bytes.Equal(before, after) {
		m.t.Errorf("the record of %s was %x and is %x", key, before, after)
	}
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return out
}

// testUnreadable: an entry that cannot be read affects only its own key, however many
// such entries there are, and wherever they are.
func testUnreadable(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	l := m.ledgers[0]
	long := time.UnixMilli(2)
	states := map[api.State][]string{
		api.StatePending: names("p", many), api.StateCommitted: names("c", many), api.StateRejected: names("r", many), api.StateUnknown: names("u", many),
	}
	for state, keys := range states {
		m.plant(state, long, keys...)
		m.plant(state, time.Now().Add(time.Hour), "later-"+keys[0])
	}
	for key, end := range map[string]func(context.Context, *ledger.FinishRequest) error{
		"released":  func(context.Context, *ledger.FinishRequest) error { return nil },
		"committed": l.Commit,
		"rejected":  l.Reject,
	} {
		for i := range 3 {
			f := finish(fmt.Sprint(key, i), "t", "x")
			f.TTL = time.Millisecond
			_, err := l.Reserve(t.Context(), &api.ReserveRequest{Key: f.Key, Scope: "s", Token: "t", PendingTTL: time.Millisecond, UnknownTTL: api.NoUnknown}, nil)
			if err == nil {
				err = end(t.Context(), f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	removed := 0
	m.eventually("all good entries that expired are removed", func() bool {
		removed += m.sweep(removed)
		return removed >= 9
	})
	if n := m.sweep(0); n != 0 || removed != 9 {
		t.Errorf("%d removed, then %d", removed, n)
	}
	m.reserve(0, "good", "t", api.StateReserved)
	m.commit(0, "good", "t", "x")
	m.reserve(0, "held", "t", api.StateReserved)
	for i := range m.ledgers {
		page, cursor, err := views.List(t.Context(), m.at(i), api.StateNone, 100, "")
		if err != nil || cursor != "" || len(page) != 2 || page[0].Key != "held" || page[1].Key != "good" {
			t.Errorf("list: %+v, %q, %v", page, cursor, err)
		}
	}
	m.eventually("the counts have them", func() bool {
		s := m.stats(0)
		return s.Pending == many+2 && s.Committed == many+2 && s.Rejected == many+1
	})
	for _, keys := range states {
		for i := range damages {
			m.callAll(keys[i])
		}
	}
	reported := 0
	for more := true; more; {
		select {
		case <-l.Options().Unreadable.News():
			reported++
		default:
			more = false
		}
	}
	if c := l.Options().Unreadable.Counts()[ledger.Collection]; reported == 0 || c.Known < reported || c.Met < 4*many {
		t.Errorf("reported of %d, counts %+v", reported, c)
	}
}

// testUnreadableAmongOthers plants unreadable records at random places while calls continue.
func testUnreadableAmongOthers(t *testing.T, m *managers) {
	m.start(ledger.Options{})
	rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	good, bad := map[string]api.State{}, map[string]bool{}
	for i := range 120 {
		key := fmt.Sprint("k", i)
		if rnd.IntN(3) == 0 {
			state := []api.State{api.StatePending, api.StateCommitted, api.StateRejected, api.StateUnknown}[rnd.IntN(4)]
			ends := time.Now().Add(time.Duration(rnd.IntN(7200)-3600) * time.Second)
			t.Logf("%s is %v until %v", key, state, ends)
			m.plant(state, ends, key)
			bad[key] = true
			continue
		}
		m.reserve(i, key, "t", api.StateReserved)
		switch good[key] = api.StatePending; rnd.IntN(3) {
		case 0:
			m.commit(i+1, key, "t", key)
			good[key] = api.StateCommitted
		case 1:
			m.release(i, key, "t")
			delete(good, key)
		}
		if rnd.IntN(10) == 0 {
			m.sweep(i)
		}
	}
	listed := map[string]bool{}
	cursor := ""
	for more := true; more; more = cursor != "" {
		page, next, err := views.List(t.Context(), m.at(rnd.IntN(2)), api.StateNone, 1+rnd.IntN(20), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			listed[e.Key] = true
			if good[e.Key] != e.State {
				t.Errorf("%s is listed as %v, want %v", e.Key, e.State, good[e.Key])
			}
		}
		cursor = next
	}
	if len(listed) != len(good) {
		t.Errorf("%d entries are listed, want %d", len(listed), len(good))
	}
	for key, state := range good {
		if state == api.StatePending {
			m.commit(rnd.IntN(2), key, "t", key)
		}
		if r := m.reserve(rnd.IntN(2), key, "t2", api.StateCommitted); !bytes.Equal(r.Result, answer(key)) {
			t.Errorf("%s: replayed %q", key, r.Result)
		}
	}
	for key := range bad {
		m.callAll(key)
	}
}

// testUnreadableAtTheLimit: what has expired makes room also after records that cannot be read.
// Such records are neither removed nor overwritten.
func testUnreadableAtTheLimit(t *testing.T, m *managers) {
	m.stores = m.stores[:1]
	m.start(ledger.Options{MaxEntries: many + 10, ScopeShare: -1, CommittedTTL: time.Second})
	bad := names("b", many)
	m.plant(api.StateCommitted, time.Now().Add(-time.Hour), bad...)
	for i := range 10 {
		m.commit(0, fmt.Sprint("old", i), "t", "x")
	}
	for _, key := range []string{"new", "newer"} {
		m.eventually("a new key finds room", func() bool {
			_, err := m.at(0).Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "t"}, nil)
			if err != nil && !errors.Is(err, ledger.ErrFull) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	for _, key := range bad {
		m.value(key)
	}
	if m.stores[0].Capabilities().Shared {
		return // a deletion shows in the counts a second later
	}
	if u, err := m.at(0).DeleteUnreadable(t.Context(), recordKey(bad[0])); err != nil || u.Key != recordKey(bad[0]) {
		t.Errorf("delete: %v, %v", u, err)
	}
	if _, err := m.at(0).DeleteUnreadable(t.Context(), recordKey(bad[0])); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("delete again: %v", err)
	}
	if _, err := m.at(0).DeleteUnreadable(t.Context(), recordKey("newer")); !errors.Is(err, unread.ErrReadable) {
		t.Errorf("delete of a readable record: %v", err)
	}
	m.reserve(0, bad[0], "t", api.StateReserved)
}
