package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// model is the ledger in the plainest form: a map, no store, no indexes.
type model struct {
	max     int
	now     int64
	entries map[string]*modelEntry
	fenced  uint64
}

type modelEntry struct {
	state              api.State
	token, fingerprint string
	expires            int64
	unknown            int64 // how long it is UNKNOWN when it runs out
	body               string
}

// hard is how many entries there may be with outcomes that came late.
func (m *model) hard() int { return m.max + m.max/8 + 1 }

func (m *model) find(key string) *modelEntry {
	if e := m.entries[key]; e != nil && m.alive(e) {
		return e
	}
	return nil
}

func (m *model) alive(e *modelEntry) bool {
	if e.state == api.StatePending && m.now >= e.expires && e.unknown > 0 {
		e.state, e.expires = api.StateUnknown, e.expires+e.unknown
	}
	return m.now < e.expires
}

// room refuses one entry more when there are limit.
func (m *model) room(limit int) error {
	n := 0
	for _, e := range m.entries {
		if m.alive(e) {
			n++
		}
	}
	if n >= limit {
		return ErrFull
	}
	return nil
}

func (m *model) reserve(key, token, fp string, ttl, unknown int64) (api.State, int64, string, error) {
	e := m.find(key)
	switch {
	case e == nil:
		if err := m.room(m.max); err != nil {
			return 0, 0, "", err
		}
		m.entries[key] = &modelEntry{
			state: api.StatePending, token: token, fingerprint: fp, expires: m.now + ttl, unknown: unknown,
		}
		return api.StateReserved, ttl, "", nil
	case !api.SameRequest(fp, e.fingerprint):
		return 0, 0, "", ErrFingerprintMismatch
	case e.state == api.StateUnknown:
		return 0, 0, "", ErrOutcomeUnknown
	case e.state != api.StatePending:
		return e.state, e.expires - m.now, e.body, nil
	case e.token == token:
		return api.StateReserved, e.expires - m.now, "", nil
	default:
		return api.StatePending, e.expires - m.now, "", nil
	}
}

// mine is for the calls of an attempt that has the key or had it: its entry, nil when
// that is gone, and the fingerprint that it has.
func (m *model) mine(key, token, fp string, same api.State) (*modelEntry, string, error) {
	e := m.find(key)
	switch {
	case e == nil:
		return nil, fp, m.room(m.hard())
	case e.token != token:
		m.fenced++
		return e, "", ErrFenced
	case e.state == same:
	case e.state.Terminal():
		return e, "", ErrConflict
	case !api.SameRequest(fp, e.fingerprint):
		return e, "", ErrFingerprintMismatch
	case e.fingerprint != "":
		fp = e.fingerprint
	}
	return e, fp, nil
}

func (m *model) finish(state api.State, key, token, fp, body string, ttl int64) error {
	e, fp, err := m.mine(key, token, fp, state)
	if err == nil && (e == nil || e.state != state) {
		m.entries[key] = &modelEntry{state: state, token: token, fingerprint: fp, expires: m.now + ttl, body: body}
	}
	return err
}

func (m *model) renew(key, token, fp string, ttl, unknown int64) (int64, error) {
	e, fp, err := m.mine(key, token, fp, api.StateNone)
	if err != nil {
		return 0, err
	}
	until := m.now + ttl
	if e != nil && e.state == api.StatePending {
		until = max(until, e.expires)
	}
	m.entries[key] = &modelEntry{
		state: api.StatePending, token: token, fingerprint: fp, expires: until, unknown: unknown,
	}
	return until - m.now, nil
}

func (m *model) resolve(state api.State, key, body string, ttl int64) error {
	e := m.find(key)
	switch {
	case e == nil:
		return ErrNotFound
	case e.state != api.StateUnknown:
		return ErrConflict
	case state == api.StateReleased:
		delete(m.entries, key)
	default:
		e.state, e.expires, e.body = state, m.now+ttl, body
	}
	return nil
}

func (m *model) release(key, token string) error {
	e := m.find(key)
	switch {
	case e == nil:
		return nil
	case e.token != token:
		m.fenced++
		return ErrFenced
	case e.state.Terminal():
		return ErrConflict
	}
	delete(m.entries, key)
	return nil
}

// TestAgainstModel runs random calls on the ledger and on the model and
// compares every answer and, after each step, everything that is there.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		st := mem.New(mem.Options{Clock: c.Now})
		defer st.Close()
		opts := Options{MaxEntries: rapid.IntRange(1, 5).Draw(t, "max"), ScopeShare: -1}
		l, err := New(st, opts)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{max: opts.MaxEntries, now: c.Now().UnixMilli(), entries: make(map[string]*modelEntry)}
		keys := rapid.SampledFrom([]string{"k0", "k1", "k2", "k3", "k4", "k5"})
		tokens := rapid.SampledFrom([]string{"t1", "t2", "t3"})
		base := strings.Repeat("a", 32)
		prints := rapid.SampledFrom([]string{"", "", "f", "g", base, base + ".00000001", base + ".00000002"})
		ttls := rapid.Int64Range(1, 40)
		unknowns := rapid.SampledFrom([]int64{0, 0, 10, 60})
		tick := func(ms int64) {
			c.advance(time.Duration(ms) * time.Millisecond)
			m.now += ms
		}
		same := func(got, want error) {
			if !errors.Is(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
		finish := func(op Op, state api.State) {
			tick(1)
			key, token, fp := keys.Draw(t, "key"), tokens.Draw(t, "token"), prints.Draw(t, "fingerprint")
			ttl, body := ttls.Draw(t, "ttl"), fmt.Sprint(m.now)
			req := finishReq(key, token, body)
			req.Fingerprint, req.TTL = fp, time.Duration(ttl)*time.Millisecond
			call := l.Commit
			if op == OpReject {
				call = l.Reject
			}
			same(call(t.Context(), req), m.finish(state, key, token, fp, body, ttl))
		}
		reservation := func(t *rapid.T) (req *api.ReserveRequest, ttl, unknown int64) {
			req = reserveReq(keys.Draw(t, "key"), tokens.Draw(t, "token"))
			req.Fingerprint = prints.Draw(t, "fingerprint")
			ttl, unknown = ttls.Draw(t, "ttl"), unknowns.Draw(t, "unknown")
			req.PendingTTL, req.UnknownTTL = time.Duration(ttl)*time.Millisecond, time.Duration(unknown)*time.Millisecond
			if unknown == 0 {
				req.UnknownTTL = api.NoUnknown
			}
			return req, ttl, unknown
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				tick(1)
				req, ttl, unknown := reservation(t)
				got, err := l.Reserve(t.Context(), req, nil)
				state, left, body, wantErr := m.reserve(req.Key, req.Token, req.Fingerprint, ttl, unknown)
				same(err, wantErr)
				if got.State != state || got.ExpiresIn != time.Duration(left)*time.Millisecond {
					t.Fatalf("got %v for %v, want %v for %dms", got.State, got.ExpiresIn, state, left)
				}
				if state.Terminal() && !bytes.Equal(got.Result, answer(201, body)) {
					t.Fatalf("replayed %q, recorded was %q", got.Result, body)
				}
			},
			"commit": func(*rapid.T) { finish(OpCommit, api.StateCommitted) },
			"reject": func(*rapid.T) { finish(OpReject, api.StateRejected) },
			"release": func(t *rapid.T) {
				tick(1)
				key, token := keys.Draw(t, "key"), tokens.Draw(t, "token")
				same(l.Release(t.Context(), releaseReq(key, token)), m.release(key, token))
			},
			"renew": func(t *rapid.T) {
				tick(1)
				req, ttl, unknown := reservation(t)
				got, err := l.Renew(t.Context(), req)
				left, wantErr := m.renew(req.Key, req.Token, req.Fingerprint, ttl, unknown)
				same(err, wantErr)
				if err == nil && (got.State != api.StateReserved || got.ExpiresIn != time.Duration(left)*time.Millisecond) {
					t.Fatalf("got %v for %v, want %dms", got.State, got.ExpiresIn, left)
				}
			},
			"unknown": func(t *rapid.T) {
				tick(1)
				req, ttl, _ := reservation(t)
				req.PendingTTL, req.UnknownTTL = 0, time.Duration(ttl)*time.Millisecond
				got, err := l.Unknown(t.Context(), req)
				same(err, m.finish(api.StateUnknown, req.Key, req.Token, req.Fingerprint, "", ttl))
				if err == nil && got.State != api.StateUnknown {
					t.Fatalf("got %v", got.State)
				}
			},
			"resolve": func(t *rapid.T) {
				tick(1)
				as := rapid.SampledFrom([]api.State{api.StateCommitted, api.StateRejected, api.StateReleased}).Draw(t, "as")
				key, ttl, body := keys.Draw(t, "key"), ttls.Draw(t, "ttl"), fmt.Sprint(m.now)
				res := Resolution{As: as, TTL: time.Duration(ttl) * time.Millisecond}
				if as != api.StateReleased {
					res.Result = answer(201, body)
				}
				_, err := l.Resolve(t.Context(), "s", key, res)
				same(err, m.resolve(as, key, body, ttl))
			},
			"delete": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				_, err := l.Delete(t.Context(), "s", key)
				if (err == nil) != (m.find(key) != nil) {
					t.Fatalf("delete: %v", err)
				}
				delete(m.entries, key)
			},
			"wait": func(t *rapid.T) { tick(rapid.Int64Range(1, 60).Draw(t, "ms")) },
			"sweep": func(t *rapid.T) {
				if _, err := l.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				gone := 0
				for _, e := range m.entries {
					if !m.alive(e) {
						gone++
					}
				}
				if n, err := st.Len(t.Context(), Collection, ""); err != nil || n != len(m.entries)-gone {
					t.Fatalf("%d records after a sweep, %d entries, %v", n, len(m.entries)-gone, err)
				}
			},
			"": func(t *rapid.T) { compare(t, l, m) },
		})
	})
}

// TestFoundByTheModel has the shortest runs of TestAgainstModel that failed while the
// ledger was written, each with the bug that it showed. Every call is a millisecond
// after the one before.
func TestFoundByTheModel(t *testing.T) {
	type step struct {
		do, key string
		ttl     time.Duration
		err     error
	}
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		max   int
		steps []step
	}{
		"an outcome outlived its TTL by a millisecond": {1, []step{
			{"commit", "k0", ms, nil}, {"reject", "k0", ms, nil},
		}},
		"an outcome ended a millisecond before its TTL": {1, []step{
			{"commit", "k1", 2 * ms, nil}, {"reject", "k1", ms, ErrConflict},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger(t, Options{MaxEntries: c.max, ScopeShare: -1})
			for i, s := range c.steps {
				clock.advance(ms)
				finish := finishReq(s.key, "t1", "x")
				finish.TTL = s.ttl
				var err error
				switch s.do {
				case "commit":
					err = l.Commit(t.Context(), finish)
				case "reject":
					err = l.Reject(t.Context(), finish)
				}
				if !errors.Is(err, s.err) {
					t.Errorf("step %d, %s %s: %v, want %v", i, s.do, s.key, err, s.err)
				}
			}
			for _, s := range c.steps {
				if _, err := l.Get(t.Context(), "s", s.key); err != nil {
					t.Errorf("%s: %v", s.key, err)
				}
			}
		})
	}
}

// compare checks everything that can be seen from outside.
func compare(t *rapid.T, l *Ledger, m *model) {
	listed := make(map[string]Entry)
	for cursor := ""; ; {
		page, next, err := ListEntries(t.Context(), l, api.StateNone, 2, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			if _, twice := listed[e.Key]; twice {
				t.Fatalf("%s is listed twice", e.Key)
			}
			listed[e.Key] = e
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	for key, e := range m.entries {
		got, ok := listed[key]
		if alive := m.alive(e); ok != alive {
			t.Fatalf("%s: listed %v, alive %v", key, ok, alive)
		}
		if !ok {
			continue
		}
		if got.State != e.state || got.Fingerprint != e.fingerprint || got.ExpiresIn != time.Duration(e.expires-m.now)*time.Millisecond {
			t.Fatalf("%s: %+v, want %+v", key, got, *e)
		}
		delete(listed, key)
	}
	if len(listed) != 0 {
		t.Fatalf("listed but gone: %v", listed)
	}
	s, err := l.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var fenced uint64
	s.EachFenced(func(_ string, n uint64) { fenced += n })
	if fenced != m.fenced {
		t.Fatalf("counted %d fenced, want %d", fenced, m.fenced)
	}
	want, err := bytesIn(l.store)
	if err == nil {
		err = usageIs(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != want {
		t.Fatalf("counted %d bytes of %d", s.Bytes, want)
	}
	if n := s.Total(); n > m.hard() {
		t.Fatalf("%d entries in a window of %d", n, m.max)
	}
}
