package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
)

// conn is the part of a sticky connection that a transaction uses. A single read uses the pool instead.
type conn interface {
	Pipelined(ctx context.Context, fn func(goredis.Pipeliner) error) ([]goredis.Cmder, error)
	TxPipelined(ctx context.Context, fn func(goredis.Pipeliner) error) ([]goredis.Cmder, error)
	ZRangeByLex(ctx context.Context, key string, opt *goredis.ZRangeBy) *goredis.StringSliceCmd
	Time(ctx context.Context) *goredis.TimeCmd
}

type tx struct {
	overlay.Tx
	s     *Store
	ctx   context.Context
	conn  conn
	watch bool
	run   int

	clock     time.Time // the server's clock at the last read
	now       time.Time // what Now returned first
	claimed   remote.Claimer
	armed     bool // a WATCH is active on the connection
	needWatch bool
	sent      bool // the writes were sent, so they may have been made
	proven    bool // the replicas have it

	set *settings // the server's, as far as known when the transaction began
	era era       // of the server, before the first read; empty unless replicas have to confirm
}

func (s *Store) newTx(ctx context.Context, c conn, run int, watch, readOnly bool) *tx {
	t := &tx{s: s, ctx: ctx, conn: c, run: run, watch: watch, set: s.guard.set.Load()}
	t.ReadOnly, t.Load, t.LoadMany, t.Assume = readOnly, t.load, t.loadMany, true
	return t
}

// Now implements store.Tx: the server's TIME at the last read before the first call.
func (t *tx) Now() time.Time {
	if !t.now.IsZero() {
		return t.now
	}
	if t.clock.IsZero() {
		now, err := t.conn.Time(t.ctx).Result()
		if err != nil {
			_ = t.Fail(unavailable(err))
			return time.Now() // never used: the transaction fails with t.Err
		}
		t.clock = now
	}
	t.now = t.clock
	return t.now
}

// Wall implements store.Tx.
func (t *tx) Wall() time.Time { return t.Now() }

func (t *tx) load(r *overlay.Record) error { return t.loadMany([]*overlay.Record{r}) }

// loadMany watches and gets records in one round trip. It also asks for the time if it is not known.
func (t *tx) loadMany(records []*overlay.Record) error {
	if !t.watch && t.Reads()+len(records) > 1 {
		t.needWatch = true
		return errors.New("redis store: second record in an unwatched view")
	}
	keys := make([]any, 1, 1+len(records))
	keys[0] = "WATCH"
	for _, r := range records {
		keys = append(keys, t.s.recordKey(r.Collection, r.Key))
	}
	gets := make([]*goredis.StringCmd, len(records))
	var now *goredis.TimeCmd
	var info *goredis.StringCmd
	_, err := t.conn.Pipelined(t.ctx, func(p goredis.Pipeliner) error {
		if t.set.replicas() > 0 && t.era == "" {
			info = p.Info(t.ctx, "replication") // before the reads: the era must not begin after them
		}
		if t.watch {
			t.armed = true
			p.Do(t.ctx, keys...)
		}
		for i, key := range keys[1:] {
			gets[i] = p.Get(t.ctx, key.(string))
		}
		if t.now.IsZero() {
			now = p.Time(t.ctx)
		}
		return nil
	})
	if err != nil && !errors.Is(err, goredis.Nil) && !wrongType(err) {
		return unavailable(err)
	}
	if info != nil {
		t.era = eraOf(info)
	}
	if now != nil {
		if t.clock, err = now.Result(); err != nil {
			return unavailable(err)
		}
	}
	for i, r := range records {
		if err := fill(r, gets[i]); err != nil {
			return err
		}
	}
	return nil
}

// Scan implements store.Tx. It reads the index in its present state on the server.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	if t.Err != nil {
		return nil, t.Err
	}
	by := &goredis.ZRangeBy{Min: "[" + member.Escape(r.From), Max: "+"}
	if r.After != nil {
		by.Min = "(" + member.Join(r.After.SortKey, r.After.Key)
	}
	if r.To != "" {
		by.Max = "(" + member.Escape(r.To)
	}
	if r.Claim && !t.ReadOnly {
		hits, err := t.rangeOf(c, index, by, int64(t.s.claims.Window(r.Limit, t.run)))
		if err != nil {
			return nil, err
		}
		hits, _ = t.s.claims.Take(&t.claimed, c, hits, r.Limit, t.run)
		return hits, t.preload(c, hits)
	}
	return t.rangeOf(c, index, by, int64(r.Limit))
}

// rangeOf skips members that the engine did not write, and reads more instead. So fewer hits than the limit mean
// the end of the range.
func (t *tx) rangeOf(c store.Collection, index string, by *goredis.ZRangeBy, limit int64) ([]store.Hit, error) {
	var hits []store.Hit
	for {
		by.Count = limit - int64(len(hits))
		members, err := t.conn.ZRangeByLex(t.ctx, t.s.indexKey(c, index), by).Result()
		if err != nil {
			return nil, t.Fail(unavailable(err))
		}
		for _, m := range members {
			if h, err := member.Split(m); err == nil {
				hits = append(hits, h)
			}
		}
		if int64(len(members)) < by.Count || int64(len(hits)) == limit {
			return hits, nil
		}
		by.Min = "(" + members[len(members)-1]
	}
}

// preload watches and gets the records of the hits in one round trip, so that the Gets that follow need none.
func (t *tx) preload(c store.Collection, hits []store.Hit) error {
	var records []*overlay.Record
	for _, h := range hits {
		if !t.Loaded(c, h.Key) {
			records = append(records, &overlay.Record{Collection: c, Key: h.Key})
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := t.loadMany(records); err != nil {
		return t.Fail(err)
	}
	t.Preload(records...)
	return nil
}

// fill stores the answer to a GET in r.
func fill(r *overlay.Record, get *goredis.StringCmd) error {
	b, err := get.Bytes()
	switch {
	case errors.Is(err, goredis.Nil):
		return nil
	case wrongType(err):
		r.Stored, r.Unreadable = true, "its key holds another type than a string"
		return nil
	case err != nil:
		return unavailable(err)
	}
	r.Stored = true
	if r.StoredEntries, r.StoredValue, err = reccodec.Split(b); err != nil {
		r.Unreadable = err.Error()
	}
	return nil
}

// wrongType recognizes the server's answer about a key whose type was changed from outside.
func wrongType(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE")
}

// commit sends the writes. A transaction without writes that read more than one record is validated: everything it read
// must have existed at one moment.
func (t *tx) commit() error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if err := t.LoadAssumed(); err != nil {
		return err
	}
	writes := t.Writes()
	if len(writes) == 0 && len(t.Topics()) == 0 {
		return t.validate()
	}
	t.sent = true
	cmds, err := t.conn.TxPipelined(t.ctx, func(p goredis.Pipeliner) error {
		for _, r := range writes {
			t.queue(p, r)
		}
		for _, topic := range t.Topics() {
			p.Publish(t.ctx, t.s.ns+"notify", topic)
		}
		return nil
	})
	if err != nil && strings.HasPrefix(err.Error(), "EXECABORT") {
		// EXEC only reports that it did nothing; the error of the rejected command says why.
		t.armed = false
		for _, cmd := range cmds {
			if cerr := cmd.Err(); cerr != nil && cerr.Error() != err.Error() {
				return unavailable(cerr)
			}
		}
	}
	if err := t.executed(err); err != nil || len(writes) == 0 {
		return err
	}
	if t.set.replicas() == 0 {
		return nil
	}
	t.proven = true
	p, err := t.set.await(t.ctx, t.conn, nil)
	if err != nil {
		return err
	}
	return t.accept(p)
}

func (t *tx) queue(p goredis.Pipeliner, r *overlay.Record) {
	rk := t.s.recordKey(r.Collection, r.Key)
	for _, e := range r.Removed() {
		p.ZRem(t.ctx, t.s.indexKey(r.Collection, e.Index), member.Join(e.SortKey, r.Key))
	}
	if !r.Present {
		p.Del(t.ctx, rk)
		p.HIncrBy(t.ctx, t.s.ns+"n", string(r.Collection), -1)
		return
	}
	p.Set(t.ctx, rk, append(reccodec.Append(nil, r.Entries), r.Value...), 0)
	for _, e := range r.Added() {
		p.ZAdd(t.ctx, t.s.indexKey(r.Collection, e.Index), goredis.Z{Member: member.Join(e.SortKey, r.Key)})
	}
	if !r.Stored {
		p.HIncrBy(t.ctx, t.s.ns+"n", string(r.Collection), 1)
	}
}

// validate checks that nothing the transaction read has changed since.
func (t *tx) validate() error {
	if t.Reads() < 2 {
		return nil
	}
	_, err := t.conn.TxPipelined(t.ctx, func(p goredis.Pipeliner) error {
		p.Ping(t.ctx)
		return nil
	})
	return t.executed(err)
}

// refused returns the function's own error, unless it came from a state that never existed at one moment: then the
// function has to run again.
func (t *tx) refused(err error) error {
	if t.Err == nil && errors.Is(t.validate(), goredis.TxFailedErr) {
		return goredis.TxFailedErr
	}
	return err
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

// end releases the transaction's claims and, unless an EXEC did, its WATCHes.
func (t *tx) end() {
	t.s.claims.Release(&t.claimed)
	if !t.armed {
		return
	}
	// The caller's context may have ended, but the connection returns to the pool in any case. A WATCH that stays after
	// a failure can only make a later transaction run once more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), time.Second)
	defer cancel()
	if rtx, ok := t.conn.(*goredis.Tx); ok {
		_ = rtx.Unwatch(ctx).Err()
	}
}
