package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// The outage of TestLongOutageOfTheBucket: eight hours with 20 keys in each minute. What takes a manager gigabytes
// takes this one megabytes.
const (
	outageMinutes = 8 * 60
	keysInMinute  = 20
	outageTTL     = 5 * time.Minute
	outageSegment = 256 << 10
	outageBacklog = 4 * outageSegment
)

// lockedBuffer is the text of a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

// shippedLedger is a ledger on the engine wal that is shipped, with a clock that the test moves.
type shippedLedger struct {
	*ledger.Ledger
	t       *testing.T
	store   *mem.Store
	shipper *ship.Shipper // nil when nothing is shipped
}

func openShipped(t *testing.T, dir string, bucket object.Store, clock func() time.Time, journal *lockedBuffer) *shippedLedger {
	t.Helper()
	s := &shippedLedger{t: t}
	opts := mem.Options{Clock: clock, FlushBytes: 2 * outageSegment, Log: wal.Options{SegmentBytes: outageSegment}}
	var err error
	if bucket != nil {
		if s.shipper, err = ship.New(ship.Options{
			Store: bucket, Interval: 5 * time.Millisecond, LeaseTTL: time.Minute, BacklogBytes: outageBacklog,
			HolderFile: filepath.Join(dir, shipHolder), Logger: slog.New(slog.NewTextHandler(journal, nil)),
		}); err != nil {
			t.Fatal(err)
		}
		opts.Keep = s.shipper.Keep
	}
	if s.store, err = mem.Open(t.Context(), dir, opts); err != nil {
		t.Fatal(err)
	}
	if s.Ledger, err = ledger.New(s.store, ledger.Options{CommittedTTL: outageTTL, ScopeShare: 1}); err != nil {
		t.Fatal(err)
	}
	if s.shipper != nil {
		s.shipper.Add(shippedLog{s.store.Log(), s.store})
		s.shipper.Start(ship.Ledger{})
	}
	return s
}

// crash ends it, and ships nothing more.
func (s *shippedLedger) crash() {
	s.t.Helper()
	if s.shipper != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.shipper.Close(ctx)
	}
	if err := s.store.Close(); err != nil {
		s.t.Error(err)
	}
}

func outageKey(minute, n int) string { return fmt.Sprintf("key-%d-%d", minute, n) }

// minute reserves the keys of a minute and commits them.
func (s *shippedLedger) minute(minute int) {
	s.t.Helper()
	result := api.Result{Status: 201, Body: make([]byte, 1000)}
	items := make([]ledger.Item, keysInMinute)
	for _, op := range []ledger.Op{ledger.OpReserve, ledger.OpCommit} {
		for i := range items {
			key := outageKey(minute, i)
			items[i] = ledger.Item{Op: op}
			if op == ledger.OpReserve {
				items[i].Reserve = api.ReserveRequest{Key: key, Scope: "s", Token: key}
			} else {
				items[i].Finish = *ledger.NewFinish(&api.FinishRequest{Key: key, Scope: "s", Token: key, Result: result})
			}
		}
		s.Batch(s.t.Context(), items)
		for i := range items {
			if items[i].Err != nil {
				s.t.Fatalf("minute %d: %v", minute, items[i].Err)
			}
		}
	}
}

// remembered is how many outcomes it has after a sweep.
func (s *shippedLedger) remembered() int {
	s.t.Helper()
	for n := 1; n > 0; {
		var err error
		if n, err = s.Sweep(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	st, err := s.Stats(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st.Committed
}

// until waits for a condition.
func (s *shippedLedger) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s: not within two minutes; the log: %+v", what, s.store.Log().Stats())
		}
	}
}

func (s *shippedLedger) untilShipped() {
	s.t.Helper()
	s.until("all is shipped", func() bool { return s.shipper.Shipped() >= s.store.Log().Durable() })
}

// TestLongOutageOfTheBucket: while the object store is away for hours, keys are taken and expire as always, and the disk has the
// backlog and what a start needs, but no more. When it is back, shipping continues with a snapshot, and the gap
// is counted, whether the manager was started again meanwhile or not.
func TestLongOutageOfTheBucket(t *testing.T) {
	for name, restart := range map[string]int{"one process": -1, "restart early": 1, "restart late": outageMinutes - 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, journal := t.TempDir(), new(lockedBuffer)
			bucket := &objecttest.Gate{Store: object.OpenDir(filepath.Join(t.TempDir(), "bucket"))}
			var now atomic.Int64
			now.Store(time.Now().UnixNano())
			clock := func() time.Time { return time.Unix(0, now.Load()) }
			s := openShipped(t, dir, bucket, clock, journal)
			s.minute(0)
			s.untilShipped()

			bucket.Close()
			var most int64
			for m := 1; m <= outageMinutes; m++ {
				now.Add(int64(time.Minute))
				s.minute(m)
				if m == restart {
					s.crash()
					s = openShipped(t, dir, bucket, clock, journal)
				}
				if n := s.remembered(); n > keysInMinute*int(outageTTL/time.Minute+1) {
					t.Fatalf("minute %d: %d outcomes are remembered", m, n)
				}
				s.until("the disk is bounded", func() bool {
					st := s.store.Log().Stats()
					most = max(most, st.DiskBytes)
					// Besides the backlog: what makes a flush due, as much while it runs, and prepared segments.
					return st.DiskBytes <= outageBacklog+6*outageSegment
				})
			}
			if most <= outageBacklog {
				t.Errorf("the backlog had %d bytes at most, which does not show its bound of %d", most, outageBacklog)
			}
			s.until("the outage is logged", func() bool { return journal.has("the backlog grows on disk") })

			bucket.Open()
			s.untilShipped()
			s.minute(outageMinutes + 1)
			s.untilShipped()
			s.until("the gap is logged", func() bool { return journal.has("cannot be restored to") })
			want := s.remembered()
			s.untilShipped()
			s.crash()
			restored := filepath.Join(t.TempDir(), "restored")
			if _, err := ship.Restore(t.Context(), ship.RestoreOptions{Store: bucket, Dir: restored}); err != nil {
				t.Fatal(err)
			}
			s = openShipped(t, restored, nil, clock, nil)
			defer s.crash()
			if got := s.remembered(); got != want || got == 0 {
				t.Errorf("%d outcomes were restored, there were %d", got, want)
			}
			for i := range keysInMinute {
				key := outageKey(outageMinutes+1, i)
				reply, err := s.Reserve(t.Context(), &api.ReserveRequest{Key: key, Scope: "s", Token: "another"}, nil)
				if err != nil || reply.State != api.StateCommitted {
					t.Errorf("%s: %+v, %v", key, reply, err)
				}
			}
		})
	}
}

// TestNoBacklogKeepsNothing: --ship-backlog-bytes 0 keeps no segment but the one in use for an object store that is away.
func TestNoBacklogKeepsNothing(t *testing.T) {
	dir := t.TempDir()
	log, err := wal.Open(t.Context(), dir, wal.Options{SegmentBytes: outageSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for _, bytes := range []int64{0, 1 << 30} {
		st := &settings.Settings{Store: "wal", DataDir: dir, Ship: settings.Ship{To: object.OpenDir(t.TempDir()), BacklogBytes: bytes}}
		shipper, err := newShipper(st, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		shipper.Add(shippedLog{Log: log})
		for len(log.Segments()) < 3 {
			seq, err := log.Append(make([]byte, 1000))
			if err == nil {
				err = log.WaitDurable(t.Context(), seq)
			} else {
				err = log.WaitRoom(t.Context(), 1000)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := uint64(1)
		if bytes == 0 {
			want = log.Segments()[len(log.Segments())-1].First
		}
		if got := shipper.Keep(); got != want {
			t.Errorf("a backlog of %d bytes: the log is to keep its records from %d on, want %d", bytes, got, want)
		}
	}
}
