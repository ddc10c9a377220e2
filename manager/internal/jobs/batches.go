package jobs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Batch is a set of jobs that were submitted together, and what became of them.
type Batch struct {
	ID string
	// Total jobs belong to it. Pending ones have not ended; the others did as the counts say. Deleted jobs count as
	// cancelled ones, and as failed ones if they could not be read. Replayed jobs count as failed ones.
	Total, Pending, Complete, Failed, Cancelled, Expired int
	CreatedAt                                            time.Time
	// FinishedAt is when the last job ended; zero before. From then on the counts stay, also if an operator runs jobs again.
	FinishedAt time.Time
	// Callback is the id of the job that is queued then, empty if there is none.
	Callback string
	// Owner is that of the jobs.
	Owner string
}

const batchVersion = 1

func (b *Batch) counts() []*int {
	return []*int{&b.Total, &b.Pending, &b.Complete, &b.Failed, &b.Cancelled, &b.Expired}
}

func (b *Batch) encode() []byte {
	out := []byte{batchVersion}
	for _, n := range b.counts() {
		out = binary.AppendUvarint(out, uint64(*n))
	}
	out = appendStamp(appendStamp(out, b.CreatedAt), b.FinishedAt)
	return codec.AppendString(codec.AppendString(out, b.Callback), b.Owner)
}

func decodeBatch(id string, v []byte) (*Batch, error) {
	d := decoder{codec.NewReader(v)}
	d.version(batchVersion)
	b := &Batch{ID: id}
	for _, n := range b.counts() {
		*n = d.Count(MaxBatchJobs)
	}
	b.CreatedAt, b.FinishedAt, b.Callback, b.Owner = d.stamp(), d.stamp(), d.String(), d.String()
	if d.Err() == nil && (len(d.Rest()) > 0 || b.CreatedAt.IsZero() || (b.Pending > 0) != b.FinishedAt.IsZero() ||
		b.Total != b.Pending+b.Complete+b.Failed+b.Cancelled+b.Expired || b.Callback != "" && CheckID("", b.Callback) != nil) {
		d.fail()
	}
	if d.Err() != nil {
		return nil, unreadable(colBatches, id, "%v", d.Err())
	}
	return b, nil
}

func (b *Batch) entries() []store.Entry {
	all := []store.Entry{{Index: idxCreated, SortKey: timeKey(b.CreatedAt)}}
	if !b.FinishedAt.IsZero() {
		all = append(all, store.Entry{Index: idxDone, SortKey: timeKey(b.FinishedAt)})
	}
	return all
}

func (b *Batch) save(tx store.Tx) error { return tx.Put(colBatches, b.ID, b.encode(), b.entries()...) }

func loadBatch(tx store.Tx, id string) (*Batch, error) {
	b, err := store.Read(tx, colBatches, id, decodeBatch)
	if b == nil && err == nil {
		err = NotFound("batch", id)
	}
	return b, err
}

// PreparedBatch is a checked batch, ready for EnqueueBatchTx. It can be used in any number of runs of one update function,
// and only once.
type PreparedBatch struct {
	id       string
	owner    string
	jobs     []*Prepared
	callback *Prepared // nil if there is none
}

// Len is the number of its jobs, without the callback.
func (p *PreparedBatch) Len() int { return len(p.jobs) }

// unset is the run_at of a callback until its batch has finished.
var unset = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// WaitsForBatch reports whether the job is a callback whose batch has not finished. Its RunAt says nothing then.
func (j *Job) WaitsForBatch() bool {
	return j.State == Scheduled && j.After != "" && j.RunAt.Equal(unset)
}

// PrepareBatch checks the jobs of a batch, and the job that is queued when all of them have ended, nil for none. It returns
// a *FieldError that names the first invalid field, such as jobs[3].key.
func (q *Queue) PrepareBatch(jobs []Submission, callback *Submission, owner string) (*PreparedBatch, error) {
	if len(jobs) == 0 || len(jobs) > MaxBatchJobs {
		return nil, invalidInt("jobs", int64(len(jobs)), "1 to "+strconv.Itoa(MaxBatchJobs)+" jobs")
	}
	b := &PreparedBatch{id: q.ids.next(), owner: owner}
	one := func(field string, s Submission) (*Prepared, error) {
		s.Owner = owner
		p, err := q.Prepare(s)
		var fe *FieldError
		if errors.As(err, &fe) {
			in := *fe
			in.Field = field + "." + fe.Field
			err = &in
		}
		return p, err
	}
	for i, s := range jobs {
		s.Batch, s.Place = b.id, min(i, MaxBatch-1)
		p, err := one("jobs["+strconv.Itoa(i)+"]", s)
		if err != nil {
			return nil, err
		}
		b.jobs = append(b.jobs, p)
	}
	if callback == nil {
		return b, nil
	}
	s := *callback
	const allowed = "no such field: it runs when all jobs have ended"
	switch {
	case !s.RunAt.IsZero():
		return nil, invalid("callback.run_at", s.RunAt.Format(time.RFC3339), allowed)
	case s.Delay != 0:
		return nil, invalid("callback.delay_ms", s.Delay.String(), allowed)
	}
	s.After = b.id
	var err error
	b.callback, err = one("callback", s)
	return b, err
}

// EnqueueBatchTx enqueues a batch inside the caller's transaction, which must be undone if it returns an error. A job
// that another one stands for, because of its deduplication or its key, does not belong to the batch. The outcomes
// are those of the jobs in their order, and then of the callback. After the transaction succeeded the caller should pass each outcome to Committed, and
// an error to Refused.
func (q *Queue) EnqueueBatchTx(tx store.Tx, p *PreparedBatch) (*Batch, []Outcome, error) {
	all := p.jobs
	if p.callback != nil {
		all = append(all[:len(all):len(all)], p.callback)
	}
	if err := PrefetchTx(tx, all); err != nil {
		return nil, nil, err
	}
	b := &Batch{ID: p.id, CreatedAt: now(tx), Owner: p.owner}
	outs := make([]Outcome, len(all))
	for i, one := range all {
		var err error
		if outs[i], err = q.EnqueueTx(tx, one); err != nil {
			return nil, nil, err
		}
		if outs[i].Created() && i < len(p.jobs) {
			b.Total++
		}
	}
	b.Pending = b.Total
	if p.callback != nil {
		out := &outs[len(outs)-1]
		if b.Callback = out.Job.ID; !out.Created() {
			b.Callback = "" // a job that was there before does not wait for this batch
		}
	}
	if b.Pending == 0 {
		return b, outs, finishBatch(tx, b)
	}
	return b, outs, b.save(tx)
}

// finishBatch notes that the last job has ended, and queues the callback.
func finishBatch(tx store.Tx, b *Batch) error {
	b.FinishedAt = now(tx)
	tx.Notify(topicBatch + b.ID)
	if err := b.save(tx); err != nil || b.Callback == "" {
		return err
	}
	r, err := load(tx, b.Callback)
	if errors.Is(err, store.ErrUnreadable) {
		return nil
	}
	if err != nil || r == nil || r.After != b.ID || !r.WaitsForBatch() {
		return err // an operator has run, cancelled or deleted it
	}
	// If it cannot wait with its concurrency key, it stays scheduled, and nothing was written. An operator can run it.
	if err := r.requeue(tx, 0); !errors.Is(err, store.ErrUnreadable) && !errors.Is(err, ErrInvalid) {
		return err
	}
	return nil
}

// settle counts in its batch that the job ends as after, and takes an end back when an operator runs the job again before
// the batch has finished. A batch that cannot be read does not keep its jobs from ending.
func (r *record) settle(tx store.Tx, after State) error {
	before := r.was
	r.was = after
	if r.Batch == "" || before == 0 || before.Terminal() == after.Terminal() {
		return nil
	}
	b, err := loadBatch(tx, r.Batch)
	switch {
	case errors.Is(err, store.ErrUnreadable), errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case !b.FinishedAt.IsZero():
		return nil
	}
	count := func(s State, n int) {
		switch s {
		case Complete:
			b.Complete += n
		case Cancelled:
			b.Cancelled += n
		case Expired:
			b.Expired += n
		default:
			b.Failed += n
		}
		b.Pending -= n
	}
	if before.Terminal() {
		count(before, -1)
		return b.save(tx)
	}
	if count(after, 1); b.Pending > 0 {
		return b.save(tx)
	}
	return finishBatch(tx, b)
}

// Batch returns a batch, after at most wait as soon as all of its jobs have ended: 0 to MaxWait. A batch that is not there
// any more is ErrNotFound.
func (q *Queue) Batch(ctx context.Context, id string, wait time.Duration) (Batch, error) {
	if err := cmp.Or(CheckID("id", id), checkDuration("wait_ms", wait, 0, MaxWait)); err != nil {
		return Batch{}, err
	}
	var b *Batch
	err := q.await(ctx, topicBatch+id, wait, func() (bool, error) {
		err := q.store.View(ctx, func(tx store.Tx) (err error) {
			b, err = loadBatch(tx, id)
			return err
		})
		return err == nil && !b.FinishedAt.IsZero(), err
	})
	if err != nil {
		return Batch{}, err
	}
	return *b, nil
}

// BatchPage is one page of batches.
type BatchPage struct {
	Batches []Batch
	// Cursor leads to the next page; empty when this is the last one.
	Cursor string
}

// Batches lists batches, the oldest first. limit: 1 to MaxLimit, 100 when 0.
func (q *Queue) Batches(ctx context.Context, limit int, after string) (BatchPage, error) {
	limit, bad := PageLimit(limit)
	at, err := parseCursor(after)
	if err := cmp.Or(bad, err); err != nil {
		return BatchPage{}, err
	}
	var page BatchPage
	err = q.store.View(ctx, func(tx store.Tx) error {
		page = BatchPage{}
		hits, err := tx.Scan(colBatches, idxCreated, store.Range{After: at.After(), Limit: limit})
		if err != nil {
			return err
		}
		for _, h := range hits {
			b, err := loadBatch(tx, h.Key)
			switch {
			case err == nil:
				page.Batches = append(page.Batches, *b)
			case !errors.Is(err, ErrNotFound) && !q.opt.Unreadable.Met(err):
				return err
			}
		}
		if len(hits) == limit {
			page.Cursor = store.Cursor{Hit: hits[limit-1]}.String()
		}
		return nil
	})
	return page, err
}

// retainBatches removes batches that finished too long ago, and the oldest of too many, as retain does with jobs.
func (q *Queue) retainBatches(ctx context.Context) (removed int, err error) {
	var after *store.Hit
	for {
		have, err := q.store.Len(ctx, colBatches, idxDone)
		if err != nil {
			return removed, err
		}
		var n int
		var stays bool // so do those after it
		var hits []store.Hit
		err = q.store.Update(ctx, func(tx store.Tx) (err error) {
			n, stays = 0, false
			old := now(tx).Add(-q.opt.RetainFor)
			if hits, err = tx.Scan(colBatches, idxDone, store.Range{After: after, Limit: dutyBatch, Claim: true}); err != nil {
				return err
			}
			for _, h := range hits {
				b, err := loadBatch(tx, h.Key)
				if err != nil && !errors.Is(err, ErrNotFound) && !q.opt.Unreadable.Met(err) {
					return err
				}
				if err != nil {
					continue
				}
				if stays = b.FinishedAt.After(old) && have-n <= q.opt.RetainCount; stays {
					break
				}
				n++
				if err := tx.Delete(colBatches, h.Key); err != nil {
					return err
				}
			}
			return nil
		})
		if removed += n; err != nil || stays || len(hits) < dutyBatch {
			return removed, err
		}
		after = &hits[len(hits)-1]
	}
}
