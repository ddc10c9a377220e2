package ship_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// BenchmarkShipping appends 300-byte records durably from 64 callers, in pairs of rounds
// with and without a shipper to a store that takes no time, as one on another machine
// does. The last shipment counts. It reports the least time and processor time
// of a record of each kind, and what shipping adds in percent.
func BenchmarkShipping(b *testing.B) {
	const callers, perRound = 64, 128_000
	record := make([]byte, 300)
	one := func(shipped bool) (wall, cpu time.Duration) {
		dir := b.TempDir()
		log, err := wal.Open(b.Context(), dir, wal.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer log.Close()
		stop := func() {}
		if shipped {
			s, err := ship.New(ship.Options{
				Store: &memory{objects: make(map[string]stored)}, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			s.Add(ship.LedgerLog, log, false)
			s.Start()
			stop = func() {
				s.Close(b.Context())
				if at := s.Shipped(ship.LedgerLog); at != perRound {
					b.Errorf("%d of %d records were shipped", at, perRound)
				}
			}
		}
		began, before := time.Now(), processorTime(b)
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
		stop()
		return time.Since(began), processorTime(b) - before
	}
	var walls, cpus [2][]time.Duration
	for b.Loop() {
		for i, shipped := range []bool{false, true} {
			wall, cpu := one(shipped)
			walls[i], cpus[i] = append(walls[i], wall/perRound), append(cpus[i], cpu/perRound)
		}
	}
	for i, name := range []string{"plain", "shipped"} {
		b.ReportMetric(float64(slices.Min(walls[i])), "ns/record-"+name)
		b.ReportMetric(float64(slices.Min(cpus[i])), "cpu-ns/record-"+name)
	}
	b.ReportMetric(100*(float64(slices.Min(walls[1]))/float64(slices.Min(walls[0]))-1), "%-slower")
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
	place := object.OpenDir(filepath.Join(b.TempDir(), "place"))
	dir := b.TempDir()
	log, err := wal.Open(b.Context(), dir, wal.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := ship.New(ship.Options{Store: place, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler), Interval: 50 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	s.Add(ship.LedgerLog, log, false)
	s.Start()
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
		if _, err := ship.Restore(b.Context(), ship.RestoreOptions{Store: place, Dir: filepath.Join(b.TempDir(), fmt.Sprint(i))}); err != nil {
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
