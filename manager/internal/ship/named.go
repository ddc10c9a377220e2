package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// named is what a shipper knows of the named logs. All of it belongs to the loop of the named logs, except
// what Shipper.mu guards.
type named struct {
	// follow says that every log was added but those of except, so any other log of the catalog
	// was deleted. removed are deletions that the catalog does not have yet. Shipper.mu guards all three.
	follow  bool
	except  []string
	removed []removal

	catalog *catalog
	version object.Version
	edits   uint64 // counts tries, so that none is taken for another
	index   uint64 // of the next prefix in this term

	// The prefix whose objects are being deleted, and the last one that was.
	prefix string
	after  string
}

// removal is a log that was deleted.
type removal struct {
	name, id string
	at       int64
}

// maxRemoved bounds the deletions whose time is remembered while the store is away. An older one counts as made when the
// store is back.
const maxRemoved = 1024

// collectObjects is how many objects of deleted logs a round deletes.
const collectObjects = 10

// logLabel is the name of a named log in metrics and messages.
func logLabel(name string) string { return "logs/" + name }

// AddNamed makes a named log part of what is shipped. longest returns how long the log remembers an id
// at most; any goroutine may call it.
func (s *Shipper) AddNamed(name string, log *wal.Log, longest func() time.Duration) {
	st := &stream{label: logLabel(name), named: name, log: WAL(log), kept: true, opts: &s.opts, longest: longest}
	st.backlog = func() int64 { return s.opts.BacklogBytes / int64(max(len(s.all())-1, 1)) }
	st.addPoint()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams[:len(s.streams):len(s.streams)], st)
}

// RemoveNamed says that a named log is deleted now. Its objects stay for as long as it can be
// restored to a time before.
func (s *Shipper) RemoveNamed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.streams, func(st *stream) bool { return st.label == logLabel(name) })
	if i < 0 {
		return
	}
	st := s.streams[i]
	s.streams = slices.Concat(s.streams[:i], s.streams[i+1:])
	s.named.removed = append(s.named.removed, removal{name, st.log.ID(), time.Now().UnixMilli()})
	if n := len(s.named.removed); n > maxRemoved {
		s.named.removed = slices.Clone(s.named.removed[n-maxRemoved:])
	}
}

// FollowNamed says that every named log was added, but those of except, which exist and could
// not be opened. Any other log of the catalog was deleted. The copies of those of except
// stay as they are. Until FollowNamed is called, that holds for all named logs.
func (s *Shipper) FollowNamed(except ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named.follow, s.named.except = true, except
}

// KeepNamed is Keep for a named log.
func (s *Shipper) KeepNamed(name string) uint64 { return s.Keep(logLabel(name)) }

// newTerm drops the state of the last term.
func (s *Shipper) newTerm() {
	n := &s.named
	n.catalog, n.index, n.prefix, n.after = nil, 0, "", ""
	for _, st := range s.all() {
		st.claimed = false
		if st.named != "" {
			st.prefix, st.ready = "", false
		}
	}
}

// takeCatalog reads the catalog in a new term.
func (s *Shipper) takeCatalog(ctx context.Context, term uint64) error {
	n := &s.named
	c, v, err := readCatalog(ctx, s.opts.Store)
	if errors.Is(err, object.ErrNotFound) {
		c = &catalog{Version: catalogVersion}
		var m *manifest
		if m, _, err = readManifest(ctx, s.opts.Store, LedgerLog); err == nil && m.Catalog {
			s.opts.Logger.Error("the catalog of named logs was lost and is made again: earlier copies of named logs cannot be restored, and their objects below logs/ are never deleted",
				"url", s.opts.Store.String(), "object", catalogObject)
		} else if errors.Is(err, object.ErrNotFound) {
			err = nil
		}
	}
	if err == nil {
		err = s.opts.holdsLease(ctx, term)
	}
	if err != nil {
		return err
	}
	if c.Term >= term { // equal only after the lease was lost
		return errFenced
	}
	n.catalog, n.version = c, v
	return nil
}

// syncCatalog brings the catalog up to date with the logs, and gives each new one a prefix. The catalog has a log before its
// first object is written, and then records when it was shipped completely. So every object belongs
// to a log in the catalog, and no object that a restore would look for is missing.
func (s *Shipper) syncCatalog(ctx context.Context, term uint64) error {
	s.mu.Lock()
	n := &s.named
	follow, except, removed, streams := n.follow, n.except, n.removed, s.streams
	s.mu.Unlock()
	if !follow {
		return nil
	}
	if n.catalog == nil {
		if err := s.takeCatalog(ctx, term); err != nil {
			return err
		}
	}
	c, now := n.catalog.clone(), time.Now().UnixMilli()
	changed := c.Term != term
	for _, r := range removed {
		for i := range c.Logs {
			if e := &c.Logs[i]; e.current() && e.Name == r.name && e.ID == r.id {
				e.end(r.at)
				changed = true
			}
		}
	}
	prefixes := make(map[*stream]string)
	there := make(map[string]bool)
	for _, name := range except {
		there[name] = true
	}
	var missing []catalogEntry
	index := n.index
	for _, st := range streams {
		if st.named == "" {
			continue
		}
		there[st.named] = true
		e := c.of(st)
		if e == nil {
			c.Logs = append(c.Logs, catalogEntry{Name: st.named, ID: st.log.ID(), Prefix: fmt.Sprintf("logs/%s/%010d-%d", st.named, term, index), Made: now})
			e = &c.Logs[len(c.Logs)-1]
			index++
			changed = true
		}
		prefixes[st] = e.Prefix
		if st.prefix == e.Prefix && st.ready && !e.Shipped {
			e.Shipped, e.Made = true, st.oldest()
			changed = true
			// A restored log that ships to the same destination continues where the other one ends.
			for i := range c.Logs {
				if o := &c.Logs[i]; o.Name == e.Name && o.Prefix != e.Prefix && o.current() {
					o.end(e.Made)
				}
			}
		}
	}
	for i := range c.Logs {
		e := &c.Logs[i]
		if e.current() && !there[e.Name] {
			e.end(now)
			missing, changed = append(missing, *e), true
		}
		if e.Deleted != 0 && !e.Gone && e.Deleted < now-s.opts.Retention.Milliseconds() {
			e.Gone, changed = true, true
		}
	}
	if changed {
		n.index = index
		if err := s.writeCatalog(ctx, term, c); err != nil {
			return err
		}
	}
	for _, e := range missing {
		s.opts.Logger.Warn("a log is gone from the data directory without a DELETE; it counts as deleted from now on",
			"log", e.Name, "restorable", e.Shipped, "retention_s", int(s.opts.Retention.Seconds()))
	}
	s.opts.cataloged.Store(true)
	s.mu.Lock()
	n.removed = slices.DeleteFunc(slices.Clone(n.removed), func(r removal) bool { return slices.Contains(removed, r) })
	s.mu.Unlock()
	for st, prefix := range prefixes {
		st.prefix = prefix
	}
	return nil
}

// catalogDue reports whether a log was shipped completely and the catalog does not say so yet.
func (s *Shipper) catalogDue() bool {
	if s.named.catalog == nil {
		return false
	}
	return slices.ContainsFunc(s.all(), func(st *stream) bool {
		if st.named == "" || !st.ready {
			return false
		}
		e := s.named.catalog.of(st)
		return e != nil && e.Prefix == st.prefix && !e.Shipped
	})
}

// of returns the entry of a stream's log; nil when there is none yet.
func (c *catalog) of(st *stream) *catalogEntry {
	for i := range slices.Backward(c.Logs) {
		if e := &c.Logs[i]; e.current() && e.Name == st.named && e.ID == st.log.ID() {
			return e
		}
	}
	return nil
}

func (s *Shipper) writeCatalog(ctx context.Context, term uint64, c *catalog) error {
	n := &s.named
	n.edits++
	c.Term, c.Edit, c.Writer = term, n.edits, s.opts.writer
	v, err := writeCatalog(ctx, s.opts.Store, c, n.version)
	if err == nil {
		n.catalog, n.version = c, v
	}
	return err
}

// oldest is the first time that a log which was shipped completely can be restored to.
func (st *stream) oldest() int64 {
	h := st.manifest.last()
	runs := append(slices.Clone(h.Runs), st.pending...)
	switch {
	case len(h.Snapshots) > 0:
		return max(h.Began, h.Snapshots[0].Time)
	case len(runs) > 0:
		return max(h.Began, runs[0].From)
	}
	return h.Began
}

// collectGone deletes some objects of a log that was deleted longer ago than the retention. The listing may be stale:
// objects that it leaves out stay in the store, and nothing looks for them.
func (s *Shipper) collectGone(ctx context.Context, term uint64) error {
	n := &s.named
	if n.catalog == nil {
		return nil
	}
	i := slices.IndexFunc(n.catalog.Logs, func(e catalogEntry) bool { return e.Gone })
	if i < 0 {
		return nil
	}
	if prefix := n.catalog.Logs[i].Prefix; prefix != n.prefix {
		n.prefix, n.after = prefix, ""
	}
	page, err := s.opts.Store.List(ctx, n.prefix+"/", n.after)
	if err == nil {
		err = s.opts.holdsLease(ctx, term)
	}
	if err != nil {
		return err
	}
	if len(page) == 0 {
		c := n.catalog.clone()
		c.Logs = slices.Delete(c.Logs, i, i+1)
		return s.writeCatalog(ctx, term, c)
	}
	for _, o := range page[:min(collectObjects, len(page))] {
		if err := s.opts.Store.Delete(ctx, o.Name); err != nil {
			return err
		}
		n.after = o.Name
	}
	return nil
}
