package state

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// grantEvery is how often a compaction that waits is tried.
	grantEvery = 100 * time.Millisecond
	// A compaction that failed is tried again after firstPause, and then after twice as long each time, up to maxPause.
	// Pebble would try it again at once.
	firstPause = time.Second
	maxPause   = time.Minute
)

// scheduler lets one compaction run at a time, and none for a while after one that failed.
type scheduler struct {
	db       pebble.DBForCompaction
	granting sync.Mutex // held while it calls db

	mu       sync.Mutex
	running  bool
	closed   bool
	failures int       // in a row
	resume   time.Time // none begins before
	stop     chan struct{}
	stopped  chan struct{}
}

func newScheduler() *scheduler {
	return &scheduler{stop: make(chan struct{}), stopped: make(chan struct{})}
}

// ended takes the outcome of a compaction.
func (c *scheduler) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.failures = 0
		return
	}
	pause := firstPause
	for range min(c.failures, 16) {
		pause = min(2*pause, maxPause)
	}
	c.failures++
	c.resume = time.Now().Add(pause)
}

// Register implements pebble.CompactionScheduler.
func (c *scheduler) Register(_ int, db pebble.DBForCompaction) {
	c.db = db
	go c.loop()
}

func (c *scheduler) loop() {
	defer close(c.stopped)
	tick := time.NewTicker(grantEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.grant()
		case <-c.stop:
			return
		}
	}
}

// Unregister implements pebble.CompactionScheduler.
func (c *scheduler) Unregister() {
	c.end()
	<-c.stopped
	c.granting.Lock() // waits for Done
	defer c.granting.Unlock()
}

// end lets no more compactions begin. It does not wait.
func (c *scheduler) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.stop)
	}
}

// take reserves the only place.
func (c *scheduler) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.running || time.Now().Before(c.resume) {
		return false
	}
	c.running = true
	return true
}

func (c *scheduler) release() {
	c.mu.Lock()
	c.running = false
	c.mu.Unlock()
}

// grant begins a compaction that waits.
func (c *scheduler) grant() {
	c.granting.Lock()
	defer c.granting.Unlock()
	if !c.take() {
		return
	}
	if waiting, _ := c.db.GetWaitingCompaction(); !waiting || !c.db.Schedule(c) {
		c.release()
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.take() {
		return false, nil
	}
	return true, c
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (c *scheduler) UpdateGetAllowedWithoutPermission() {}

// Done implements pebble.CompactionGrantHandle.
func (c *scheduler) Done() {
	c.release()
	c.grant()
}

// Started implements pebble.CompactionGrantHandle.
func (c *scheduler) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (c *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (c *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
