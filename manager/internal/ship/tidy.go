package ship

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

const (
	defaultPruneEvery = time.Minute
	sweepEvery        = time.Hour
)

// merge makes large runs of small ones: of each stretch of the last history that lies
// in one segment, when it has many or the segment is sealed.
func (st *stream) merge(ctx context.Context) error {
	runs := st.manifest.last().Runs
	for to := len(runs); to > 0; {
		from := to - 1
		small := runs[from].Bytes < smallBytes
		for small && from > 0 && runs[from-1].Bytes < smallBytes && follows(runs[from-1], runs[from]) {
			from--
		}
		n := to - from
		sealed := to < len(runs) || runs[to-1].Segment.Number < st.newest()
		if small && (n >= mergeRuns || sealed && n > 1) {
			if err := st.mergeRuns(ctx, from, to); err != nil {
				return err
			}
		}
		to = from
	}
	return nil
}

func (st *stream) newest() uint64 {
	segments := st.log.Segments()
	return segments[len(segments)-1].Number
}

// follows reports whether b begins where a ends, in the same segment.
func follows(a, b run) bool { return a.Segment == b.Segment && a.Last+1 == b.First }

// mergeRuns replaces the runs from to to-1 of the last history. It reads the shipped runs, not the log,
// and so checks that they are whole.
func (st *stream) mergeRuns(ctx context.Context, from, to int) error {
	h := st.manifest.last()
	old := h.Runs[from:to]
	var merged []run
	p := st.pack()
	defer func() { st.unpack(p) }()
	var points []point
	first := old[0].First
	flush := func(last uint64) error {
		if last < first {
			return nil
		}
		c := chunk{run: run{First: first, Last: last, Segment: old[0].Segment}}
		c.seal(runName(st.term, st.index), header{
			Kind: kindRun, Log: h.Log, First: first, Last: last, Segment: &c.Segment, Points: thin(points),
		}, p)
		st.index++
		if err := st.write(ctx, c.Name, c.object); err != nil {
			return err
		}
		merged = append(merged, c.run)
		st.opts.counters.shipped(c.Bytes)
		p, points, first = st.pack(), nil, last+1
		return nil
	}
	for _, r := range old {
		head, bodies, err := fetchRun(ctx, st.opts.Store, r, h.Log)
		if err != nil {
			return err
		}
		if p.size() > 0 && int64(p.size())+r.Bytes > targetBytes {
			if err := flush(r.First - 1); err != nil {
				return err
			}
		}
		for _, body := range bodies {
			p.add(body)
		}
		points = append(points, head.Points...)
	}
	if err := flush(old[len(old)-1].Last); err != nil {
		return err
	}
	if err := st.edit(ctx, func(h *history) {
		rest := append(merged, h.Runs[to:]...)
		h.Runs = append(h.Runs[:from:from], rest...)
	}); err != nil {
		return err
	}
	st.delete(ctx, (&history{Runs: old}).objects())
	return nil
}

// tidy deletes the objects that no time within the retention needs, and at each sweep those
// that a crash or another term left.
func (st *stream) tidy(ctx context.Context) error {
	now := time.Now()
	if now.Sub(st.pruned) >= st.opts.pruneEvery {
		if err := st.findManifest(ctx); err != nil {
			return err
		}
		cutoff := now.Add(-st.opts.Retention).UnixMilli()
		if gone := st.manifest.clone().prune(cutoff); len(gone) > 0 {
			err := st.editAll(ctx, func(m *manifest) {
				st.nameTail(m.last())
				m.prune(cutoff)
			})
			if err != nil {
				return err
			}
			st.delete(ctx, gone)
		}
		st.pruned = now
	}
	if now.Sub(st.swept) >= sweepEvery {
		if err := st.sweep(ctx); err != nil {
			return err
		}
		st.swept = now
	}
	return nil
}

// findManifest returns errFenced when the manifest is gone, so that the next term writes another: a log without changes would not notice.
func (st *stream) findManifest(ctx context.Context) error {
	_, _, err := st.opts.Store.Get(ctx, logPrefix+"/"+manifestObject)
	if errors.Is(err, object.ErrNotFound) {
		return fmt.Errorf("%w: %s/%s is gone", errFenced, logPrefix, manifestObject)
	}
	return err
}

// prune drops the objects that no time from cutoff on needs, and returns them.
func (m *manifest) prune(cutoff int64) (gone []ref) {
	live := m.last()
	liveUsable := live.usable()
	var kept []history
	for i := range m.Histories {
		h := &m.Histories[i]
		if h != live && h.Ended < cutoff && liveUsable {
			gone = append(gone, h.objects()...)
			continue
		}
		base := -1 // the newest snapshot that is old enough
		for i, s := range h.Snapshots {
			if s.Time <= cutoff {
				base = i
			}
		}
		if base >= 0 {
			for _, s := range h.Snapshots[:base] {
				gone = append(gone, s.Parts...)
			}
			h.Snapshots = h.Snapshots[base:]
			n := 0
			for n < len(h.Runs) && h.Runs[n].Last <= h.Snapshots[0].Sequence {
				gone = append(gone, h.Runs[n].ref)
				n++
			}
			h.Runs = h.Runs[n:]
		}
		kept = append(kept, *h)
	}
	m.Histories = kept
	return gone
}

// objects are all that a history names.
func (h *history) objects() []ref {
	var refs []ref
	for _, s := range h.Snapshots {
		refs = append(refs, s.Parts...)
	}
	for _, r := range h.Runs {
		refs = append(refs, r.ref)
	}
	return refs
}

// delete removes objects that the manifest no longer names; a sweep deletes what delete leaves.
func (st *stream) delete(ctx context.Context, refs []ref) {
	for _, r := range refs {
		if st.opts.Store.Delete(ctx, logPrefix+"/"+r.Name) != nil {
			return
		}
	}
}

// sweep deletes the objects of this and older terms that the manifest does not name. The
// listing may be stale: objects that it shows too much are deleted already, and the next sweep deletes those
// that it leaves out.
func (st *stream) sweep(ctx context.Context) error {
	if len(st.pending) > 0 {
		if err := st.edit(ctx, nil); err != nil {
			return err
		}
	}
	named := make(map[string]bool)
	for i := range st.manifest.Histories {
		for _, r := range st.manifest.Histories[i].objects() {
			named[r.Name] = true
		}
	}
	named[headName(st.term)] = true
	if u := st.upload; u != nil {
		for _, r := range u.Parts {
			named[r.Name] = true
		}
		named[snapName(st.term, u.index, len(u.Parts))] = true // it may be on its way
	}
	// Retries of this term may still be under way: they write names that are used once.
	var dead []ref
	err := object.All(ctx, st.opts.Store, logPrefix+"/", func(o object.Info) error {
		name := strings.TrimPrefix(o.Name, logPrefix+"/")
		if term, ok := termOf(name); ok && term <= st.term && !named[name] {
			dead = append(dead, ref{Name: name})
		}
		return nil
	})
	if err == nil {
		err = st.opts.holdsLease(ctx, st.term) // a later holder may have the same term, see the package doc
	}
	if err != nil {
		return err
	}
	for _, r := range dead {
		if err := st.opts.Store.Delete(ctx, logPrefix+"/"+r.Name); err != nil && !errors.Is(err, object.ErrNotFound) {
			return err
		}
	}
	return nil
}
