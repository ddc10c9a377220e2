package storelogs

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// publishEvery is how often the clock is written into the store.
	publishEvery = time.Second
	// staleAfter is how long a manager may go without, and still append.
	staleAfter = 3 * time.Second
	// maxGap is how much time may count between two answers of the store: when it was away longer, nobody was served.
	maxGap = 10 * time.Second
	// margin is how much longer a window lasts where managers share a store: their clocks differ by less.
	margin = 5 * time.Second
)

// clock is the time that logs go by, see doc.go.
type clock struct {
	elapsed func() time.Duration

	mu    sync.Mutex
	base  int64 // the time when elapsed was since
	since time.Duration
	asked time.Duration // elapsed when the store was asked last
	ready bool
}

func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted(c.elapsed())
}

func (c *clock) counted(elapsed time.Duration) int64 {
	return c.base + int64(min(elapsed-c.since, maxGap))
}

// stale reports whether the store must be asked before anything is judged.
func (c *clock) stale() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ready || c.elapsed()-c.asked > staleAfter
}

// tick takes the time of the store when it is greater, and writes it there when it is behind.
func (c *clock) tick(ctx context.Context, st store.Store) error {
	c.mu.Lock()
	ready, asked := c.ready, c.elapsed()
	c.mu.Unlock()
	var stored int64
	var logs int
	read := func(tx store.Tx) (err error) {
		if stored, err = store.Read(tx, meta, metaClock, decodeClock); err == nil {
			logs, err = count(tx)
		}
		return err
	}
	if err := st.View(ctx, read); err != nil {
		return err
	}
	// What was counted before the first answer is nothing, and without logs nobody needs the time.
	if ready && logs > 0 && c.now()-stored >= int64(publishEvery) {
		if err := st.Update(ctx, func(tx store.Tx) error {
			if err := read(tx); err != nil {
				return err
			}
			now := c.now()
			if now <= stored {
				return nil
			}
			return tx.Put(meta, metaClock, binary.BigEndian.AppendUint64(nil, uint64(now)))
		}); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.elapsed()
	c.base, c.since = max(c.counted(now), stored), now
	if !c.ready || logs == 0 { // without logs time stands still, or managers that share the store would drift apart
		c.base = stored
	}
	c.asked, c.ready = asked, true
	return nil
}

func decodeClock(key string, b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, &store.UnreadableError{Collection: meta, Key: key, Reason: "it is no time"}
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}
