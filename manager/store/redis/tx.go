package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/store"
)

// conn is what a transaction needs of a sticky connection (or, for a single
// read, of the pool).
type conn interface {
	Pipelined(ctx context.Context, fn func(goredis.Pipeliner) error) ([]goredis.Cmder, error)
	TxPipelined(ctx context.Context, fn func(goredis.Pipeliner) error) ([]goredis.Cmder, error)
	ZRangeByLex(ctx context.Context, key string, opt *goredis.ZRangeBy) *goredis.StringSliceCmd
	Time(ctx context.Context) *goredis.TimeCmd
}

// record is what a transaction knows of one record: what the server had when it
// was first looked at, and what the transaction wants it to be.
type record struct {
	c   store.Collection
	key string

	stored      bool
	storedValue []byte
	oldEntries  []store.Entry

	written bool
	present bool
	value   []byte
	entries []store.Entry
}

type tx struct {
	s        *Store
	ctx      context.Context
	conn     conn
	watch    bool
	readOnly bool
	run      int

	now       time.Time
	records   map[string]*record
	order     []*record // written records in the order of their first write
	bytes     int
	notify    []string
	claimed   []string
	armed     bool // a WATCH is active on the connection
	needWatch bool
	err       error // first engine error, even if the function swallows it
}

func (t *tx) fail(err error) error {
	if t.err == nil {
		t.err = err
	}
	return err
}

// Now implements store.Tx: the server's TIME.
func (t *tx) Now() time.Time {
	if t.now.IsZero() {
		now, err := t.conn.Time(t.ctx).Result()
		if err != nil {
			t.fail(unavailable(err))
			return time.Now() // never acted on: the transaction fails with t.err
		}
		t.now = now
	}
	return t.now
}

// load looks at a record for the first time: WATCH, GET and, once, TIME in one
// round trip.
func (t *tx) load(c store.Collection, key string) (*record, error) {
	if t.err != nil {
		return nil, t.err
	}
	rk := t.s.recordKey(c, key)
	if r := t.records[rk]; r != nil {
		return r, nil
	}
	if !t.watch && len(t.records) > 0 {
		t.needWatch = true
		return nil, t.fail(errors.New("redis store: second record in an unwatched view"))
	}
	var get *goredis.StringCmd
	var now *goredis.TimeCmd
	_, err := t.conn.Pipelined(t.ctx, func(p goredis.Pipeliner) error {
		if t.watch {
			t.armed = true
			p.Do(t.ctx, "WATCH", rk)
		}
		get = p.Get(t.ctx, rk)
		if t.now.IsZero() {
			now = p.Time(t.ctx)
		}
		return nil
	})
	if err != nil && !errors.Is(err, goredis.Nil) {
		return nil, t.fail(unavailable(err))
	}
	if now != nil {
		t.now = now.Val()
	}
	r := &record{c: c, key: key}
	b, err := get.Bytes()
	switch {
	case errors.Is(err, goredis.Nil):
	case err != nil:
		return nil, t.fail(unavailable(err))
	default:
		if r.storedValue, r.oldEntries, err = decodeRecord(b); err != nil {
			return nil, t.fail(fmt.Errorf("%w: %s %q", err, c, key))
		}
		r.stored = true
	}
	if t.records == nil {
		t.records = make(map[string]*record, 4)
	}
	t.records[rk] = r
	return r, nil
}

// Get implements store.Tx.
func (t *tx) Get(c store.Collection, key string) ([]byte, error) {
	if err := store.CheckKey(c, key); err != nil {
		return nil, err
	}
	r, err := t.load(c, key)
	if err != nil {
		return nil, err
	}
	if r.written {
		if !r.present {
			return nil, store.ErrNotFound
		}
		return r.value, nil
	}
	if !r.stored {
		return nil, store.ErrNotFound
	}
	return r.storedValue, nil
}

// Put implements store.Tx.
func (t *tx) Put(c store.Collection, key string, value []byte, entries ...store.Entry) error {
	if t.readOnly {
		return store.ErrReadOnly
	}
	n, err := store.CheckPut(c, key, value, entries)
	if err != nil {
		return err
	}
	t.bytes += n
	if err := store.CheckTx(t.bytes); err != nil {
		return t.fail(err)
	}
	r, err := t.load(c, key)
	if err != nil {
		return err
	}
	t.write(r)
	r.present, r.value = true, value
	r.entries = append([]store.Entry(nil), entries...)
	return nil
}

// Delete implements store.Tx.
func (t *tx) Delete(c store.Collection, key string) error {
	if t.readOnly {
		return store.ErrReadOnly
	}
	if err := store.CheckKey(c, key); err != nil {
		return err
	}
	r, err := t.load(c, key)
	if err != nil {
		return err
	}
	t.write(r)
	r.present, r.value, r.entries = false, nil, nil
	return nil
}

func (t *tx) write(r *record) {
	if !r.written {
		r.written = true
		t.order = append(t.order, r)
	}
}

// Notify implements store.Tx.
func (t *tx) Notify(topic string) {
	if !t.readOnly {
		t.notify = append(t.notify, topic)
	}
}

// Scan implements store.Tx. It reads the index as it is on the server.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	if t.err != nil {
		return nil, t.err
	}
	by := &goredis.ZRangeBy{Min: "[" + escape(r.From), Max: "+"}
	if r.After != nil {
		by.Min = "(" + member(r.After.SortKey, r.After.Key)
	}
	if r.To != "" {
		by.Max = "(" + escape(r.To)
	}
	if r.Claim && !t.readOnly {
		return t.claim(c, index, by, r.Limit)
	}
	return t.rangeOf(c, index, by, int64(r.Limit))
}

func (t *tx) rangeOf(c store.Collection, index string, by *goredis.ZRangeBy, limit int64) ([]store.Hit, error) {
	by.Count = limit
	members, err := t.conn.ZRangeByLex(t.ctx, t.s.indexKey(c, index), by).Result()
	if err != nil {
		return nil, t.fail(unavailable(err))
	}
	hits := make([]store.Hit, len(members))
	for i, m := range members {
		if hits[i], err = splitMember(m); err != nil {
			return nil, t.fail(fmt.Errorf("%w: member of %s.%s", err, c, index))
		}
	}
	return hits, nil
}

// claim returns up to limit hits that no other transaction of this process is
// claiming, and marks them. After conflicts with other processes it starts at a
// random place of a window that grows with every run.
func (t *tx) claim(c store.Collection, index string, by *goredis.ZRangeBy, limit int) ([]store.Hit, error) {
	t.s.mu.Lock()
	window := limit*(1+4*min(t.run, 16)) + len(t.s.claiming)
	t.s.mu.Unlock()
	hits, err := t.rangeOf(c, index, by, int64(min(window, 10000)))
	if err != nil {
		return nil, err
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	free := hits[:0]
	for _, h := range hits {
		if _, taken := t.s.claiming[t.s.recordKey(c, h.Key)]; !taken {
			free = append(free, h)
		}
	}
	if len(free) > limit {
		start := 0
		if t.run > 0 {
			start = rand.IntN(len(free) - limit + 1)
		}
		free = free[start : start+limit]
	}
	for _, h := range free {
		rk := t.s.recordKey(c, h.Key)
		t.s.claiming[rk] = struct{}{}
		t.claimed = append(t.claimed, rk)
	}
	return free, nil
}

// commit sends the writes. A transaction without writes that read more than
// one record is validated, so that what it saw existed at one moment.
func (t *tx) commit() error {
	if len(t.order) == 0 && len(t.notify) == 0 {
		return t.validate()
	}
	_, err := t.conn.TxPipelined(t.ctx, func(p goredis.Pipeliner) error {
		for _, r := range t.order {
			t.queue(p, r)
		}
		for _, topic := range t.notify {
			p.Publish(t.ctx, t.s.ns+"notify", topic)
		}
		return nil
	})
	return t.executed(err)
}

func (t *tx) queue(p goredis.Pipeliner, r *record) {
	if !r.stored && !r.present {
		return
	}
	rk := t.s.recordKey(r.c, r.key)
	for _, e := range r.oldEntries {
		if !contains(r.entries, e) {
			p.ZRem(t.ctx, t.s.indexKey(r.c, e.Index), member(e.SortKey, r.key))
		}
	}
	if !r.present {
		p.Del(t.ctx, rk)
		p.HIncrBy(t.ctx, t.s.ns+"n", string(r.c), -1)
		return
	}
	p.Set(t.ctx, rk, encodeRecord(r.value, r.entries), 0)
	for _, e := range r.entries {
		if !contains(r.oldEntries, e) {
			p.ZAdd(t.ctx, t.s.indexKey(r.c, e.Index), goredis.Z{Member: member(e.SortKey, r.key)})
		}
	}
	if !r.stored {
		p.HIncrBy(t.ctx, t.s.ns+"n", string(r.c), 1)
	}
}

// validate makes sure that nothing the transaction read has changed since.
func (t *tx) validate() error {
	if len(t.records) < 2 {
		return nil
	}
	_, err := t.conn.TxPipelined(t.ctx, func(p goredis.Pipeliner) error {
		p.Ping(t.ctx)
		return nil
	})
	return t.executed(err)
}

func (t *tx) executed(err error) error {
	switch {
	case err == nil, errors.Is(err, goredis.TxFailedErr):
		t.armed = false
		return err
	default:
		return unavailable(err)
	}
}

// end releases what the run holds: its claims and, when no EXEC did, its WATCHes.
func (t *tx) end() {
	if len(t.claimed) > 0 {
		t.s.mu.Lock()
		for _, rk := range t.claimed {
			delete(t.s.claiming, rk)
		}
		t.s.mu.Unlock()
	}
	if !t.armed {
		return
	}
	// The caller's context may be over; the connection goes back to the pool
	// all the same. A WATCH that stays on it after a failure could only make a
	// later transaction run once more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), time.Second)
	defer cancel()
	if rtx, ok := t.conn.(*goredis.Tx); ok {
		_ = rtx.Unwatch(ctx).Err()
	}
}

func contains(entries []store.Entry, e store.Entry) bool {
	for _, o := range entries {
		if o == e {
			return true
		}
	}
	return false
}
