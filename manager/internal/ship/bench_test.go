package ship_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// held is a log whose records become durable for a shipper when the benchmark says so.
type held struct {
	ship.Log
	durable atomic.Uint64
}

func (h *held) Durable() uint64 { return h.durable.Load() }

// BenchmarkShipping appends 300-byte records durably from 64 callers, and then ships them to a store that takes no time, as
// one on another machine does. So the processor time of both can be measured separately, also on a machine that does
// other work. It reports the least of each for a record, and that of shipping in percent of that of appending.
func BenchmarkShipping(b *testing.B) {
	const callers, perRound = 64, 64_000
	record := make([]byte, 300)
	dir := b.TempDir()
	log := openPlain(b, dir, wal.Options{})
	defer log.Close()
	s, err := ship.New(ship.Options{
		Store: forgetful{&memory{objects: make(map[string]stored)}}, HolderFile: filepath.Join(dir, "holder"),
		Logger: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond,
	})
	if err != nil {
		b.Fatal(err)
	}
	h := &held{Log: log}
	s.Add(h)
	s.Start(ship.Ledger{})
	defer s.Close(context.Background())
	var appending, shipping []time.Duration
	for b.Loop() {
		before := processorTime(b)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range perRound / callers {
					seq, err := log.Append(record)
					if err == nil {
						err = log.WaitDurable(b.Context(), seq)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		between := processorTime(b)
		h.durable.Store(log.Durable())
		for end := time.Now().Add(limit); s.Shipped() < h.Durable(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				b.Fatal("the records are not shipped")
			}
		}
		appending, shipping = append(appending, between-before), append(shipping, processorTime(b)-between)
		// The segments are not read any more.
		log.snapshot(b, log.Last(), log.Last()+1, record)
	}
	a, c := slices.Min(appending), slices.Min(shipping)
	b.ReportMetric(float64(a)/perRound, "cpu-ns/record-appended")
	b.ReportMetric(float64(c)/perRound, "cpu-ns/record-shipped")
	b.ReportMetric(100*float64(c)/float64(a), "%-more")
	b.ReportMetric(0, "ns/op")
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRestore restores a log of 64 MiB from a directory.
func BenchmarkRestore(b *testing.B) {
	dest := object.OpenDir(filepath.Join(b.TempDir(), "dest"))
	dir := b.TempDir()
	log := openPlain(b, dir, wal.Options{})
	s, err := ship.New(ship.Options{Store: dest, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler), Interval: 50 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	s.Add(log)
	s.Start(ship.Ledger{})
	record := make([]byte, 1000)
	var seq uint64
	for range 64 << 10 {
		if seq, err = log.Append(record); err != nil {
			if err = log.WaitRoom(b.Context(), len(record)); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := log.WaitDurable(b.Context(), seq); err != nil {
		b.Fatal(err)
	}
	s.Close(b.Context())
	if err := log.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 20)
	for i := 0; b.Loop(); i++ {
		if _, err := ship.Restore(b.Context(), ship.RestoreOptions{Store: dest, Dir: filepath.Join(b.TempDir(), fmt.Sprint(i))}); err != nil {
			b.Fatal(err)
		}
	}
}

// memory is a store in memory.
type memory struct {
	mu      sync.Mutex
	objects map[string]stored
	writes  int
}

type stored struct {
	body    []byte
	version object.Version
}

func (m *memory) String() string { return "memory" }

// write writes an object that has the version old; none when that is empty.
func (m *memory) write(name string, body []byte, old object.Version, otherwise error) (object.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects[name].version != old {
		return "", otherwise
	}
	m.writes++
	v := object.Version(fmt.Sprint(m.writes))
	m.objects[name] = stored{slices.Clone(body), v}
	return v, nil
}

func (m *memory) Create(_ context.Context, name string, body []byte) (object.Version, error) {
	return m.write(name, body, "", object.ErrExists)
}

func (m *memory) Replace(_ context.Context, name string, body []byte, old object.Version) (object.Version, error) {
	return m.write(name, body, old, object.ErrChanged)
}

func (m *memory) Get(_ context.Context, name string) ([]byte, object.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[name]
	if o.version == "" {
		return nil, "", object.ErrNotFound
	}
	return o.body, o.version, nil
}

func (m *memory) List(context.Context, string, string) ([]object.Info, error) { return nil, nil }

func (m *memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}
