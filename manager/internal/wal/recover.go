package wal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/wal/vfs"
)

// Lock keeps others from opening the log in dir until the result is closed, and changes nothing of the log. A
// *vfs.LockedError when another process has it open.
func Lock(dir string) (io.Closer, error) { return vfs.OS().Lock(path.Join(dir, lockName)) }

// Recovery is what Open found.
type Recovery struct {
	// SnapshotSequence is the last sequence number that the snapshot covers, 0 without one. SnapshotRecords and
	// SnapshotBytes are its size.
	SnapshotSequence uint64
	SnapshotRecords  int
	SnapshotBytes    int64
	// Segments in use or kept, and the number and bytes of the Records after the snapshot.
	Segments int
	Records  int
	LogBytes int64
	// TornBytes were wiped at TornOffset of TornFile: a write that was cut off before it was acknowledged. 0 after a
	// clean stop.
	TornBytes  int64
	TornFile   string
	TornOffset int64
	// Took is the time from taking the lock to the end of the replay.
	Took time.Duration
}

// Open opens the log in dir, creating both when needed, and hands what it
// holds to Options.Restore and Options.Replay before it returns.
//
// Errors: a *vfs.LockedError when another process has dir open; a *CorruptionError when synced data cannot be read
// back, in which case nothing is changed; ctx's error; an error of Restore or Replay; or an error of the file system.
func Open(ctx context.Context, dir string, opts Options) (*Log, error) {
	opts = opts.WithDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if err := makeDir(opts.FS, dir); err != nil {
		return nil, err
	}
	lock, err := opts.FS.Lock(path.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	l := &Log{
		opts:         opts,
		fs:           opts.FS,
		dir:          dir,
		lock:         lock,
		failed:       make(chan struct{}),
		wake:         make(chan struct{}, 1),
		prepareWake:  make(chan struct{}, 1),
		closing:      make(chan struct{}),
		snapshotting: make(chan struct{}, 1),
		prepareAt:    math.MaxInt64,

		mayLead: true, markArmed: true, markDue: time.NewTimer(markDelay),
	}
	if err := l.recover(ctx); err != nil {
		if l.active != nil {
			_ = l.active.close() // err is the error to report
		}
		_ = lock.Close()
		return nil, err
	}
	l.wg.Add(2)
	go l.commitLoop()
	go l.prepareLoop()
	l.wakePreparer()
	return l, nil
}

// Recovery is what Open found.
func (l *Log) Recovery() Recovery { return l.recovery }

// makeDir creates dir and its missing parents, and makes their names durable. A name is an entry of the directory above
// it. makeDir works from the top, and makes each name durable before it creates the next. If it is interrupted, only
// the name of the last directory may not be durable; the next start makes that one durable first.
func makeDir(fs vfs.FS, dir string) error {
	var missing []string
	d := path.Clean(dir)
	for ; ; d = path.Dir(d) {
		_, err := fs.List(d)
		if err == nil {
			break
		}
		if !isNotExist(err) || d == path.Dir(d) {
			return err
		}
		missing = append(missing, d)
	}
	if len(missing) == 0 {
		return nil // create makes its name durable
	}
	if err := syncName(fs, d); err != nil {
		return err
	}
	for _, d := range slices.Backward(missing) {
		if err := fs.MkdirAll(d); err != nil {
			return err
		}
		if err := fs.SyncDir(path.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

// syncName makes the name of an existing directory durable, in case an earlier start created it and was interrupted. If
// the parent directory cannot be synced at all (no permission, or a read-only file system), no start can have created
// the name, and there is nothing to do.
func syncName(fs vfs.FS, dir string) error {
	if err := fs.SyncDir(path.Dir(path.Clean(dir))); !isUnsyncable(err) {
		return err
	}
	return nil
}

func (l *Log) recover(ctx context.Context) error {
	start := time.Now()
	files, err := listFiles(l.fs, l.dir)
	if err != nil {
		return err
	}
	if files.fresh() {
		if err := l.create(files); err != nil {
			return err
		}
	} else if err := l.load(ctx, files); err != nil {
		return err
	}
	l.recovery.Took = time.Since(start)
	return nil
}

// create starts a new log. It removes what an interrupted earlier start left.
func (l *Log) create(files *dirFiles) error {
	if err := syncName(l.fs, l.dir); err != nil {
		return err
	}
	if err := l.removePrepared(files); err != nil {
		return err
	}
	l.discard(files.temps)
	if _, err := rand.Read(l.id[:]); err != nil {
		return err
	}
	l.seed = l.id.seed()
	if err := l.begin(0); err != nil {
		return err
	}
	seg, err := createSegment(l.fs, l.dir, 1, l.opts.SegmentBytes)
	if err != nil {
		return orNoSpace(err)
	}
	h := segmentHeader{l.id, 1, 1, seg.capacity}
	seg.claim(segmentHeaderSize)
	if err := writeSynced(seg.file, h.append(nil), 0); err != nil {
		return errors.Join(err, seg.close())
	}
	l.startAt(seg, segmentHeaderSize, 1, []SegmentInfo{{1, 1, seg.capacity}})
	return nil
}

// startAt prepares the log to append record next at offset off of seg.
func (l *Log) startAt(seg *segment, off int64, next uint64, used []SegmentInfo) {
	l.active, l.tail, l.segments = seg, off, used
	l.nextSegment = seg.number + 1
	l.durable.Store(next - 1)
	l.last.Store(next - 1)
	l.pending.Store(newBatch(next))
	l.recovery.Segments = len(used)
	l.stats.logBytes = l.recovery.LogBytes
}

// load reads an existing log, passes it to Options.Restore and Options.Replay, and repairs its tail.
func (l *Log) load(ctx context.Context, files *dirFiles) error {
	l.id, l.seed = files.id, files.id.seed()
	if err := l.restore(ctx, files); err != nil {
		return err
	}
	used, kept, obsolete, err := files.chain()
	if err != nil {
		return err
	}
	var buf []byte
	var end scanEnd
	for i, f := range used {
		if buf, err = readSegment(l.fs, f, buf); err != nil {
			return err
		}
		end, err = scanRecords(buf, segmentHeaderSize, f.header.first, l.seed, func(off int64, r record) error { return l.replay(ctx, r) })
		if err != nil {
			return err
		}
		if i < len(used)-1 {
			if next := used[i+1].header.first; end.next != next {
				return sealedDamage(f.path, end, next)
			}
		}
	}
	last := used[len(used)-1]
	if damage := checkTail(last.path, buf, end, files.followers, l.seed); damage != nil {
		return damage
	}
	if damage := shortOfSnapshot(last.path, end, l.snapshot.seq); damage != nil {
		return damage
	}
	seg, err := l.repair(last, buf, end)
	if err != nil {
		return err
	}
	var infos []SegmentInfo
	for _, f := range slices.Concat(kept, used) {
		infos = append(infos, SegmentInfo{f.number, f.header.first, f.header.capacity})
	}
	l.startAt(seg, end.off, end.next, infos)
	// The snapshot's name must be durable before the files it replaces are deleted.
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	for _, f := range obsolete {
		files.temps = append(files.temps, f.path)
	}
	if len(files.temps)+len(files.followers)+len(files.oldSnapshots) == 0 {
		return nil
	}
	if err := l.removePrepared(files); err != nil {
		return err
	}
	l.discard(append(files.temps, files.oldSnapshots...))
	// A deleted segment that came back after a crash would hold dead records whose numbers are in use again.
	return l.fs.SyncDir(l.dir)
}

// removePrepared deletes the segments that were prepared and never used. Their numbers are assigned again, so none of
// them may stay.
func (l *Log) removePrepared(files *dirFiles) error {
	var failed error
	for _, f := range files.followers {
		if err := l.fs.Remove(f.path); !isNotExist(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (l *Log) begin(snapshot uint64) error {
	return InspectOptions{Begin: l.opts.Begin}.begin(l.id, snapshot)
}

func (l *Log) replay(ctx context.Context, r record) error {
	if r.seq <= l.snapshot.seq {
		return nil
	}
	if r.seq%1024 == 0 && ctx.Err() != nil {
		return ctx.Err()
	}
	l.recovery.Records++
	l.recovery.LogBytes += int64(r.size())
	if l.opts.Synced != nil && r.ahead == 0 {
		if err := l.opts.Synced(); err != nil {
			return err
		}
	}
	if l.opts.Replay == nil {
		return nil
	}
	return l.opts.Replay(r.seq, r.body)
}

// repair leaves the last segment as if the process had just written and synced it. It writes the last batch again,
// wipes everything after it, and syncs both.
//
// Zeros that can be read need not be on the disk: an earlier start may have written them and died when the sync failed.
// So repair wipes the rest of the segment unless the log ends with a mark, because a log gets a mark only after its
// start has finished. A mark that is followed by torn data proves nothing. repair wipes it first, so that it can never
// be read together with such zeros.
func (l *Log) repair(f segmentFile, buf []byte, end scanEnd) (*segment, error) {
	file, err := l.fs.Open(f.path, true)
	if err != nil {
		return nil, err
	}
	seg := &segment{number: f.number, path: f.path, capacity: f.header.capacity, file: file}
	used := usedLength(buf)
	rest := min(end.off+recordHeaderSize, seg.capacity) // after the mark, or after where it would be
	clean := end.marked && used <= rest
	if torn := used - end.off; torn > 0 && !clean {
		l.recovery.TornBytes, l.recovery.TornFile, l.recovery.TornOffset = torn, f.path, end.off
		clear(buf[end.off:used])
	}
	from := end.batch
	if from == segmentHeaderSize {
		from = 0 // that batch wrote the header too
	}
	err = writeSynced(file, buf[from:rest], from)
	seg.filled.Store(rest)
	if err == nil && !clean {
		err = writeSynced(file, buf[rest:], rest)
		seg.filled.Store(seg.capacity)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return seg, nil
}

func writeSynced(file vfs.File, b []byte, off int64) error {
	if err := writeFull(file, b, off); err != nil {
		return err
	}
	return file.Datasync()
}

// sealedDamage reports a segment that ends before the next one begins.
func sealedDamage(path string, end scanEnd, next uint64) *CorruptionError {
	reason := fmt.Sprintf("the next segment begins with sequence %d", next)
	if end.why != nil {
		reason = end.why.Error() + "; " + reason
	}
	return &CorruptionError{path, end.off, end.next, reason}
}

// checkTail returns nil for a torn tail and an error for damage. followers are the files after the last segment with a
// header.
func checkTail(path string, buf []byte, end scanEnd, followers []follower, seed uint32) *CorruptionError {
	if off, r, ok := findProof(trim(buf), end.off, end.next, seed); ok {
		return &CorruptionError{path, end.off, end.next, tailReason(end) + fmt.Sprintf("; the data at offset %d proves that everything before sequence %d was synced", off, r.durableBefore())}
	}
	for _, f := range followers {
		if f.empty() {
			continue
		}
		if off, r, ok := findProof(f.buf, -1, end.next, seed); ok {
			return &CorruptionError{f.path, 0, end.next, fmt.Sprintf("%v; the data at offset %d proves that everything before sequence %d was synced", f.why, off, r.durableBefore())}
		}
		if end.why == nil {
			continue
		}
		if _, r, ok := findRecord(f.buf, 0, end.next, seed, func(record) bool { return true }); ok {
			return &CorruptionError{path, end.off, end.next, tailReason(end) + fmt.Sprintf("; %s holds sequence %d, so this segment was synced", f.path, r.seq)}
		}
	}
	return nil
}

// shortOfSnapshot reports a log that ends before its snapshot does. That is damage, because a snapshot is put in force
// only when every record it replaces is durable.
func shortOfSnapshot(path string, end scanEnd, seq uint64) *CorruptionError {
	if end.next > seq {
		return nil
	}
	return &CorruptionError{path, end.off, end.next, fmt.Sprintf("the log ends here, before sequence %d of its snapshot", seq)}
}

func tailReason(end scanEnd) string {
	if end.why != nil {
		return end.why.Error()
	}
	return "no record"
}

// discard deletes files that are no longer needed, and those that an earlier call could not delete. It reports a file
// that cannot be deleted once, continues with the others, and tries again at the next call. Only one call runs at a
// time: in Open, or under snapshotting.
func (l *Log) discard(paths []string) {
	failed := make(map[string]error)
	paths = append(l.garbage, paths...)
	l.garbage = nil
	for _, p := range paths {
		if err := l.fs.Remove(p); err != nil && !isNotExist(err) {
			failed[p] = err
			l.garbage = append(l.garbage, p)
		}
	}
	l.mu.Lock()
	before := l.undeleted
	l.undeleted = failed
	l.mu.Unlock()
	if l.opts.OnUndeleted == nil {
		return
	}
	for _, p := range l.garbage {
		if before[p] == nil {
			l.opts.OnUndeleted(p, failed[p])
		}
	}
}
