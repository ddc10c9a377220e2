package ship

import (
	"context"
	"slices"
	"time"
)

// shipSnapshot ships the log's snapshot when it is newer than the last one, and the runs since then have at least
// as many bytes as that.
func (st *stream) shipSnapshot(ctx context.Context) error {
	h := st.manifest.last()
	var last snapshot
	if n := len(h.Snapshots); n > 0 {
		last = h.Snapshots[n-1]
	}
	seq := st.log.SnapshotSequence()
	if seq <= last.Sequence || seq >= st.next { // of records that are still to be shipped
		return nil
	}
	var bytes int64
	for _, r := range slices.Backward(h.Runs) {
		if r.Last <= last.Sequence {
			break
		}
		bytes += r.Bytes
	}
	for _, r := range st.pending {
		bytes += r.Bytes
	}
	if bytes < last.Bytes {
		return nil
	}
	shipped, err := st.upload(ctx, true)
	if err != nil || shipped == nil {
		return err
	}
	if shipped.Sequence >= st.next { // replaced by an even newer one
		return nil // a sweep deletes its objects, and a later step ships it again
	}
	return st.edit(ctx, func(h *history) { h.Snapshots = append(h.Snapshots, *shipped) })
}

// upload writes the objects of the log's snapshot; nil when it has none. With tail, it
// continues to ship the tail meanwhile.
func (st *stream) upload(ctx context.Context, tail bool) (*snapshot, error) {
	r, err := st.log.OpenSnapshot(ctx)
	if r == nil || err != nil {
		return nil, err
	}
	defer r.Close()
	s := &snapshot{Sequence: r.Sequence(), Keep: r.Sequence() + 1, Time: time.Now().UnixMilli()}
	if st.kept {
		s.Keep = r.Keep()
	}
	for _, seg := range st.log.Segments() {
		if s.Segment.Number == 0 || seg.First <= s.Sequence+1 {
			s.Segment = segment(seg)
		}
	}
	index := st.index
	st.index++
	p := st.pack()
	defer func() { st.unpack(p) }()
	first := uint64(1)
	flush := func() error {
		if s.Records < first {
			return nil
		}
		o := p.seal(header{Kind: kindSnapshot, Log: st.log.ID(), First: first, Last: s.Records, Snapshot: s.Sequence})
		part := o.ref(snapName(st.term, index, len(s.Parts)))
		if err := st.write(ctx, part.Name, o); err != nil {
			return err
		}
		s.Parts, s.Bytes = append(s.Parts, part), s.Bytes+part.Bytes
		p, first = st.pack(), s.Records+1
		st.opts.metrics.shipped(int(part.Bytes), 1)
		if tail {
			return st.shipTail(ctx)
		}
		return nil
	}
	for {
		body, ok, err := r.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if p.size() > 0 && p.size()+len(body) > targetBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		p.add(body)
		s.Records++
	}
	return s, flush()
}
