package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// tickEvery is how often the keeper writes the time. Others add what they measure since they have heard of it.
	tickEvery = 250 * time.Millisecond
	// silence is how long a manager hears nothing before it becomes the keeper.
	silence = 4 * tickEvery
	// slew is by how much the keeper's seconds may be longer or shorter than measured ones to follow its wall clock.
	slew = 500e-6
	// stepAhead is by how much a manager's own time must be ahead of the keeper's to make it the keeper.
	stepAhead = 100 * time.Millisecond
	// maxBack is by how much a tick may set another manager's time back.
	maxBack = time.Millisecond
	// near is the difference between the time and the keeper's wall clock that is left to the slew alone.
	near = 100 * time.Millisecond
	// logBehind is the difference from which a start logs it.
	logBehind = 2 * time.Second
	// maxAhead bounds how far ahead a record's time is believed.
	maxAhead = 5 * time.Second
	// downtimeSeconds is the TTL of the downtime lease, and renewEvery how often the keeper renews it.
	downtimeSeconds = 365 * 24 * 3600
	renewEvery      = 5 * time.Second
)

// tick is the clock's record in etcd.
type tick struct {
	// Now is the time in Unix microseconds.
	Now int64 `json:"now"`
	// Behind is how far the time is behind the keeper's wall clock in microseconds; 0 up to near, negative if it is ahead.
	Behind int64 `json:"behind,omitempty"`
	// Keeper wrote it; empty after it stopped.
	Keeper string `json:"keeper,omitempty"`
	// Lease is the downtime lease, which the keeper renewed at the time Renewed, or a little later.
	Lease   clientv3.LeaseID `json:"lease,omitempty"`
	Renewed int64            `json:"renewed,omitempty"`
}

// clock is the store's time; see the package documentation.
type clock struct {
	s       *Store
	wall    func() time.Time
	compact time.Duration
	me      string

	mu    sync.Mutex
	base  time.Time     // the time at the moment at
	at    time.Duration // by elapsed
	last  time.Time     // what Now returned last
	tick  tick          // the last known, and its revision
	rev   int64
	heart chan struct{} // has a value after a tick of another manager
	ahead bool          // this manager's time is ahead of the keeper's

	stop context.CancelFunc
	done chan struct{}
}

func newClock(s *Store, wall func() time.Time, compact time.Duration) *clock {
	return &clock{s: s, wall: wall, compact: compact, me: rand.Text(), heart: make(chan struct{}, 1), done: make(chan struct{})}
}

// elapsed is a monotonic clock that also runs while the machine is suspended.
func elapsed() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME: %v", err)) // every supported kernel has it
	}
	return time.Duration(ts.Nano())
}

// estimate is a lower bound of the keeper's time. The caller holds mu.
func (c *clock) estimate() time.Time { return c.base.Add(elapsed() - c.at) }

// Now never goes back.
func (c *clock) Now() time.Time {
	now, _ := c.times()
	return now
}

// times returns Now and the keeper's wall clock.
func (c *clock) times() (now, wall time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.estimate().Truncate(time.Microsecond); now.After(c.last) {
		c.last = now
	}
	return c.last, c.last.Add(time.Duration(c.tick.Behind) * time.Microsecond)
}

// behind is how far Now is behind this machine's wall clock.
func (c *clock) behind() time.Duration {
	now := c.Now()
	return c.wall().Sub(now)
}

// reach makes sure that Now is not before a time that a record has, and reports false for a time that is not believed.
func (c *clock) reach(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.After(c.last) {
		return true
	}
	if t.After(c.estimate().Add(maxAhead)) {
		return false
	}
	c.last = t
	return true
}

// set begins to count from now.
func (c *clock) set(now time.Time) { c.base, c.at = now, elapsed() }

// heard takes a tick from the watch.
func (c *clock) heard(kv *mvccpb.KeyValue) {
	var t tick
	if json.Unmarshal(kv.Value, &t) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kv.ModRevision <= c.rev || t.Keeper == c.me {
		return
	}
	c.learn(t, kv.ModRevision)
	select {
	case c.heart <- struct{}{}:
	default:
	}
}

// learn takes another manager's tick. The caller holds mu.
func (c *clock) learn(t tick, rev int64) {
	c.tick, c.rev, c.ahead = t, rev, false
	now := time.UnixMicro(t.Now)
	if c.base.IsZero() {
		c.set(now)
		return
	}
	// A tick that seems late was on the way, or its keeper's seconds are longer.
	switch early := c.estimate().Sub(now); {
	case t.Keeper == c.me:
	case early > stepAhead:
		c.ahead = true
	default:
		c.set(now.Add(max(0, early-maxBack)))
	}
}

// start returns once the time is known: from another manager's tick, or because there is no other.
func (c *clock) start(ctx, life context.Context) error {
	if err := c.look(ctx); err != nil {
		return err
	}
	life, c.stop = context.WithCancel(life)
	c.mu.Lock()
	kept := c.tick.Keeper != ""
	c.mu.Unlock()
	if kept {
		select {
		case <-c.heart:
			go c.run(life)
			return nil
		case <-time.After(silence):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := c.wake(ctx); err != nil {
		return err
	}
	go c.run(life)
	return nil
}

// look reads the clock's record, and writes the first one.
func (c *clock) look(ctx context.Context) error {
	b, _ := json.Marshal(tick{Now: c.wall().UnixMicro()})
	kv, err := c.s.first(ctx, c.s.clockKey(), b)
	if err != nil {
		return err
	}
	var t tick
	if err := json.Unmarshal(kv.Value, &t); err != nil || t.Now <= 0 {
		return fmt.Errorf("%w: etcd: the clock's record %s cannot be read", store.ErrUnavailable, c.s.clockKey())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kv.ModRevision > c.rev || c.base.IsZero() {
		c.learn(t, kv.ModRevision)
	}
	return nil
}

// wake makes this manager the keeper of a clock without one, and adds the time that etcd measured since.
func (c *clock) wake(ctx context.Context) error {
	c.mu.Lock()
	t := c.tick
	c.mu.Unlock()
	var passed time.Duration
	if t.Lease != 0 {
		err := c.s.persist(ctx, func(ctx context.Context) error {
			resp, err := c.s.c.TimeToLive(ctx, t.Lease)
			if err == nil && resp.TTL > 0 {
				passed = time.Duration(resp.GrantedTTL-resp.TTL-1) * time.Second
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	if now := time.UnixMicro(t.Renewed).Add(passed); t.Lease != 0 && now.After(c.estimate()) {
		c.set(now)
	}
	c.mu.Unlock()
	if err := c.write(ctx, 0); err != nil && !errors.Is(err, errChanged) && !errors.Is(err, store.ErrNoSpace) {
		return err
	}
	return nil
}

// run keeps the clock, or watches over its keeper, until ctx ends.
func (c *clock) run(ctx context.Context) {
	defer close(c.done)
	timer := time.NewTicker(tickEvery)
	defer timer.Stop()
	heard, renewed, compacted := elapsed(), time.Duration(0), elapsed()
	var old int64 // the revision up to which the next compaction goes
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.heart:
			heard = elapsed()
			continue
		case <-timer.C:
		}
		c.mu.Lock()
		mine, ahead, rev := c.tick.Keeper == c.me, c.ahead, c.rev
		c.mu.Unlock()
		if !mine && !ahead && elapsed()-heard < silence {
			continue
		}
		if mine && elapsed()-renewed > renewEvery {
			c.renewDowntimeLease(ctx)
			renewed = elapsed()
		}
		if c.write(ctx, tickEvery) != nil {
			_ = c.look(ctx) // another manager's, or this one's whose answer was lost
			heard = elapsed()
			continue
		}
		if c.compact > 0 && elapsed()-compacted > c.compact {
			c.discard(ctx, old)
			old, compacted = rev, elapsed()
		}
	}
}

// write writes the time, unless another manager did since. The time follows the wall clock a little.
func (c *clock) write(ctx context.Context, since time.Duration) error {
	c.mu.Lock()
	now, wall := c.estimate(), c.wall()
	limit := time.Duration(slew * float64(since))
	now = now.Add(max(-limit, min(limit, wall.Sub(now))))
	c.set(now)
	next, rev := c.tick, c.rev
	c.mu.Unlock()
	next.Now, next.Keeper, next.Behind = now.UnixMicro(), c.me, 0
	if behind := wall.Sub(now); behind.Abs() > near {
		next.Behind = behind.Microseconds()
	}
	return c.put(ctx, next, rev)
}

func (c *clock) put(ctx context.Context, next tick, rev int64) error {
	b, _ := json.Marshal(next)
	var resp *pb.TxnResponse
	key := c.s.clockKey()
	err := c.s.once(ctx, func(ctx context.Context) (err error) {
		resp, err = c.s.txn(ctx, []*pb.Compare{same(key, rev)}, []*pb.RequestOp{put([]byte(key), b)}, nil)
		return err
	})
	switch {
	case err != nil:
		return c.s.final(ctx, err)
	case !resp.Succeeded:
		return errChanged
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if resp.Header.Revision > c.rev {
		c.tick, c.rev, c.ahead = next, resp.Header.Revision, false
	}
	return nil
}

// renewDowntimeLease renews the lease whose remaining TTL shows how long no manager ran. A change of etcd's leader makes
// the TTL full again, so it shows at most the time that passed.
func (c *clock) renewDowntimeLease(ctx context.Context) {
	now := c.Now()
	c.mu.Lock()
	lease := c.tick.Lease
	c.mu.Unlock()
	err := c.s.once(ctx, func(ctx context.Context) error {
		if lease != 0 {
			_, err := c.s.c.KeepAliveOnce(ctx, lease)
			return err
		}
		resp, err := c.s.c.Grant(ctx, downtimeSeconds)
		if err == nil {
			lease = resp.ID
		}
		return err
	})
	if passing(err) {
		return
	}
	if err != nil {
		lease = 0 // it ran out
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick.Lease, c.tick.Renewed = lease, now.UnixMicro()
}

// discard compacts etcd's history up to a revision.
func (c *clock) discard(ctx context.Context, rev int64) {
	if rev == 0 {
		return
	}
	err := c.s.once(ctx, func(ctx context.Context) error {
		_, err := c.s.c.Compact(ctx, rev)
		return err
	})
	if err != nil && ctx.Err() == nil && !errors.Is(unavailable(err), errChanged) { // else another manager did
		c.s.log.Warn("etcd does not compact its history; its space may run out", "error", err.Error())
	}
}

// close lets another manager become the keeper immediately.
func (c *clock) close() {
	c.stop()
	<-c.done
	c.mu.Lock()
	mine, next, rev := c.tick.Keeper == c.me, c.tick, c.rev
	next.Now, next.Keeper = c.estimate().UnixMicro(), ""
	c.mu.Unlock()
	if !mine {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.put(ctx, next, rev)
}
