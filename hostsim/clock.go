package hostsim

import (
	"slices"
	"sort"
	"sync"
	"time"
)

// Clock is a host's source of time: for guests, ticks, callout timeouts and idle timeouts.
type Clock interface {
	// Now is the wall clock.
	Now() time.Time
	// AfterFunc runs f once after d; f must not block. The returned function stops the timer and reports whether it did
	// so before f started.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// RealClock is the machine's clock.
func RealClock() Clock { return realClock{} }

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}

// VirtualClock stands still until a test moves it. After every timer it waits until the hosts that use it are idle, so
// a timer that the filter sets meanwhile (the next tick) fires within the same Advance.
type VirtualClock struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*virtualTimer
	settle  map[int]attached
	nextKey int
	moving  sync.Mutex // one Advance at a time
}

type virtualTimer struct {
	at time.Time
	f  func()
}

// NewVirtualClock makes a clock that shows start.
func NewVirtualClock(start time.Time) *VirtualClock {
	return &VirtualClock{now: start, settle: make(map[int]attached)}
}

// Now implements Clock.
func (c *VirtualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements Clock. A d of 0 or less fires at the next Advance, even one by 0.
func (c *VirtualClock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &virtualTimer{at: c.now.Add(max(d, 0)), f: f}
	i := sort.Search(len(c.timers), func(i int) bool { return c.timers[i].at.After(t.at) })
	c.timers = slices.Insert(c.timers, i, t)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.timers, t)
		if i >= 0 {
			c.timers = slices.Delete(c.timers, i, i+1)
		}
		return i >= 0
	}
}

// Advance moves the clock by d. It fires timers in order, each at its own time, and waits after each until the hosts on
// this clock are idle. It must not be called from a sink, hook or cluster handler, because those run on the loops that
// it waits for.
func (c *VirtualClock) Advance(d time.Duration) {
	c.moving.Lock()
	defer c.moving.Unlock()
	c.mu.Lock()
	target := c.now.Add(d)
	c.mu.Unlock()
	for {
		c.settleAll()
		c.mu.Lock()
		if len(c.timers) == 0 || c.timers[0].at.After(target) {
			c.now = target
			c.mu.Unlock()
			return
		}
		t := c.timers[0]
		c.timers = c.timers[1:]
		if t.at.After(c.now) {
			c.now = t.at
		}
		c.mu.Unlock()
		t.f()
	}
}

// attached is a host that uses the clock.
type attached struct {
	settle func()        // waits until the host is idle
	posted func() uint64 // how many events were posted to the host
}

// mostRounds bounds how often settleAll checks all hosts again, because a host may receive events from outside
// continuously.
const mostRounds = 1000

// settleAll waits until all hosts are idle at the same time: a host that was idle may get work from the next one.
func (c *VirtualClock) settleAll() {
	c.mu.Lock()
	hosts := make([]attached, 0, len(c.settle))
	for _, h := range c.settle {
		hosts = append(hosts, h)
	}
	c.mu.Unlock()
	posted := func() (n uint64) {
		for _, h := range hosts {
			n += h.posted()
		}
		return n
	}
	for range mostRounds {
		before := posted()
		for _, h := range hosts {
			h.settle()
		}
		if len(hosts) < 2 || posted() == before {
			return
		}
	}
}

// attach registers a host.
func (c *VirtualClock) attach(h attached) (detach func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.nextKey
	c.nextKey++
	c.settle[key] = h
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.settle, key)
	}
}
