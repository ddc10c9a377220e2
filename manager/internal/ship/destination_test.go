package ship_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

// meddled calls during once, when the first run of a tail is about to be read.
type meddled struct {
	object.Store
	during func()
}

func (m *meddled) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	if during := m.during; during != nil && strings.Contains(name, "/t") {
		m.during = nil
		during()
	}
	return m.Store.Get(ctx, name)
}

// While a destination is read, the manager names, merges and deletes the runs of the tail. That is not the end of the tail.
func TestReadBesideALiveShipper(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	l.append(5)
	l.shipped()
	var last uint64
	between := func() *meddled {
		return &meddled{dest, func() {
			for range 150 { // two merges
				last = l.append(1)
				l.shipped()
			}
		}}
	}
	dir, _, err := restore(t, between(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, dir, "", last)
	st, err := ship.ReadStatus(t.Context(), between())
	if err != nil || st.Sequence != last {
		t.Errorf("status: %+v, %v, want sequence %d", st, err, last)
	}
}

// lateLog becomes larger between the moment in which it is asked for what is durable, and its answer.
type lateLog struct {
	ship.Log
	grow func()
}

func (l *lateLog) Durable() uint64 {
	d := l.Log.Durable()
	l.grow()
	return d
}

// Whatever was durable at the time of the newest point was shipped.
func TestPointsClaimNoMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	dir := t.TempDir()
	log := openLog(t, dir)
	defer log.Close()
	l := &ledger{t: t, dir: dir, log: log}
	l.append(1)
	var mu sync.Mutex
	var durable []time.Time // of record n+2
	s, err := ship.New(ship.Options{Store: dest, Interval: time.Hour, HolderFile: filepath.Join(dir, "holder"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(&lateLog{log, func() {
		mu.Lock()
		defer mu.Unlock()
		if len(durable) < 50 {
			nextMillisecond()
			l.append(1)
			durable = append(durable, time.Now())
			nextMillisecond()
		}
	}})
	s.Start(ship.Ledger{})
	eventually(t, "something is shipped", func() bool { return s.Shipped() > 0 })
	s.Close(t.Context())
	st, err := ship.ReadStatus(t.Context(), dest)
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range durable {
		if seq := uint64(i + 2); seq > st.Sequence && !at.After(st.Newest) {
			t.Errorf("record %d was durable at %v, and is not among those up to %d, as of %v", seq, at, st.Sequence, st.Newest)
		}
	}
}

// A restore that failed, or was cut off, leaves a directory for the next one.
func TestRestoreAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	_, dest := newDest(t)
	l := startLedger(t, t.TempDir(), dest, nil)
	last := l.append(500) // of some segments
	l.stop()
	dir := filepath.Join(t.TempDir(), "new")
	again := func(prepare error) error {
		_, err := ship.Restore(t.Context(), ship.RestoreOptions{Store: dest, Dir: dir, Prepare: func(dir string, _ *ship.Report) error {
			return errors.Join(prepare, os.WriteFile(filepath.Join(dir, "q.json"), nil, 0o600))
		}})
		return err
	}
	full := errors.New("the disk is full")
	if err := again(full); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if err := again(nil); err != nil {
		t.Fatalf("after a failure: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, ship.PartialDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := again(nil); err != nil {
		t.Fatalf("cut off while files were moved: %v", err)
	}
	mustHold(t, dir, "", last)
	var d *ship.DirError
	if err := again(nil); !errors.As(err, &d) {
		t.Errorf("into a directory that is complete: %v", err)
	}
}

// straggling is a store whose tries to create an object fail at first, and continue to read their bodies.
type straggling struct {
	object.Store
	mu    sync.Mutex
	tried map[string]bool
	given [][]byte
	sums  [][sha256.Size]byte
}

func (s *straggling) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	s.mu.Lock()
	first := !s.tried[name]
	if first {
		s.tried[name] = true
		s.given, s.sums = append(s.given, body), append(s.sums, sha256.Sum256(body))
	}
	s.mu.Unlock()
	if first {
		return "", errors.New("given up")
	}
	return s.Store.Create(ctx, name, body)
}

// TestGivenUpTriesKeepTheirBytes: a try that was given up may still be sending, so its bytes do not change.
func TestGivenUpTriesKeepTheirBytes(t *testing.T) {
	store := &straggling{Store: &memory{objects: make(map[string]stored)}, tried: make(map[string]bool)}
	l := startLedger(t, t.TempDir(), store, nil)
	for range 5 {
		l.append(20)
		l.shipped()
	}
	l.crash()
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(store.given) < 5 {
		t.Errorf("%d tries failed", len(store.given))
	}
	for i, b := range store.given {
		if sha256.Sum256(b) != store.sums[i] {
			t.Errorf("the bytes of try %d changed", i)
		}
	}
}
