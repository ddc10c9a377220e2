package walogs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// Options configure an Engine. The zero value of a field means its default.
type Options struct {
	// MaxLogs is how many logs there may be; default 64.
	MaxLogs int
	// SegmentBytes is the size of a segment; default 16 MiB.
	SegmentBytes int64
	// SnapshotBytes and SnapshotEntries are how much may follow a log's snapshot before the
	// next one is taken; defaults 32 MiB, or twice the size of the snapshot when that is
	// more, and 500,000 entries.
	SnapshotBytes   int64
	SnapshotEntries uint64
	// SnapshotInterval is how long records may follow a log's snapshot before the next one is
	// taken; default 1 min. It is longer for snapshots that take long.
	SnapshotInterval time.Duration
	// Follower, when set, follows each log from when it is opened or made until it is deleted.
	Follower Follower
	// Quarantine, when set, returns for how much longer a log refuses ids that it does not know.
	Quarantine func(name string) time.Duration
	// EpochFloor, when set, returns a number that every epoch given from now on is above. Epochs that were given stay.
	EpochFloor func() uint64
	// MaxReaders bounds the readers that are held at once; default 4096. More get their page at
	// once, though it is empty.
	MaxReaders int
	// DutyEvery is how often retention and snapshots are looked after; default 1 s.
	DutyEvery time.Duration
	// Elapsed returns how much time has passed by a monotonic clock; the default counts
	// from the start of the process.
	Elapsed func() time.Duration
	// Ring has the keys under which entries are sealed; nil: they are not.
	Ring *crypt.Keyring
	// Logger receives what goes wrong; default slog.Default().
	Logger *slog.Logger
	// Log are further options of each write-ahead log.
	Log wal.Options
}

// Follower copies logs while they are written. Its methods must not call the engine's.
type Follower interface {
	// AddNamed is called for a log before anybody else can use it. longest returns how long its window may
	// be at most.
	AddNamed(name string, log *wal.Log, longest func() time.Duration)
	// RemoveNamed is called for a log that is about to be deleted.
	RemoveNamed(name string)
	// KeepNamed is the sequence number of the oldest record that the log must keep for it.
	KeepNamed(name string) uint64
}

// WithDefaults returns a copy with defaults filled in.
func (o Options) WithDefaults() Options {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.SegmentBytes, 16<<20)
	set(&o.SnapshotBytes, 32<<20)
	if o.MaxLogs == 0 {
		o.MaxLogs = 64
	}
	if o.SnapshotEntries == 0 {
		o.SnapshotEntries = 500_000
	}
	if o.SnapshotInterval == 0 {
		o.SnapshotInterval = time.Minute
	}
	if o.MaxReaders == 0 {
		o.MaxReaders = 4096
	}
	if o.DutyEvery == 0 {
		o.DutyEvery = time.Second
	}
	if o.Elapsed == nil {
		began := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(began) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Log.SegmentBytes = o.SegmentBytes
	if o.Log.FillAhead == 0 {
		o.Log.FillAhead = min(4<<20, o.SegmentBytes/4)
	}
	return o
}

// deletedPrefix begins the name of a directory whose log is deleted.
const deletedPrefix = ".deleted-"

// Engine is a logs.Engine. It is safe for concurrent use.
type Engine struct {
	dir  string
	opts Options

	mu     sync.RWMutex
	logs   map[string]*walLog
	broken map[string]error // logs that cannot be read, by name; constant after Open

	changing sync.Mutex // Put and Delete, one at a time
	readers  atomic.Int64
	draining chan struct{}
	drain    sync.Once
	stop     context.CancelFunc
	duties   sync.WaitGroup
}

var _ logs.Engine = (*Engine)(nil)

// Open opens the logs in dir, which it creates when needed. A log that cannot be read refuses its
// calls until another start, and keeps its name. The other logs are served.
func Open(ctx context.Context, dir string, opts Options) (*Engine, error) {
	e := &Engine{dir: dir, opts: opts.WithDefaults(), logs: make(map[string]*walLog), broken: make(map[string]error), draining: make(chan struct{})}
	if err := e.makeDir(); err != nil {
		return nil, err
	}
	names, err := e.names()
	if err == nil {
		err = e.openAll(ctx, names)
	}
	if err != nil {
		return nil, errors.Join(err, e.closeAll())
	}
	background, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.duties.Add(1)
	go e.runDuties(background)
	return e, nil
}

func (e *Engine) makeDir() error {
	if _, err := os.Stat(e.dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(e.dir))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// names lists the logs, and removes what is left of deleted ones.
func (e *Engine) names() ([]string, error) {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, deletedPrefix):
			e.remove(filepath.Join(e.dir, name))
		case entry.IsDir() && logs.CheckName(name) == nil:
			names = append(names, name)
		}
	}
	return names, nil
}

func (e *Engine) remove(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		e.opts.Logger.Warn("a deleted log's files cannot be removed; retrying at the next start", "dir", dir, "error", err.Error())
	}
}

// openAll opens several logs at a time.
func (e *Engine) openAll(ctx context.Context, names []string) error {
	var wg sync.WaitGroup
	turn := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, name := range names {
		turn <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-turn; wg.Done() }()
			l, err := e.openMade(ctx, name)
			switch {
			case errors.Is(err, errNeverMade):
				// Its first record never became durable, so no caller got an answer about it.
				e.opts.Logger.Info("removed a log whose creation was cut off", "log", name)
				e.remove(filepath.Join(e.dir, name))
			case ctx.Err() != nil:
				if err == nil {
					_ = l.close()
				}
			case err != nil:
				// Treating it as absent would let its ids be used again.
				e.opts.Logger.Error("log cannot be read: its calls are refused until a start that can read it; its directory is unchanged",
					"log", name, "dir", filepath.Join(e.dir, name), "error", err.Error())
				e.mu.Lock()
				e.broken[name] = err
				e.mu.Unlock()
			default:
				e.add(l)
			}
		}()
	}
	wg.Wait()
	return ctx.Err()
}

// openMade opens a directory that was there at the start. The error is errNeverMade only when nothing
// in it but the files of a log would be lost.
func (e *Engine) openMade(ctx context.Context, name string) (*walLog, error) {
	entries, err := os.ReadDir(filepath.Join(e.dir, name))
	if err != nil {
		return nil, err
	}
	stray, data := "", false
	for _, entry := range entries {
		isFile, isData := wal.FileName(entry.Name())
		data = data || isData
		if !isFile || entry.IsDir() {
			stray = entry.Name()
		}
	}
	// Opening adds files of its own, so a directory that cannot be a log is not opened.
	if stray == "" || data {
		l, err := e.open(ctx, name)
		if stray == "" || !errors.Is(err, errNeverMade) {
			return l, err
		}
	}
	return nil, fmt.Errorf("the directory %s holds no log, but %q; move it out of the directory of logs", filepath.Join(e.dir, name), stray)
}

func (e *Engine) get(name string) (*walLog, error) {
	e.mu.RLock()
	l, broken := e.logs[name], e.broken[name]
	e.mu.RUnlock()
	if l != nil {
		return l, nil
	}
	if broken != nil {
		return nil, logs.Unreadable(name)
	}
	if err := logs.CheckName(name); err != nil {
		return nil, err
	}
	return nil, logs.NoSuchLog(name)
}

// Put implements logs.Engine.
func (e *Engine) Put(ctx context.Context, name string, ch logs.Change) (logs.Info, bool, error) {
	if err := logs.CheckName(name); err != nil {
		return logs.Info{}, false, err
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	if l, err := e.get(name); err == nil {
		if err := l.configure(ctx, ch); err != nil {
			return logs.Info{}, false, err
		}
		return l.info(), false, nil
	} else if e.broken[name] != nil {
		return logs.Info{}, false, err
	}
	c, err := logs.DefaultConfig().Apply(ch)
	if err != nil {
		return logs.Info{}, false, err
	}
	e.mu.RLock()
	n := len(e.logs) + len(e.broken)
	e.mu.RUnlock()
	if n >= e.opts.MaxLogs {
		return logs.Info{}, false, logs.TooManyLogs(e.opts.MaxLogs)
	}
	l, err := e.create(ctx, name, c)
	if err != nil {
		return logs.Info{}, false, err
	}
	e.add(l)
	return l.info(), true, nil
}

// add makes an open log one that is served.
func (e *Engine) add(l *walLog) {
	if f := e.opts.Follower; f != nil {
		f.AddNamed(l.name, l.wal, l.window)
	}
	e.mu.Lock()
	e.logs[l.name] = l
	e.mu.Unlock()
}

// create makes a log whose settings are durable.
func (e *Engine) create(ctx context.Context, name string, c logs.Config) (*walLog, error) {
	dir := filepath.Join(e.dir, name)
	if entries, err := os.ReadDir(dir); len(entries) > 0 {
		return nil, logs.InTheWay(name) // not this engine's to remove
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	settings := logs.Settings{Name: name, Config: c}
	if _, err := rand.Read(settings.Key[:]); err != nil {
		return nil, err
	}
	l, err := e.openWith(ctx, name, &settings)
	if err != nil {
		e.remove(dir)
		return nil, mapError(err)
	}
	return l, nil
}

// Delete implements logs.Engine. What is waited for in the log is answered before.
func (e *Engine) Delete(_ context.Context, name string) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	l, err := e.get(name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	delete(e.logs, name)
	e.mu.Unlock()
	if f := e.opts.Follower; f != nil {
		f.RemoveNamed(name)
	}
	if err := l.close(); err != nil {
		e.opts.Logger.Warn("closing a deleted log failed", "log", name, "error", err.Error())
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	grave := filepath.Join(e.dir, deletedPrefix+name+"-"+hex.EncodeToString(random[:]))
	if err := os.Rename(filepath.Join(e.dir, name), grave); err != nil {
		return err
	}
	if err := syncDir(e.dir); err != nil {
		return err
	}
	e.remove(grave)
	return nil
}

// Get implements logs.Engine.
func (e *Engine) Get(_ context.Context, name string) (logs.Info, error) {
	l, err := e.get(name)
	if err != nil {
		return logs.Info{}, err
	}
	return l.info(), nil
}

// all returns the logs whose names are greater than after, in order of their names.
func (e *Engine) all(after string) []*walLog {
	e.mu.RLock()
	var all []*walLog
	for name, l := range e.logs {
		if name > after {
			all = append(all, l)
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(all, func(a, b *walLog) int { return strings.Compare(a.name, b.name) })
	return all
}

// List implements logs.Engine.
func (e *Engine) List(_ context.Context, after string, limit int) ([]logs.Info, error) {
	all := e.all(after)
	var infos []logs.Info
	for _, l := range all[:min(limit, len(all))] {
		infos = append(infos, l.info())
	}
	for name, err := range e.broken {
		if name > after {
			infos = append(infos, logs.Info{Name: name, Config: logs.DefaultConfig(), First: 1, Failed: "it cannot be read: " + err.Error()})
		}
	}
	slices.SortFunc(infos, func(a, b logs.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos[:min(limit, len(infos))], nil
}

// Append implements logs.Engine.
func (e *Engine) Append(ctx context.Context, name string, items []logs.Item, atomic bool) ([]logs.Outcome, error) {
	l, err := e.get(name)
	if err != nil {
		return nil, err
	}
	return l.append(ctx, items, atomic)
}

// Read implements logs.Engine.
func (e *Engine) Read(ctx context.Context, name string, q logs.Query) (logs.Page, error) {
	l, err := e.get(name)
	if err != nil {
		return logs.Page{}, err
	}
	return l.read(ctx, q)
}

// ByID implements logs.Engine.
func (e *Engine) ByID(ctx context.Context, name, id string) (logs.Entry, error) {
	l, err := e.get(name)
	if err != nil {
		return logs.Entry{}, err
	}
	return l.byID(ctx, id)
}

// OpenWriter implements logs.Engine.
func (e *Engine) OpenWriter(ctx context.Context, name, writer string) (uint64, error) {
	if err := logs.CheckWriter(writer); err != nil {
		return 0, err
	}
	l, err := e.get(name)
	if err != nil {
		return 0, err
	}
	return l.openWriter(ctx, writer)
}

// Writers implements logs.Engine.
func (e *Engine) Writers(_ context.Context, name, after string, limit int) ([]logs.Writer, error) {
	l, err := e.get(name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Writers(after, limit), nil
}

// RemoveWriter implements logs.Engine.
func (e *Engine) RemoveWriter(ctx context.Context, name, writer string) error {
	l, err := e.get(name)
	if err != nil {
		return err
	}
	return l.removeWriter(ctx, writer)
}

// Drain implements logs.Engine.
func (e *Engine) Drain() { e.drain.Do(func() { close(e.draining) }) }

// Close implements logs.Engine.
func (e *Engine) Close() error {
	e.Drain()
	e.stop()
	e.duties.Wait()
	return e.closeAll()
}

func (e *Engine) closeAll() error {
	var err error
	for _, l := range e.all("") {
		err = errors.Join(err, l.close())
	}
	return err
}

// runDuties looks after one log at a time, so that at most one snapshot is on its way.
func (e *Engine) runDuties(ctx context.Context) {
	defer e.duties.Done()
	tick := time.NewTicker(e.opts.DutyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, l := range e.all("") {
			l.duty(ctx)
		}
	}
}
