package storelogs

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

const (
	// groupBytes bounds what goes into one transaction of several calls. An item counts at least itemBytes, so there are at
	// most 256.
	groupBytes = 1 << 20
	itemBytes  = groupBytes / 256
	// maxWaiting and maxWaitingBytes bound the calls of a log that wait or are under way.
	maxWaiting      = 4096
	maxWaitingBytes = 64 << 20
	// maxForget bounds how many ids one transaction forgets.
	maxForget = 1024
)

// line is what this manager knows of a log: the calls under way, and what it counted.
type line struct {
	name    string
	readers atomic.Int64
	appends batch.Batcher[request]

	mu         sync.Mutex
	calls      int         // that wait or are under way
	bytes      int         // of the calls
	settings   *logs.State // to prepare batches with; nil when not known
	unsettled  int         // commits of unknown outcome since the last one that is certain
	counters   logs.Counters
	evicted    uint64
	evictedAge time.Duration
	warned     uint64
}

// request is a call of Append.
type request struct {
	items  []logs.Item
	atomic bool
	bytes  int
	by     *logs.State
	batch  *logs.Batch
}

// errRemade says that the log is another one than the batches were prepared for.
var errRemade = errors.New("storelogs: the log was made again")

// Append appends items one by one or, when atomic, all of them or none. It returns when the outcomes are durable. An error is
// for all of them: what was written is then unknown unless the error says so, and the caller may ask by id.
func (e *Engine) Append(ctx context.Context, name string, items []logs.Item, atomic bool) ([]logs.Outcome, error) {
	if err := logs.CheckName(name); err != nil {
		return nil, err
	}
	l := e.line(name)
	by, err := e.preparer(ctx, l)
	if err != nil {
		return nil, err
	}
	// The transaction may outlast this call, and the caller may change what it gave then.
	items = slices.Clone(items)
	call := &batch.Call[request]{Arg: request{items: items, atomic: atomic}}
	r := &call.Arg
	for i := range items {
		items[i].Payload, items[i].Properties = slices.Clone(items[i].Payload), slices.Clone(items[i].Properties)
		r.bytes += len(items[i].Payload) + 64
	}
	r.prepare(by)
	if !l.admit(r.bytes) {
		return nil, logs.Busy()
	}
	defer l.leave(r.bytes)
	call.Size = max(r.bytes, len(items)*itemBytes)
	if err := l.appends.Do(ctx, call); err != nil {
		return nil, mapError(err) // what has begun continues: its ids are kept
	}
	return r.batch.Outcomes, nil
}

func (r *request) prepare(by *logs.State) {
	if r.by != by {
		r.by, r.batch = by, by.Prepare(r.items, r.atomic)
	}
}

// preparer returns what prepares batches. It reads the log's settings if they are not known.
func (e *Engine) preparer(ctx context.Context, l *line) (*logs.State, error) {
	l.mu.Lock()
	by := l.settings
	l.mu.Unlock()
	if by != nil {
		return by, nil
	}
	h, err := e.headOrForget(ctx, l)
	if err == nil {
		by = logs.NewState(h.settings, 1, 0, 0, 0)
	}
	l.mu.Lock()
	l.settings = by
	l.mu.Unlock()
	return by, err
}

// headOrForget returns the head of a log. If there is no such log, it forgets the line.
func (e *Engine) headOrForget(ctx context.Context, l *line) (*head, error) {
	l.mu.Lock()
	unsettled := l.unsettled
	l.mu.Unlock()
	h, err := e.head(ctx, l.name)
	if missing(err) {
		e.forgetLine(l, unsettled)
	}
	return h, err
}

// forgetLine drops what is known of a log that was not there when the line had this number of unsettled commits, so that made-up
// names take no memory. One more commit shows that the log was made since.
func (e *Engine) forgetLine(l *line, unsettled int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.appends.Idle() && l.readers.Load() == 0 && l.unsettled == unsettled && e.lines[l.name] == l {
		delete(e.lines, l.name)
	}
}

// admit counts a call, if there is room for it. Then the call must leave.
func (l *line) admit(bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls >= maxWaiting || l.bytes+bytes > maxWaitingBytes {
		return false
	}
	l.calls, l.bytes = l.calls+1, l.bytes+bytes
	return true
}

func (l *line) leave(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls, l.bytes = l.calls-1, l.bytes-bytes
}

// commit appends what the requests say in one transaction. The error is for all of them.
func (e *Engine) commit(ctx context.Context, l *line, group []*request) error {
	if e.clock.stale() {
		if err := e.clock.tick(ctx, e.st); err != nil {
			return err
		}
	}
	for {
		by, err := e.preparer(ctx, l)
		if err != nil {
			return err
		}
		for _, r := range group {
			r.prepare(by)
		}
		t := &transaction{engine: e, name: l.name, key: by.Settings().Key, group: group}
		err = e.st.Update(ctx, t.run)
		l.mu.Lock()
		switch {
		case err == nil:
			l.counted(t)
		case store.Unknown(err):
			l.unsettled++
		default: // it may be another log by now, or none
			l.settings = nil
		}
		l.mu.Unlock()
		if !errors.Is(err, errRemade) {
			return err
		}
	}
}

// counted adds what a transaction did. The caller holds mu.
func (l *line) counted(t *transaction) {
	if t.wrote {
		l.unsettled = 0 // what was under way before cannot be committed any more
	}
	i := t.state.Counters()
	c := &l.counters
	c.Appended += i.Appended
	c.Duplicates += i.Duplicates
	c.Mismatches += i.Mismatches
	c.Gaps += i.Gaps
	c.Fenced += i.Fenced
	c.Refused += i.Refused
	if t.forgot > 0 {
		l.evicted += uint64(t.forgot)
		l.evictedAge = t.forgotAge
	}
}

// transaction appends a group. Its function may run several times.
type transaction struct {
	engine *Engine
	name   string
	key    logs.HashKey
	group  []*request

	state     *logs.State
	wrote     bool
	forgot    int
	forgotAge time.Duration
}

func (t *transaction) run(tx store.Tx) error {
	t.wrote, t.forgot, t.forgotAge = false, 0, 0
	if err := tx.Prefetch(t.needs()); err != nil {
		return err
	}
	h, err := getHead(tx, t.name)
	if err != nil {
		return err
	}
	if h.settings.Key != t.key {
		return errRemade
	}
	quarantine, err := t.engine.opts.Restored.LogsLeft(tx)
	if err != nil {
		return err
	}
	now := max(t.engine.clock.now(), h.At) // of this run: earlier ones may be long ago
	c := h.settings.Config
	oldest, had := now, h.Keys
	if items := t.items(); c.RefuseWhenFull && !c.Fits(h.Keys+items) {
		// What is too old makes room.
		f := forgetting{engine: t.engine, head: h, now: now, budget: 2*items + 64}
		if err := f.run(tx); err != nil {
			return err
		}
		oldest = f.oldest
	}
	settings := h.settings
	settings.Config.Window += t.engine.margin
	t.state = logs.NewState(settings, h.Next, now, h.Keys, oldest)
	if err := t.load(tx, h); err != nil {
		return err
	}
	var accepted []logs.Entry
	for _, r := range t.group {
		r.batch.Quarantine = quarantine
		t.state.Judge(r.batch, now)
		accepted = append(accepted, r.batch.Accepted...)
	}
	if len(accepted) == 0 {
		if h.Keys != had { // what was too old is still forgotten
			return h.put(tx)
		}
		return nil
	}
	t.wrote = true
	return t.write(tx, h, now, accepted)
}

func (t *transaction) items() (n int) {
	for _, r := range t.group {
		n += len(r.items)
	}
	return n
}

// each calls id and writer for what the group names.
func (t *transaction) each(id func(logs.Hash), writer func(string)) {
	for _, r := range t.group {
		r.batch.Needs(id, writer)
	}
}

func (t *transaction) needs() []store.ID {
	all := []store.ID{{Collection: heads, Key: t.name}}
	if id, ok := t.engine.opts.Restored.Record(); ok {
		all = append(all, id)
	}
	prefix, c := prefixOf(&t.key), ids
	if t.group[0].by.Settings().Config.Identity == logs.Structured {
		c = clients
	}
	t.each(func(h logs.Hash) { all = append(all, store.ID{Collection: c, Key: prefix + string(h[:])}) }, func(w string) { all = append(all, store.ID{Collection: writers, Key: prefix + w}) })
	return all
}

// load gives the state what the group names.
func (t *transaction) load(tx store.Tx, h *head) (err error) {
	c, take := ids, t.state.LoadID
	if h.settings.Config.Identity == logs.Structured {
		c, take = clients, t.state.LoadClient
	}
	loaded := make(map[logs.Hash]bool)
	t.each(func(id logs.Hash) {
		if err != nil || loaded[id] {
			return
		}
		loaded[id] = true
		_, err = store.Read(tx, c, h.prefix+string(id[:]), func(key string, b []byte) (none struct{}, _ error) {
			if err := take(id, b); err != nil {
				return none, &store.UnreadableError{Collection: c, Key: key, Reason: err.Error()}
			}
			return none, nil
		})
	}, func(w string) {
		if err != nil {
			return
		}
		var epoch uint64
		if epoch, err = h.writer(tx, w); err == nil {
			t.state.SetEpoch(w, epoch)
		}
	})
	return err
}

// write writes what was accepted.
func (t *transaction) write(tx store.Tx, h *head, now int64, accepted []logs.Entry) error {
	first, last := accepted[0].Number, accepted[len(accepted)-1].Number
	value := logs.AppendEntries(nil, first, now, accepted)
	err := tx.Put(entries, key(h.prefix, last), value, store.Entry{Index: order, SortKey: key(h.prefix, last, uint64(now), uint64(len(value)))})
	if err != nil {
		return err
	}
	h.Next, h.At, h.Keys = last+1, now, t.state.Keys()
	h.Bytes += int64(len(value))
	f := forgetting{engine: t.engine, head: h, now: now, early: true, budget: maxForget, changed: make(map[string]bool)}
	err = t.state.EachClient(func(id logs.Hash, b []byte) error {
		f.changed[h.prefix+string(id[:])] = true
		return tx.Put(clients, h.prefix+string(id[:]), b, store.Entry{Index: order, SortKey: key(h.prefix, last)})
	})
	if err == nil {
		err = f.run(tx)
	}
	if err != nil {
		return err
	}
	var window []byte
	err = t.state.EachAdded(func(id logs.Hash, number uint64, b []byte) error {
		if !f.more && !h.settings.Config.Fits(h.Keys) { // more ids at once than the window holds
			h.Keys--
			f.forgot++
			return nil
		}
		window = binary.BigEndian.AppendUint64(append(window, id[:]...), number)
		return tx.Put(ids, h.prefix+string(id[:]), b)
	})
	if err == nil && window != nil {
		err = putWindow(tx, h.prefix, first, now, window)
	}
	if err != nil {
		return err
	}
	t.forgot, t.forgotAge = f.forgot, f.age
	tx.Notify(topic(t.name))
	return h.put(tx)
}
