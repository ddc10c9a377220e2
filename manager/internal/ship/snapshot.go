package ship

import (
	"context"
	"slices"
	"time"
)

const (
	// defaultPatience is for how long an upload waits for a store that takes no part. Then it ends, because the log may
	// need much room for a snapshot that is open.
	defaultPatience = 10 * time.Minute
	// readPause is how long after a snapshot that could not be read the next one is opened.
	readPause = 10 * time.Minute
)

// upload is a snapshot on its way to the store. Each step ships some parts of it, so the tail does not wait for it.
type upload struct {
	snapshot
	from    Snapshot // nil after the last record
	index   uint64   // of the names of its parts
	held    []byte   // a record that did not fit into the last part
	holds   bool
	unsent  *packed   // a part whose write has an unknown outcome
	written time.Time // when the last part was written
	// reach is the last record that was durable when it was opened. The manifest names the snapshot after the
	// runs up to there, so its state is not older than its Time.
	reach uint64
}

// snapshotDue reports whether there is a newer snapshot, and it is worth its bytes: the runs between the last one and it have
// as many as the last one, or the newest state cannot be restored without it. Later runs count for the next snapshot.
func (st *stream) snapshotDue() bool {
	h := st.manifest.last()
	var last snapshot
	if n := len(h.Snapshots); n > 0 {
		last = h.Snapshots[n-1]
	}
	seq := st.log.SnapshotSequence()
	if seq <= last.Sequence || seq >= st.next { // of records that are still to be shipped
		return false
	}
	if st.broken {
		return true
	}
	bytes := int64(0)
	for _, runs := range [][]run{h.Runs, st.pending} {
		for _, r := range slices.Backward(runs) {
			if r.First <= last.Sequence {
				break
			}
			if r.Last <= seq {
				bytes += r.Bytes
			}
		}
	}
	return bytes >= last.Bytes
}

// openSnapshot begins an upload; upload stays nil when the log has no snapshot.
func (st *stream) openSnapshot(ctx context.Context) error {
	if time.Now().Before(st.readAgain) {
		return st.unreadable
	}
	from, err := st.log.OpenSnapshot(ctx)
	if from == nil || err != nil {
		return st.notRead(ctx, err)
	}
	now := time.Now() // before Durable, as in addPoint
	u := &upload{from: from, index: st.index, written: now, reach: st.log.Durable()}
	u.snapshot = snapshot{Sequence: from.Sequence(), Time: now.UnixMilli()}
	for _, seg := range st.log.Segments() {
		if u.Segment.Number == 0 || seg.First <= u.Sequence+1 {
			u.Segment = segment(seg)
		}
	}
	st.index++
	st.upload = u
	return nil
}

// notRead remembers that a snapshot cannot be read, so that it is not opened, and perhaps shipped in part, again and again.
func (st *stream) notRead(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		st.unreadable, st.readAgain = err, time.Now().Add(readPause)
	}
	return err
}

// end closes the snapshot. The upload has no part in memory then.
func (u *upload) end() {
	if u.from != nil {
		u.from.Close()
	}
	u.from, u.unsent = nil, nil
}

// dropUpload ends an upload. A sweep deletes its parts.
func (st *stream) dropUpload() {
	if st.upload != nil {
		st.upload.end()
		st.upload = nil
	}
}

// pending reports whether parts are still to be written.
func (u *upload) pending() bool { return u.from != nil || u.unsent != nil }

// checkUpload ends an upload that has waited for the store for too long.
func (st *stream) checkUpload() {
	if u := st.upload; u != nil && u.pending() && time.Since(u.written) > st.opts.patience {
		st.dropUpload()
	}
}

// shipSnapshot ships parts of the snapshot that is due, for an interval, and names it when it is complete. A shipper that
// is to end ships only a snapshot without which what it shipped cannot be restored.
func (st *stream) shipSnapshot(ctx context.Context, ending bool) error {
	st.uploading = false
	wanted := st.broken || !ending
	if st.upload == nil {
		if !wanted || !st.snapshotDue() {
			return nil
		}
		if err := st.openSnapshot(ctx); err != nil || st.upload == nil {
			return err
		}
	}
	u := st.upload
	for start := time.Now(); u.pending(); {
		if !wanted {
			return nil
		}
		if u.written.After(start) && (st.unshipped || time.Since(start) >= st.opts.Interval) {
			st.uploading = true
			return nil
		}
		if err := st.shipPart(ctx); err != nil {
			return err
		}
	}
	if st.next <= u.reach {
		st.uploading = wanted
		return nil
	}
	if err := st.edit(ctx, func(h *history) { h.Snapshots = append(h.Snapshots, u.snapshot) }); err != nil {
		return err
	}
	st.upload = nil
	st.setBroken()
	return nil
}

// shipPart writes the next part, or finds that there is none.
func (st *stream) shipPart(ctx context.Context) error {
	u := st.upload
	if u.unsent == nil {
		part, err := st.packPart()
		if err != nil {
			st.dropUpload()
			return st.notRead(ctx, err)
		}
		if u.unsent = part; part == nil {
			u.end()
			return nil
		}
	}
	part := u.unsent.ref(snapName(st.term, u.index, len(u.Parts)))
	if err := st.write(ctx, part.Name, u.unsent); err != nil {
		return err
	}
	u.Parts, u.Bytes, u.unsent = append(u.Parts, part), u.Bytes+part.Bytes, nil
	u.written = time.Now()
	st.opts.counters.shipped(part.Bytes)
	return nil
}

// packPart makes the next part, and closes the snapshot after the last one; nil when there is none.
func (st *stream) packPart() (*packed, error) {
	u := st.upload
	p := st.pack()
	defer func() { st.unpack(p) }()
	first := u.Records + 1
	for u.from != nil {
		if !u.holds {
			body, ok, err := u.from.Next()
			if err != nil {
				return nil, err
			}
			if !ok {
				u.from.Close()
				u.from = nil
				break
			}
			u.held, u.holds = body, true
		}
		if p.size() > 0 && p.size()+len(u.held) > targetBytes {
			break
		}
		p.add(u.held)
		u.held, u.holds = nil, false
		u.Records++
	}
	if u.Records < first {
		return nil, nil
	}
	return p.seal(header{Kind: kindSnapshot, Log: st.log.ID(), First: first, Last: u.Records, Snapshot: u.Sequence}), nil
}
