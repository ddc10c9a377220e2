package ship_test

import (
	"context"
	"log/slog"
	"path"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// written is a store that counts the bytes of the objects with records, and drops large ones.
type written struct {
	forgetful
	tail, merged, parts atomic.Int64
}

func (w *written) Create(ctx context.Context, name string, b []byte) (object.Version, error) {
	switch path.Base(name)[0] {
	case 't':
		w.tail.Add(int64(len(b)))
	case 'r':
		w.merged.Add(int64(len(b)))
	case 's':
		w.parts.Add(int64(len(b)))
	}
	return w.forgetful.Create(ctx, name, b)
}

// TestBytesOfSnapshots: snapshots cost as many bytes as the log while the state keeps its size, and at most twice as many while all
// that comes makes it larger. A large log is not merged.
func TestBytesOfSnapshots(t *testing.T) {
	t.Parallel()
	const rounds, perRound = 60, 2 // of 1 MiB
	for name, test := range map[string]struct {
		state func(round int) int // in MiB
		most  int64               // in percent of the log
	}{
		"a state that keeps its size": {func(int) int { return 4 }, 100},
		"a state that grows":          {func(round int) int { return perRound * (round + 1) }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dest := &written{forgetful: forgetful{&memory{objects: make(map[string]stored)}}}
			e := new(engine)
			dir := t.TempDir()
			log := openPlain(t, dir, wal.Options{})
			defer log.Close()
			s, err := ship.New(ship.Options{Store: dest, Interval: 5 * time.Millisecond, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			s.Add(e.use(log))
			s.Start(ship.Ledger{})
			defer s.Close(t.Context())
			snapshots := int64(0)
			for round := range rounds {
				var seq uint64
				for range perRound {
					if seq, err = log.Append(make([]byte, 1<<20)); err != nil {
						t.Fatal(err)
					}
				}
				if err := log.WaitDurable(t.Context(), seq); err != nil {
					t.Fatal(err)
				}
				eventually(t, "all is shipped", func() bool { return s.Shipped() >= seq })
				e.size.Store(int64(test.state(round)))
				log.snapshot(t, seq, seq+1, []byte("x"))
				// In the step after the one that is under way the snapshot is due or not.
				for range 2 {
					if seq, err = log.Append([]byte("x")); err != nil {
						t.Fatal(err)
					}
					if err := log.WaitDurable(t.Context(), seq); err != nil {
						t.Fatal(err)
					}
					eventually(t, "a step is done", func() bool { return s.Shipped() >= seq && !e.isOpen() })
				}
				snapshots = e.opened.Load()
			}
			if parts, tail := dest.parts.Load(), dest.tail.Load(); parts*100 > tail*test.most || parts*100 < tail*test.most/2 || snapshots < 3 {
				t.Errorf("%d snapshots of %d MiB for %d MiB of log", snapshots, parts>>20, tail>>20)
			}
			s.Close(t.Context())
			if n := dest.tail.Load() + dest.merged.Load() + dest.parts.Load(); counterOf(t, s, "oncegate_ship_bytes_total") != float64(n) {
				t.Errorf("%v bytes are counted, %d were written", counterOf(t, s, "oncegate_ship_bytes_total"), n)
			}
			if n := dest.merged.Load(); n > 1<<20 {
				t.Errorf("%d bytes of runs were merged", n)
			}
		})
	}
}
