package ship_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// forgetful is a store in memory that keeps no large object, so that it takes no memory for them.
type forgetful struct{ *memory }

func (f forgetful) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	return f.memory.Create(ctx, name, body[:min(len(body), 64<<10)])
}

// TestShippingUsesItsMemoryAgain: objects take turns in the same memory, also those of snapshots. Garbage
// as large as what is shipped would cost more than to ship it. It must not run in parallel with other tests.
func TestShippingUsesItsMemoryAgain(t *testing.T) {
	const rounds, perRound, recordBytes = 24, 40, 64 << 10
	dir := t.TempDir()
	log := openPlain(t, dir, wal.Options{})
	defer log.Close()
	dest := forgetful{&memory{objects: make(map[string]stored)}}
	s, err := ship.New(ship.Options{
		Store: dest, HolderFile: filepath.Join(dir, "holder"),
		Logger: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(log)
	s.Start(ship.Ledger{})
	defer s.Close(t.Context())
	record := make([]byte, recordBytes)
	var before, after runtime.MemStats
	for round := range rounds {
		if round == rounds/3 { // the first rounds make the memory
			runtime.ReadMemStats(&before)
		}
		var seq uint64
		for range perRound {
			if seq, err = log.Append(record); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.WaitDurable(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
		log.snapshot(t, seq, min(seq+1, s.Keep()), record)
		eventually(t, "all is shipped", func() bool { return s.Shipped() >= seq })
	}
	runtime.ReadMemStats(&after)
	made, shipped := after.TotalAlloc-before.TotalAlloc, uint64((rounds-rounds/3)*perRound*recordBytes)
	t.Logf("%d kB made to ship %d kB", made>>10, shipped>>10)
	if made > shipped {
		t.Errorf("%d kB of memory were made to ship %d kB", made>>10, shipped>>10)
	}
}
