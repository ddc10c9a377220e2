package jobs

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// RecordOverhead is how many bytes a record of the queue counts for besides its key and value: index entries, and in
// memory the table of records and allocation.
const RecordOverhead = 200

// retainedShare is the part of Options.MaxBytes that terminal jobs may take, dead letters included.
const retainedShare = 1. / 4

// part is what a job's bytes count for.
type part uint8

const (
	partNone part = iota
	partLive      // scheduled, queued and active
	partDone      // terminal, except
	partDead      // dead letters
	parts
)

// charge is what a job counts for.
type charge struct {
	part  part
	bytes int64
	owner string
}

// charge returns what the job counts for with its key, payload and result. Claims and heartbeats do not change it.
func (r *record) charge() charge {
	c := charge{part: partDone, bytes: int64(RecordOverhead + len(r.ID) + r.size()), owner: r.Owner}
	extra := func(n int) { c.bytes += int64(RecordOverhead + n) }
	if r.PayloadBlob > 0 {
		extra(len(payloadKey(r.ID)) + r.PayloadBlob)
	}
	if r.ResultBlob > 0 {
		extra(len(resultKey(r.ID)) + r.ResultBlob)
	}
	if r.Key != "" && !r.State.Terminal() {
		extra(len(r.Key) + len(r.ID))
	}
	switch {
	case r.removed:
		c = charge{}
	case r.State == Failed:
		c.part = partDead
	case !r.State.Terminal():
		c.part = partLive
	}
	return c
}

// size is about how long the stored form is, without a lock and a lease, which come and go.
func (r *record) size() int {
	size := 160 + len(r.Function) + len(r.Key) + len(r.Error) + len(r.Owner) + len(r.Event) + len(r.ConcurrencyKey) + len(r.Batch) + len(r.After) + errorsSize(r.Errors)
	if r.PayloadBlob == 0 {
		size += len(r.Payload)
	}
	if r.ResultBlob == 0 {
		size += len(r.Result)
	}
	return size
}

// used are the bytes of jobs.
type used struct {
	parts [parts]int64
	// owners has the live jobs' bytes of each caller that owns some.
	owners map[string]int64
}

func (u *used) total() int64    { return u.parts[partLive] + u.retained() }
func (u *used) retained() int64 { return u.parts[partDone] + u.parts[partDead] }

func (u *used) add(c charge, sign int64) {
	u.parts[c.part] += sign * c.bytes
	if c.part != partLive || c.owner == "" {
		return
	}
	if u.owners == nil {
		u.owners = make(map[string]int64)
	}
	if u.owners[c.owner] += sign * c.bytes; u.owners[c.owner] == 0 {
		delete(u.owners, c.owner)
	}
}

// usage is what a queue on a shared store knows of the jobs' bytes: a count of all jobs, and how its own calls changed them
// since. Other managers' calls are seen with the next count, and so is what a call changed whose outcome is unknown.
type usage struct {
	counting sync.Mutex // held by a count

	mu      sync.Mutex
	now     used
	counted bool
	// since is what changed since the count that runs began, nil if none runs.
	since *used
}

// change replaces what a job counted for.
func (u *usage) change(before, after charge) {
	if before == after {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range []*used{&u.now, u.since} {
		if x != nil {
			x.add(before, -1)
			x.add(after, 1)
		}
	}
}

func (u *usage) beginCount() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.since = new(used)
}

// endCount takes over a count, nil if it failed. Jobs that changed meanwhile may be counted twice until the next one.
func (u *usage) endCount(n *used) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n != nil {
		for p, bytes := range u.since.parts {
			n.parts[p] = max(n.parts[p]+bytes, 0)
		}
		for owner, bytes := range u.since.owners {
			if n.owners == nil {
				n.owners = make(map[string]int64)
			}
			n.owners[owner] = max(n.owners[owner]+bytes, 0)
		}
		maps.DeleteFunc(n.owners, func(_ string, bytes int64) bool { return bytes == 0 })
		u.now, u.counted = *n, true
	}
	u.since = nil
}

// account notes how a transaction that happened changed jobs, and the runs that follow them. Where one process uses the
// store, the transaction itself has booked that.
func (q *Queue) account(rs ...*record) {
	if !q.shared {
		return
	}
	for _, r := range rs {
		q.usage.change(r.stored, r.charge())
		if r.next != nil {
			q.usage.change(charge{}, r.next.charge())
		}
	}
}

// bytesIn returns the bytes of the records of all jobs without the transaction's own changes; known is false before
// they were counted.
func (q *Queue) bytesIn(tx store.Tx) (n int64, known bool, err error) {
	if q.sizes {
		for _, c := range []store.Collection{colJobs, colBlobs, colKeys, colLocks} {
			records, bytes, err := tx.Size(c)
			if err != nil {
				return 0, false, err
			}
			n += bytes + int64(records)*RecordOverhead
		}
		return n, true, nil
	}
	q.usage.mu.Lock()
	defer q.usage.mu.Unlock()
	return q.usage.now.total(), q.usage.counted, nil
}

// admit refuses a new job for which there is no room. Jobs that exist may always grow: by a result, or by a run that
// follows.
func (q *Queue) admit(tx store.Tx, r *record) error {
	have, known, err := q.bytesIn(tx)
	if err != nil || !known {
		return err
	}
	need := r.charge()
	if have+need.bytes > q.opt.MaxBytes {
		return full("", have, q.opt.MaxBytes)
	}
	if most := int64(q.opt.OwnerShare * float64(q.opt.MaxBytes)); need.owner != "" && q.boundsOwners() {
		have, known, err := q.bytesOf(tx, need.owner)
		if err != nil {
			return err
		}
		if known && have+need.bytes > most {
			return full(need.owner, have, most)
		}
	}
	return nil
}

// bytesOf returns the bytes of an owner's live jobs, if they are known.
func (q *Queue) bytesOf(tx store.Tx, owner string) (n int64, known bool, err error) {
	if !q.shared {
		return sum(tx, q.opt.Unreadable, ownerKey(owner))
	}
	q.usage.mu.Lock()
	defer q.usage.mu.Unlock()
	return q.usage.now.owners[owner], true, nil
}

// retained returns the bytes of terminal jobs; 0 if they are not known.
func (q *Queue) retained(ctx context.Context) (n int64, err error) {
	if !q.shared {
		err = q.store.View(ctx, func(tx store.Tx) (err error) {
			n, _, err = sum(tx, q.opt.Unreadable, retainedKey)
			return err
		})
		return n, err
	}
	q.usage.mu.Lock()
	defer q.usage.mu.Unlock()
	return q.usage.now.retained(), nil
}

func (q *Queue) boundsOwners() bool { return q.opt.OwnerShare > 0 && q.opt.OwnerShare < 1 }

// Usage are bytes of jobs' records.
type Usage struct {
	// Total is what Options.MaxBytes bounds, and Retained what of it terminal jobs take, dead letters included. On
	// engines that managers share, changes by other managers are missing until the next count (see CountBytes).
	Total, Retained int64
	// MaxTotal and MaxRetained are their bounds.
	MaxTotal, MaxRetained int64
}

// Usage returns what the jobs take.
func (q *Queue) Usage(ctx context.Context) (Usage, error) {
	u := Usage{MaxTotal: q.opt.MaxBytes, MaxRetained: q.opt.maxRetained()}
	err := q.store.View(ctx, func(tx store.Tx) (err error) {
		u.Total, _, err = q.bytesIn(tx)
		return err
	})
	if err != nil {
		return u, err
	}
	u.Retained, err = q.retained(ctx)
	return u, err
}

func (o *Options) maxRetained() int64 { return int64(retainedShare * float64(o.MaxBytes)) }

// CountBytes counts the bytes of all jobs on a store that managers share, and then removes terminal ones that are beyond
// their share. Run calls it there. Where one process uses the store, they are known without a count.
func (q *Queue) CountBytes(ctx context.Context) (removed int, err error) {
	if !q.shared {
		return q.trim(ctx)
	}
	q.usage.counting.Lock()
	defer q.usage.counting.Unlock()
	q.usage.beginCount()
	n, err := q.countAll(ctx)
	q.usage.endCount(n)
	if err != nil {
		return 0, err
	}
	return q.trim(ctx)
}

// countAll counts the bytes of all jobs.
func (q *Queue) countAll(ctx context.Context) (*used, error) {
	n := new(used)
	var all []segment
	for _, index := range allIndexes {
		all = append(all, segment{index: index})
	}
	for l := (ListQuery{Limit: MaxExamined}); ; {
		next, err := q.walk(ctx, all, &l, func(r *record) error {
			n.add(r.stored, 1)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if l.Cursor = next; next == "" {
			return n, nil
		}
	}
}

// recountEvery is the pause between two counts. A count takes at most a twentieth of the time.
const recountEvery = 10 * time.Second

// runCounts counts now and then, until ctx ends, if managers share the store.
func (q *Queue) runCounts(ctx context.Context, report func(DutyReport, error)) {
	for q.shared {
		began := time.Now()
		removed, err := q.CountBytes(ctx)
		if ctx.Err() != nil || q.base.Err() != nil {
			return
		}
		if report != nil && (err != nil || removed > 0) {
			report(DutyReport{Purged: removed}, err)
		}
		if q.waitOr(ctx, nil, max(recountEvery, 20*time.Since(began)), nil) != nil {
			return
		}
	}
}

// trim removes terminal jobs until they are within their share: the oldest that are no dead letters, and then the oldest
// dead letters.
func (q *Queue) trim(ctx context.Context) (removed int, err error) {
	for _, index := range []string{idxDone, idxDead} {
		after := q.front.After(index)
		for {
			over, err := q.retained(ctx)
			if over -= q.opt.maxRetained(); err != nil || over <= 0 {
				return removed, err
			}
			hits, err := q.scan(ctx, index, store.Range{After: after, Limit: dutyBatch})
			if err != nil {
				return removed, err
			}
			n, err := q.removeFirst(ctx, index, "", hits, over)
			if removed += n; err != nil {
				return removed, err
			}
			if len(hits) < dutyBatch {
				break
			}
			after = &hits[dutyBatch-1]
		}
	}
	return removed, nil
}
