package jobs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Limits bound the delivery of a function's jobs, by all managers together. Zero fields do not.
type Limits struct {
	// MaxRunning bounds the jobs that workers have at the same time, and MaxRunningPerKey those with the same concurrency
	// key: 1 to MaxLimitCount. Jobs count from their delivery on, so those that ran before the limit was set do not.
	MaxRunning, MaxRunningPerKey int
	// Rate bounds the deliveries.
	Rate Rate
}

// Rate is a token bucket: it holds Count tokens, and gets as many in each Per. Each delivery takes one.
type Rate struct {
	// Count: 1 to MaxLimitCount.
	Count int
	// Per: 1 ms to 24 h.
	Per time.Duration
}

func (l *Limits) check() error {
	most := func(field string, v int) error {
		if v == 0 {
			return nil
		}
		return checkRange(field, v, 1, MaxLimitCount)
	}
	if err := cmp.Or(most("max_running", l.MaxRunning), most("max_running_per_key", l.MaxRunningPerKey)); err != nil {
		return err
	}
	if l.Rate == (Rate{}) {
		return nil
	}
	return cmp.Or(checkRange("rate.count", l.Rate.Count, 1, MaxLimitCount), checkDuration("rate.per_ms", l.Rate.Per, time.Millisecond, MaxRatePer))
}

// SetLimits replaces the limits of a function. It returns a *FieldError for the first invalid field, or if MaxSettings
// other functions have settings.
func (q *Queue) SetLimits(ctx context.Context, function string, l Limits) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := q.change(ctx, function, func(tx store.Tx, s *setting) {
		s.limits = l
		notifyQueued(tx, function)
	}); err != nil {
		return err
	}
	return q.unblock(ctx, function)
}

// unblock gives the function's keys that have as many running jobs as they may the present limit.
func (q *Queue) unblock(ctx context.Context, function string) error {
	var after *store.Hit
	for {
		var hits []store.Hit
		err := q.store.Update(ctx, func(tx store.Tx) (err error) {
			all, err := loadSettings(tx)
			if err != nil {
				return err
			}
			limit := 0
			if s := all.find(function); s != nil {
				limit = s.limits.MaxRunningPerKey
			}
			if hits, err = tx.Scan(colSlots, idxBlocked, store.Range{From: function + "\x00", To: afterFunction(function), After: after, Limit: dutyBatch}); err != nil {
				return err
			}
			for _, h := range hits {
				k, err := loadKeySlots(tx, h.Key)
				if err == nil && k.limit != limit && k.waiting > 0 {
					k.limit = limit
					err = k.save(tx, h.Key)
				}
				if err != nil && !q.opt.Unreadable.Met(err) {
					return err
				}
			}
			notifyQueued(tx, function)
			return nil
		})
		if err != nil || len(hits) < dutyBatch {
			return err
		}
		after = &hits[len(hits)-1]
	}
}

// What a running job counts for, a mask.
const (
	slotFunction = 1 << iota // in functionSlots.running
	slotKey                  // in keySlots.running
)

// functionSlots is the record in colSlots of a function with a limit of its own.
type functionSlots struct {
	running int
	// empty is when the token bucket was empty if it had got its tokens in time since then, in nanoseconds since 1970.
	empty int64
}

// keySlots is the record of a concurrency key of a function. It exists while jobs with the key wait or hold slots.
type keySlots struct {
	waiting, running int
	// limit is MaxRunningPerKey when a claim saw the key last, 0 for none. It decides between idxReady and idxBlocked; claims
	// check the present limit. While no job waits it is 0, because the limit may change without the key.
	limit int
	// turn is the key's place in the line of its function: when it was served last, or had work again, in microseconds of the
	// clock of leases. The wall clock may be set back, and would then put keys first that were just served.
	turn int64
}

const slotsVersion = 1

// slotsKey is the key in colSlots of a concurrency key.
func slotsKey(function, key string) string { return function + "\x00" + key }

func decodeSlots(key string, b []byte, fields ...*int64) error {
	d := decoder{codec.NewReader(b)}
	d.version(slotsVersion)
	for _, v := range fields {
		if *v = d.Varint(); *v < 0 {
			d.fail()
		}
	}
	if len(d.Rest()) > 0 {
		d.fail()
	}
	if d.Err() != nil {
		return unreadable(colSlots, key, "%v", d.Err())
	}
	return nil
}

func appendSlots(fields ...int64) []byte {
	b := []byte{slotsVersion}
	for _, v := range fields {
		b = binary.AppendVarint(b, v)
	}
	return b
}

func loadFunctionSlots(tx store.Tx, function string) (functionSlots, error) {
	return store.Read(tx, colSlots, function, decodeFunctionSlots)
}

func decodeFunctionSlots(function string, b []byte) (functionSlots, error) {
	var running, empty int64
	err := decodeSlots(function, b, &running, &empty)
	return functionSlots{int(running), empty}, err
}

func (f functionSlots) save(tx store.Tx, function string) error {
	if f == (functionSlots{}) {
		return tx.Delete(colSlots, function)
	}
	return tx.Put(colSlots, function, appendSlots(int64(f.running), f.empty))
}

// interval is how long the bucket takes to get one token, in nanoseconds, rounded up.
func (r Rate) interval() int64 { return (r.Per.Nanoseconds() + int64(r.Count) - 1) / int64(r.Count) }

// tokens returns how many tokens the bucket has, and if it has none, when it gets one.
func (f functionSlots) tokens(r Rate, at time.Time) (n int, wait time.Duration) {
	since := at.UnixNano() - f.empty
	if n = int(min(since/r.interval(), int64(r.Count))); n <= 0 {
		return 0, time.Duration(r.interval() - since)
	}
	return n, 0
}

// take takes n tokens.
func (f *functionSlots) take(r Rate, n int, at time.Time) {
	full := at.UnixNano() - int64(r.Count)*r.interval()
	f.empty = max(f.empty, full) + int64(n)*r.interval()
}

func loadKeySlots(tx store.Tx, key string) (keySlots, error) {
	return store.Read(tx, colSlots, key, decodeKeySlots)
}

func decodeKeySlots(key string, b []byte) (keySlots, error) {
	var waiting, running, limit, turn int64
	err := decodeSlots(key, b, &waiting, &running, &limit, &turn)
	return keySlots{int(waiting), int(running), int(limit), turn}, err
}

func (k keySlots) full() bool { return k.limit > 0 && k.running >= k.limit }

func (k keySlots) save(tx store.Tx, key string) error {
	if k.waiting == 0 && k.running == 0 {
		return tx.Delete(colSlots, key)
	}
	if k.waiting == 0 {
		k.limit = 0
	}
	return tx.Put(colSlots, key, appendSlots(int64(k.waiting), int64(k.running), int64(k.limit), k.turn), k.entries(key)...)
}

func (k keySlots) entries(key string) []store.Entry {
	function := functionOf(key) + "\x00"
	switch {
	case k.waiting == 0:
		return nil
	case k.full():
		return []store.Entry{{Index: idxBlocked, SortKey: function}}
	}
	return []store.Entry{{Index: idxReady, SortKey: function + timeKey(time.UnixMicro(k.turn))}}
}

// held is what a job counts for in colSlots.
type held struct {
	waits bool // with a concurrency key
	slots byte
}

func (r *record) holds() held {
	switch {
	case r.removed:
		return held{}
	case r.State == Active:
		return held{slots: r.slots}
	}
	return held{waits: r.State == Queued && r.ConcurrencyKey != ""}
}

// hold changes what the job counts for in colSlots from what it was when the job was read to what it is now. A record
// that cannot be read does not keep a job from ending, but it keeps jobs from waiting or running by it, and so do settings
// without room for the job's function. Then hold has written nothing.
func (r *record) hold(tx store.Tx) error {
	before, after := r.held, r.holds()
	if before == after {
		return nil
	}
	change := func(bit byte) int { return int(after.slots&bit)/int(bit) - int(before.slots&bit)/int(bit) }
	n := change(slotKey)
	keyed := n != 0 || before.waits != after.waits
	key := slotsKey(r.Function, r.ConcurrencyKey)
	var k keySlots
	if keyed {
		var err error
		k, err = loadKeySlots(tx, key)
		switch {
		case errors.Is(err, store.ErrUnreadable) && !after.waits && n <= 0:
			keyed = false
		case err != nil:
			return err
		}
	}
	if after.waits && !r.marked {
		if err := markKeyed(tx, r.Function); err != nil {
			return err
		}
	}
	if err := r.holdFunction(tx, change(slotFunction)); err != nil {
		return err
	}
	r.held = after
	if !keyed {
		return nil
	}
	switch {
	case after.waits && !before.waits:
		if k.waiting == 0 {
			k.turn = leaseNow(tx).UnixMicro()
		}
		k.waiting++
	case before.waits && !after.waits:
		k.waiting = max(k.waiting-1, 0)
	}
	k.running = max(k.running+n, 0)
	if r.State == Active {
		k.limit, k.turn = r.keyLimit, r.turn
	}
	if n < 0 && k.waiting > 0 {
		notifyQueued(tx, r.Function)
	}
	return k.save(tx, key)
}

// holdFunction changes how many jobs of the job's function run by n.
func (r *record) holdFunction(tx store.Tx, n int) error {
	if n == 0 {
		return nil
	}
	f, err := loadFunctionSlots(tx, r.Function)
	if err == nil {
		f.running = max(f.running+n, 0)
		err = f.save(tx, r.Function)
	}
	if err != nil && (n > 0 || !errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	if n < 0 {
		notifyQueued(tx, r.Function)
	}
	return nil
}

// recountKey counts the jobs that wait with a concurrency key. If its record cannot be read it gets a new one, for which
// jobs that run do not count.
func recountKey(tx store.Tx, key string) error {
	k, err := loadKeySlots(tx, key)
	if errors.Is(err, store.ErrUnreadable) {
		k = keySlots{turn: leaseNow(tx).UnixMicro()}
	} else if err != nil {
		return err
	}
	k.waiting = 0
	r := store.Range{From: key + "\x00", To: key + "\x01", Limit: store.MaxScan}
	for {
		hits, err := tx.Scan(colJobs, idxKeyed, r)
		if err != nil {
			return err
		}
		if k.waiting += len(hits); len(hits) < r.Limit {
			return k.save(tx, key)
		}
		if k.waiting > MaxCounted {
			return fmt.Errorf("jobs: more than %d jobs wait with this key", MaxCounted)
		}
		r.After = &hits[len(hits)-1]
	}
}
