package ledger

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Once all keys have expired, the state of the engine wal gives back the disk that they took.
func TestExpiredKeysGiveTheirDiskBack(t *testing.T) {
	deep.Sequential(t)
	const keys, ttl = 40_000, time.Hour
	var ahead atomic.Int64
	st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{
		LayerBytes: 1 << 20,
		Clock:      func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := New(st, Options{MaxEntries: 1_000_000, MaxBytes: 1 << 40, ScopeShare: -1, CommittedTTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	dayPart(t, l, 0, keys, 4, 64, nil)
	if err := st.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := st.StateBytes()
	ahead.Store(int64(2 * ttl))
	if n, err := l.Sweep(t.Context()); n != keys || err != nil {
		t.Fatalf("%d of %d keys are removed, %v", n, keys, err)
	}
	if err := st.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Compactions run in the background.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for st.StateBytes() > full/10 {
		select {
		case <-ctx.Done():
			t.Fatalf("%d bytes are left of %d", st.StateBytes(), full)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
