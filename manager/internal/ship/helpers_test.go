package ship_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// limit is how long a test waits for what must happen: far longer than it takes.
const limit = 2 * time.Minute

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// journal is the text of a log.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.b.String(), text)
}

// ledger is a log with a shipper, as a manager has them. Record n holds body(n).
type ledger struct {
	t       *testing.T
	dir     string
	log     *plainLog
	shipper *ship.Shipper
	journal *journal
	rounds  string   // distinguishes the records of forks
	lacked  []uint64 // of the calls of WentBack

	compared bool // before it was shipped
}

const segmentBytes = 16 << 10

func body(fork string, n uint64) []byte {
	return fmt.Appendf(nil, "record %d %s %s", n, fork, strings.Repeat("x", int(n%97)))
}

func openLog(t *testing.T, dir string) *plainLog {
	t.Helper()
	return openPlain(t, dir, wal.Options{SegmentBytes: segmentBytes})
}

// plainLog is a log whose state is a list of records, also in its own snapshots.
type plainLog struct {
	*wal.Log
	mu      sync.Mutex
	at      uint64 // the newest snapshot has the state as of this record
	records [][]byte
}

func openPlain(t testing.TB, dir string, opts wal.Options) *plainLog {
	t.Helper()
	l := new(plainLog)
	opts.Restore = func(b []byte) error {
		l.records = append(l.records, bytes.Clone(b))
		return nil
	}
	var err error
	if l.Log, err = wal.Open(t.Context(), dir, opts); err != nil {
		t.Fatal(err)
	}
	l.at = l.Recovery().SnapshotSequence
	return l
}

func (l *plainLog) SnapshotSequence() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

func (l *plainLog) OpenSnapshot(context.Context) (ship.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == 0 {
		return nil, nil
	}
	return &plainSnapshot{l.at, l.records}, nil
}

// snapshot makes the state as of a record, and gives up the records before keep.
func (l *plainLog) snapshot(t testing.TB, seq, keep uint64, records ...[]byte) {
	t.Helper()
	l.mu.Lock()
	l.at, l.records = seq, records
	l.mu.Unlock()
	if err := l.Log.Snapshot(t.Context(), seq, keep, records...); err != nil {
		t.Fatal(err)
	}
}

// plainSnapshot has the records that are left of a state.
type plainSnapshot struct {
	at   uint64
	rest [][]byte
}

func (s *plainSnapshot) Sequence() uint64 { return s.at }
func (s *plainSnapshot) Close()           {}

func (s *plainSnapshot) Next() (record []byte, ok bool, err error) {
	if len(s.rest) == 0 {
		return nil, false, nil
	}
	record, s.rest = s.rest[0], s.rest[1:]
	return record, true, nil
}

// startLedger opens the log in dir and ships it to store, if that is not nil.
func startLedger(t *testing.T, dir string, store object.Store, change func(*ship.Options)) *ledger {
	t.Helper()
	return startEngine(t, dir, store, change, func(l ship.Log) ship.Log { return l })
}

// startEngine is startLedger for an engine that makes the snapshots of its log.
func startEngine(t *testing.T, dir string, store object.Store, change func(*ship.Options), engine func(ship.Log) ship.Log) *ledger {
	t.Helper()
	l := &ledger{t: t, dir: dir, log: openLog(t, dir), journal: new(journal)}
	if store != nil {
		opts := ship.Options{
			Store: store, Interval: 5 * time.Millisecond, LeaseTTL: time.Minute, HolderFile: filepath.Join(dir, "holder"),
			Logger: slog.New(slog.NewTextHandler(l.journal, nil)), LongestTTL: func() time.Duration { return 5 * time.Minute },
		}
		if change != nil {
			change(&opts)
		}
		s, err := ship.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		switch store.(type) {
		case *stopping, *refusing, *away:
			s.TryOnce()
		case *often:
			s.PruneOften()
		}
		s.Add(engine(l.log))
		of := ship.Ledger{WentBack: func(_ context.Context, shipped uint64, past ship.Longest) error {
			if past.TTL != 5*time.Minute {
				t.Errorf("the copies know of a TTL of %s", past.TTL)
			}
			l.lacked = append(l.lacked, shipped)
			return nil
		}}
		if _, held := store.(*holding); !held { // which holds reads of a shipper
			l.compared = s.Compare(t.Context(), of) == nil
		}
		s.Start(of)
		l.shipper = s
	}
	t.Cleanup(func() {
		l.crash()
		if t.Failed() {
			l.journal.mu.Lock()
			defer l.journal.mu.Unlock()
			t.Logf("journal of %s:\n%s", dir, l.journal.b.String())
		}
	})
	return l
}

// crash ends shipping without releasing the lease, and closes the log.
func (l *ledger) crash() {
	if l.shipper != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		l.shipper.Close(ctx)
		l.shipper = nil
	}
	if l.log != nil {
		_ = l.log.Close()
		l.log = nil
	}
}

// stop ends both in order.
func (l *ledger) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l.shipper.Close(ctx)
	l.shipper = nil
	if err := l.log.Close(); err != nil {
		l.t.Error(err)
	}
	l.log = nil
}

// append adds n records and waits until they are durable.
func (l *ledger) append(n int) uint64 {
	l.t.Helper()
	var seq uint64
	for range n {
		for {
			var err error
			if seq, err = l.log.Append(body(l.rounds, l.log.Last()+1)); err == nil {
				break
			}
			if err := l.log.WaitRoom(l.t.Context(), 200); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	if err := l.log.WaitDurable(l.t.Context(), seq); err != nil {
		l.t.Fatal(err)
	}
	return seq
}

// snapshot stands for all records so far: it holds the text of each.
func (l *ledger) snapshot() {
	l.t.Helper()
	seq := l.log.Durable()
	keep := seq + 1
	if l.shipper != nil {
		keep = min(keep, l.shipper.Keep())
	}
	var records [][]byte
	for n := uint64(1); n <= seq; n++ {
		records = append(records, body(l.rounds, n))
	}
	l.log.snapshot(l.t, seq, keep, records...)
}

// shipped waits until everything durable is shipped.
func (l *ledger) shipped() {
	l.t.Helper()
	eventually(l.t, "all is shipped", l.isShipped)
}

func (l *ledger) isShipped() bool { return l.shipper.Shipped() >= l.log.Durable() }

// status is that of a destination once everything durable is shipped.
func (l *ledger) status(store object.Store) *ship.Status {
	l.t.Helper()
	l.shipped()
	st, err := ship.ReadStatus(l.t.Context(), store)
	if err != nil {
		l.t.Fatal(err)
	}
	return st
}

// restore restores from a destination and returns the new directory.
func restore(t *testing.T, store object.Store, at time.Time) (string, *ship.Report, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	r, err := ship.Restore(t.Context(), ship.RestoreOptions{Store: store, Dir: dir, At: at})
	return dir, r, err
}

// restoreAndVerify is restore from a destination that loses nothing meanwhile.
func restoreAndVerify(t *testing.T, store object.Store, at time.Time) (string, *ship.Report, error) {
	t.Helper()
	dir, r, err := restore(t, store, at)
	mustVerify(t, ship.RestoreOptions{Store: store, At: at}, r, err)
	return dir, r, err
}

// mustVerify checks that ship.Verify agrees with what a restore did, of a destination that loses nothing meanwhile. A manager may
// have shipped more.
func mustVerify(t *testing.T, o ship.RestoreOptions, r *ship.Report, restored error) {
	t.Helper()
	v, err := ship.Verify(t.Context(), o)
	if (err == nil) != (restored == nil) {
		t.Errorf("verified: %v; restored: %v", err, restored)
	}
	if err != nil || restored != nil {
		return
	}
	if v.Log == r.Log && v.Sequence < r.Sequence {
		t.Errorf("verified: %+v; restored: %+v", v, r)
	}
}

// mustHold opens a restored directory, and checks that it holds the records 1 to last of a fork, and
// takes more.
func mustHold(t *testing.T, dir, fork string, last uint64) {
	t.Helper()
	var next uint64 = 1
	check := func(seq uint64, b []byte) error {
		if seq != next || !bytes.Equal(b, body(fork, seq)) {
			return fmt.Errorf("record %d is %q, want record %d", seq, b, next)
		}
		next++
		return nil
	}
	snapshot := false
	l, err := wal.Open(t.Context(), dir, wal.Options{
		SegmentBytes: segmentBytes,
		Restore:      func(b []byte) error { snapshot = true; return check(next, b) },
		Replay:       check,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if next != last+1 {
		t.Errorf("the restored log (snapshot: %v) ends with %d, want %d", snapshot, next-1, last)
	}
	if seq := (&ledger{t: t, log: &plainLog{Log: l}, rounds: fork}).append(1); seq != last+1 {
		t.Errorf("append to the restored log: %d", seq)
	}
}

// mustRestore restores the newest state and checks that it has the records 1 to last.
func mustRestore(t *testing.T, store object.Store, fork string, last uint64) {
	t.Helper()
	dir, _, err := restore(t, store, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, dir, fork, last)
}

func newDest(t *testing.T) (*objecttest.Server, object.Store) {
	srv := objecttest.NewServer(t)
	return srv, srv.Open(t, "dest")
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// refusing is a store that refuses to write objects for as long as refuse says so.
type refusing struct {
	object.Store
	refuse func(name string) bool
}

var errRefused = errors.New("the store refuses that object")

func (s *refusing) Create(ctx context.Context, name string, b []byte) (object.Version, error) {
	if s.refuse(name) {
		return "", errRefused
	}
	return s.Store.Create(ctx, name, b)
}

func (s *refusing) Replace(ctx context.Context, name string, b []byte, old object.Version) (object.Version, error) {
	if s.refuse(name) {
		return "", errRefused
	}
	return s.Store.Replace(ctx, name, b, old)
}

// away fails the first reads.
type away struct {
	object.Store
	failures int
}

func (s *away) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	if s.failures > 0 {
		s.failures--
		return nil, "", errRefused
	}
	return s.Store.Get(ctx, name)
}

// counterOf is what a metric of the shipper says.
func counterOf(t *testing.T, s *ship.Shipper, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(s.Metrics()); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no " + name)
	return 0
}

// pause makes the next time another millisecond, the unit of a point in time, and returns one between.
func pause() time.Time {
	nextMillisecond()
	at := time.Now()
	nextMillisecond()
	return at
}

func nextMillisecond() {
	for now := time.Now().UnixMilli(); time.Now().UnixMilli() <= now; {
		runtime.Gosched()
	}
}
