package ship

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// logPrefix is that of the log's objects in a destination.
const logPrefix = "ledger"

// Defaults of Options.
const (
	DefaultInterval     = time.Second
	DefaultRetention    = 24 * time.Hour
	DefaultBacklogBytes = 1 << 30
	DefaultLeaseTTL     = 15 * time.Second

	tryTimeout = 30 * time.Second // of one request
	tries      = 4
	// A restore reads many objects, and begins again when one of them cannot be read.
	restoreTries = 8
	// alarmEvery is how often a lasting failure is logged.
	alarmEvery = time.Minute
)

// Options of New. The zero value of a field means its default.
type Options struct {
	// Store is the destination; required.
	Store object.Store
	// Interval is how often new records are shipped; default 1 s.
	Interval time.Duration
	// Retention is how far back a time to restore to may be; default 24 h.
	Retention time.Duration
	// BacklogBytes bounds the segments of the log that are kept, beyond what the state on disk
	// needs, until they are shipped; default 1 GiB, negative: none.
	BacklogBytes int64
	// LeaseTTL is how long the holder of the lease may be silent before another
	// manager takes it; default 15 s.
	LeaseTTL time.Duration
	// LongestTTL returns how long the manager remembers a key at most; a restore
	// quarantines unknown keys for as long. It may be called at any time. Default 0.
	LongestTTL func() time.Duration
	// HolderFile, in the data directory, has the name by which a manager that restarts takes its lease
	// over immediately; required.
	HolderFile string
	// Logger; default slog.Default.
	Logger *slog.Logger

	ledger   Ledger
	writer   string
	counters *counters
	buffers  *buffers

	pruneEvery, patience time.Duration
}

func (o Options) withDefaults() Options {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Retention = cmp.Or(o.Retention, DefaultRetention)
	o.BacklogBytes = cmp.Or(o.BacklogBytes, DefaultBacklogBytes)
	o.LeaseTTL = cmp.Or(o.LeaseTTL, DefaultLeaseTTL)
	o.patience = cmp.Or(o.patience, defaultPatience)
	if o.LongestTTL == nil {
		o.LongestTTL = func() time.Duration { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Shipper ships a log to one destination while it holds the destination's lease. It never stops or
// slows the log.
type Shipper struct {
	opts   Options
	lease  lease
	stream atomic.Pointer[stream] // nil before Add

	mu      sync.Mutex
	failing map[part]time.Time // the parts that fail, with the time of the first failure
	alarmed time.Time

	stop  context.CancelFunc
	quit  chan struct{} // closed by Close: ship the rest and end
	done  chan struct{}
	close sync.Once
}

// New makes a shipper, which gets its log before Start.
func New(opts Options) (*Shipper, error) {
	opts = opts.withDefaults()
	holder, err := holderOf(opts.HolderFile)
	if err != nil {
		return nil, fmt.Errorf("ship: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	s := &Shipper{failing: make(map[part]time.Time), quit: make(chan struct{}), done: make(chan struct{})}
	opts.writer = random()
	opts.pruneEvery, opts.buffers, opts.counters = defaultPruneEvery, new(buffers), new(counters)
	opts.Store = &retrying{Store: opts.Store, tries: tries, timeout: tryTimeout, failed: &opts.counters.errors}
	s.opts = opts
	s.lease = lease{store: opts.Store, holder: holder, writer: opts.writer, host: host, ttl: opts.LeaseTTL, first: true}
	return s, nil
}

// holderOf reads the name of a data directory as a holder of leases, or makes one.
func holderOf(file string) (string, error) {
	b, err := os.ReadFile(file)
	if name := strings.TrimSpace(string(b)); err == nil && len(name) == 32 {
		return name, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	name := random()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	// It need not be durable: without it a restart waits for its own lease to end.
	return name, os.WriteFile(file, []byte(name+"\n"), 0o600)
}

func random() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Add says which log is shipped. It must be called once, before Start.
func (s *Shipper) Add(log Log) { s.stream.Store(&stream{log: log, opts: &s.opts}) }

// Keep is the sequence number from which on the log must keep its records, because they
// are not shipped yet; 1 before Add.
func (s *Shipper) Keep() uint64 {
	if st := s.stream.Load(); st != nil {
		return st.keep()
	}
	return 1
}

// Ledger describes the ledger whose log is shipped. The zero value is a ledger of which nothing is known.
type Ledger struct {
	// ID is the ledger's. Nothing is shipped to a destination that has the copies of another ledger. "" ships to any
	// destination.
	ID string
	// EpochFloor, when set, returns the number above which the epochs of writers are since a restore. The manifest keeps
	// the highest, so that the next restore uses a higher one.
	EpochFloor func() uint64
	// WentBack, when set, is called if the destination has records of the ledger's log, up to shipped, that the log does not
	// have: the directory was put back to an earlier state. past is what the destination knows of that ledger. Nothing is
	// shipped before WentBack returns nil.
	WentBack func(ctx context.Context, shipped uint64, past Longest) error
	// LongestWindow, when set, returns the longest window of all named logs, 0 when there are none. A restored manager refuses
	// unknown ids for as long. It may be called at any time.
	LongestWindow func() time.Duration
}

// Longest says for how long a ledger remembered keys, and ids of named logs, at most.
type Longest struct{ TTL, Window time.Duration }

// Compare compares the log of a ledger, which was added, with its copies, and calls WentBack if the log lacks some of their
// records. It takes no lease. The shipper compares them again after Start, which also reports a destination of another ledger.
// Errors: those of WentBack, the destination's, the context's.
func (s *Shipper) Compare(ctx context.Context, l Ledger) error {
	s.opts.ledger = l
	m, _, err := readManifest(ctx, s.opts.Store)
	if errors.Is(err, object.ErrNotFound) {
		return nil
	}
	if err != nil || s.opts.ours(m.Ledger) != nil {
		return err
	}
	_, err = s.stream.Load().meet(ctx, m)
	return err
}

// Start begins to ship the log of a ledger, which was added, until Close.
func (s *Shipper) Start(l Ledger) {
	if l.EpochFloor == nil {
		l.EpochFloor = func() uint64 { return 0 }
	}
	if l.LongestWindow == nil {
		l.LongestWindow = func() time.Duration { return 0 }
	}
	s.opts.ledger, s.lease.ledger = l, l.ID
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.done)
		var points sync.WaitGroup
		points.Go(func() { s.addPoints(ctx) })
		s.run(ctx)
		stop()
		points.Wait()
	}()
}

// Close ships what is durable, releases the lease, and ends. When ctx ends first, the
// next start ships the rest. Close has no effect on a Shipper that was not started.
func (s *Shipper) Close(ctx context.Context) {
	if s.stop == nil {
		return
	}
	s.close.Do(func() { close(s.quit) })
	select {
	case <-s.done:
	case <-ctx.Done():
		s.stop()
		<-s.done
	}
}

// addPoints adds a point at each interval.
func (s *Shipper) addPoints(ctx context.Context) {
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for {
		s.stream.Load().addPoint()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// run takes the lease, ships until it is lost, and repeats that until the shipper is to end.
func (s *Shipper) run(ctx context.Context) {
	for s.acquire(ctx) {
		s.term(ctx)
		select {
		case <-s.quit:
			return
		default:
		}
	}
}

// pause waits for d; false when the shipper is to end.
func (s *Shipper) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.quit:
	case <-ctx.Done():
	}
	return false
}

// acquire waits until it has the lease; false when the shipper is to end.
func (s *Shipper) acquire(ctx context.Context) bool {
	logged := false
	for {
		err := s.lease.acquire(ctx)
		var held *heldError
		switch {
		case err == nil:
			s.opts.Logger.Info("this manager holds the shipping lease", "url", s.opts.Store.String(), "term", s.lease.record.Term)
			s.recovered(leasePart)
			return true
		case errors.As(err, &held):
			if !logged {
				s.opts.Logger.Warn("another manager holds the shipping lease: this one does not ship, and waits for the lease to end",
					"url", s.opts.Store.String(), "holder_host", held.by.Host, "term", held.by.Term)
			}
			logged = true
			s.recovered(leasePart, logPart) // the other manager reports its failures
		default:
			s.trouble(leasePart, fmt.Errorf("the shipping lease cannot be taken: %w", err))
		}
		if !s.pause(ctx, min(s.opts.LeaseTTL/4, time.Second)) {
			return false
		}
	}
}

// term ships until the lease is lost or the shipper is to end.
func (s *Shipper) term(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	term := s.lease.record.Term
	s.opts.counters.term.Store(term)
	defer s.opts.counters.term.Store(0)
	var renewing sync.WaitGroup
	renewCtx, stopRenewing := context.WithCancel(ctx)
	renewing.Go(func() {
		if s.renew(renewCtx) {
			end()
		}
	})
	s.ship(ctx, term)
	stopRenewing()
	renewing.Wait()
	select {
	case <-s.quit:
		if ctx.Err() == nil {
			if err := s.lease.renew(ctx, true); err != nil {
				s.opts.Logger.Warn("the shipping lease was not released: another manager waits for it to end", "error", err.Error())
			}
		}
	default:
	}
}

// renew renews the lease until ctx ends; true when the lease is lost.
func (s *Shipper) renew(ctx context.Context) (lost bool) {
	tick := time.NewTicker(s.opts.LeaseTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		if err := s.lease.renew(ctx, false); errors.Is(err, errFenced) {
			s.opts.Logger.Warn("this manager lost the shipping lease and no longer ships", "url", s.opts.Store.String(), "error", err.Error())
			return true
		}
	}
}

// Shipped is the last sequence number up to which every record was shipped.
func (s *Shipper) Shipped() uint64 { return s.stream.Load().shipped.Load() }
