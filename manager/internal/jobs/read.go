package jobs

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Get returns a job with its payload and result, or ErrNotFound.
func (q *Queue) Get(ctx context.Context, id string) (Job, error) {
	if err := CheckID("id", id); err != nil {
		return Job{}, err
	}
	var job Job
	err := q.store.View(ctx, func(tx store.Tx) error {
		r, err := find(tx, id)
		if err != nil {
			return err
		}
		if err := r.fetch(tx); err != nil {
			return err
		}
		job = r.jobNow(tx)
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	return job, nil
}

// Holder returns the live job that holds a key, without a payload or result over 512 bytes, or ErrNotFound.
func (q *Queue) Holder(ctx context.Context, key string) (Job, error) {
	if err := checkKey("key", key, 1); err != nil {
		return Job{}, err
	}
	var job Job
	err := q.store.View(ctx, func(tx store.Tx) error {
		r, err := keyHolder(tx, now(tx), key)
		if err == nil && r == nil {
			err = NotFound("job with the key", key)
		}
		if err == nil {
			job = r.jobNow(tx)
		}
		return err
	})
	return job, err
}

// Holders are the ids of the live jobs that hold the key and the deduplication lock of a job, empty if none does, or if
// that cannot be read.
type Holders struct {
	Key, Lock string
	// LockUntil is when the lock ends at the latest.
	LockUntil time.Time
}

// Holders returns who holds what a job of this id has or had; see Holders.
func (q *Queue) Holders(ctx context.Context, id string) (Holders, error) {
	var h Holders
	err := q.store.View(ctx, func(tx store.Tx) error {
		h = Holders{}
		r, err := find(tx, id)
		if err != nil {
			return err
		}
		if r.Key != "" {
			holder, err := keyHolder(tx, now(tx), r.Key)
			if err != nil && !q.opt.Unreadable.Met(err) {
				return err
			}
			if err == nil && holder != nil {
				h.Key = holder.ID
			}
		}
		if r.LockID == "" {
			return nil
		}
		holder, err := lockHolder(tx, now(tx), r.LockID)
		if err == nil && holder != nil {
			var l *lock
			if l, err = loadLock(tx, r.LockID); err == nil {
				h.Lock, h.LockUntil = holder.ID, l.until
			}
		}
		if q.opt.Unreadable.Met(err) {
			err = nil
		}
		return err
	})
	return h, err
}

// Wait returns the job as soon as it is terminal, or in its present state after the given time, at most MaxWait.
func (q *Queue) Wait(ctx context.Context, id string, wait time.Duration) (Job, error) {
	if err := cmp.Or(CheckID("id", id), checkDuration("wait_ms", wait, 0, MaxWait)); err != nil {
		return Job{}, err
	}
	var job Job
	err := q.await(ctx, topicDone+id, wait, func() (_ bool, err error) {
		job, err = q.Get(ctx, id)
		return job.State.Terminal(), err
	})
	if err != nil {
		return Job{}, err
	}
	return job, nil
}

// ListQuery selects jobs.
type ListQuery struct {
	// Function, State and Owner restrict the list; zero values do not.
	Function string
	State    State
	Owner    string
	// Key and ConcurrencyKey select jobs with just these; empty: all.
	Key, ConcurrencyKey string
	// OlderThan selects jobs that ended at least this long ago, and, of those that have not ended, jobs that were
	// submitted at least this long ago: 0 to MaxDelay.
	OlderThan time.Duration
	// NewerThan selects jobs for which that is less long ago: more than OlderThan, at most MaxDelay; 0: all.
	NewerThan time.Duration
	// Error selects jobs whose last error has the same ErrorGroup; empty: all.
	Error string
	// ErrorText selects jobs whose last error contains it, in upper or lower case: at most MaxErrorTextBytes; empty: all.
	ErrorText string
	// Limit: 1 to MaxLimit, 100 when 0.
	Limit int
	// Cursor of the previous page, empty for the first.
	Cursor string
	// Payloads: include payloads and results. A page then ends when they
	// exceed MaxAnswerBytes.
	Payloads bool
}

// Page is one page of a list.
type Page struct {
	Jobs []Job
	// Cursor leads to the next page; empty when this is the last one.
	Cursor string
}

// segment is a part of an index that a list reads.
type segment struct {
	index    string
	from, to string
	// class, if set, is the last letter of the sort keys that match.
	class class
	// active, if set, is the function of the sort keys of idxActive that match.
	active string
}

func (s *segment) has(sortKey string) bool {
	switch {
	case s.class != 0:
		return sortKey != "" && class(sortKey[len(sortKey)-1]) == s.class
	case s.active != "":
		return activeFunction(sortKey) == s.active
	}
	return true
}

// MaxExamined bounds the index entries that one page examines. A page of a rare kind of job may therefore be short, or
// empty, and still have a cursor.
const MaxExamined = 10_000

// viewChunk is how many jobs a list reads in one View. A list is not a snapshot: on stores with optimistic transactions
// a long one would never succeed under load.
const viewChunk = 16

// List returns jobs page by page: active jobs first, then queued, scheduled, failed, replayed, expired, cancelled and complete ones.
// Queued jobs are in claim order, those with concurrency keys last and by their keys, active jobs by the end of their lease, all others oldest first. A job that changes
// state between two pages may be missed or appear twice. Jobs that cannot be read are left out.
func (q *Queue) List(ctx context.Context, l ListQuery) (Page, error) {
	l.Limit = cmp.Or(l.Limit, 100)
	if err := l.check(); err != nil {
		return Page{}, err
	}
	var page Page
	next, err := q.walk(ctx, l.segments(), &l, func(r *record) error {
		page.Jobs = append(page.Jobs, r.job())
		return nil
	})
	page.Cursor = next
	return page, err
}

// segments returns where the jobs of a query are.
func (l *ListQuery) segments() []segment {
	wanted := func(s State) bool { return l.State == 0 || l.State == s }
	var out []segment
	add := func(s State, c class, index string) {
		switch {
		case !wanted(s):
		case l.Function != "":
			from, to := functionRange(l.Function, c)
			out = append(out, segment{index: idxFunction, from: from, to: to})
		case index == idxDone && l.State != 0:
			out = append(out, segment{index: index, class: c})
		default:
			out = append(out, segment{index: index})
		}
	}
	if wanted(Active) {
		out = append(out, segment{index: idxActive, active: l.Function})
	}
	add(Queued, classQueued, idxQueued)
	add(Queued, classKeyed, idxKeyed)
	add(Scheduled, classScheduled, idxScheduled)
	add(Failed, classDead, idxDead)
	if l.State == 0 && l.Function == "" {
		return append(out, segment{index: idxDone})
	}
	add(Replayed, classReplayed, idxDone)
	add(Expired, classExpired, idxDone)
	add(Cancelled, classCancelled, idxDone)
	add(Complete, classComplete, idxDone)
	return out
}

// walk reads the segments from the query's cursor on and calls f for the jobs it finds, up to the query's limits. It
// returns the next cursor.
func (q *Queue) walk(ctx context.Context, segments []segment, l *ListQuery, f func(*record) error) (string, error) {
	at, err := parseCursor(l.Cursor)
	if err != nil {
		return "", err
	}
	if at.Part >= len(segments) {
		return "", invalid("cursor", l.Cursor, "the cursor of an earlier answer to the same query")
	}
	found, bytes, examined := 0, 0, 0
	for ; at.Part < len(segments); at = (store.Cursor{Part: at.Part + 1}) {
		s := segments[at.Part]
		for {
			r := store.Range{From: s.from, To: s.to, After: at.After(), Limit: min(256, MaxExamined-examined)}
			hits, err := q.scan(ctx, s.index, r)
			if err != nil {
				return "", err
			}
			examined += len(hits)
			page := &chunkReader{q: q, query: l, segment: s, hits: hits}
			for {
				rec, hit, err := page.next(ctx)
				if err != nil {
					return "", err
				}
				if rec == nil {
					break
				}
				if bytes += len(rec.Payload) + len(rec.Result) + len(rec.Error); found > 0 && bytes > MaxAnswerBytes {
					return at.String(), nil
				}
				if err := f(rec); err != nil {
					return "", err
				}
				at.Hit = hit
				if found++; found == l.Limit {
					return at.String(), nil
				}
			}
			if len(hits) < r.Limit {
				break
			}
			at.Hit = hits[len(hits)-1]
			if examined >= MaxExamined {
				return at.String(), nil
			}
		}
	}
	return "", nil
}

// chunkReader reads the jobs of hits, a few in each View.
type chunkReader struct {
	q       *Queue
	query   *ListQuery
	segment segment
	hits    []store.Hit

	ready     []*record
	readyHits []store.Hit
}

// next returns the next job that still has the hit's index entry, and that the query selects; nil at the end.
func (c *chunkReader) next(ctx context.Context) (*record, store.Hit, error) {
	for len(c.ready) == 0 {
		var chunk []store.Hit
		for len(c.hits) > 0 && len(chunk) < viewChunk {
			h := c.hits[0]
			c.hits = c.hits[1:]
			if c.segment.has(h.SortKey) {
				chunk = append(chunk, h)
			}
		}
		if len(chunk) == 0 {
			return nil, store.Hit{}, nil
		}
		err := c.q.store.View(ctx, func(tx store.Tx) error {
			c.ready, c.readyHits = nil, nil
			ids := make([]store.ID, len(chunk))
			for i, h := range chunk {
				ids[i] = store.ID{Collection: colJobs, Key: h.Key}
			}
			if err := tx.Prefetch(ids); err != nil {
				return err
			}
			for _, h := range chunk {
				r, err := load(tx, h.Key)
				if err == nil && r != nil && !c.query.has(r, now(tx)) {
					continue
				}
				if err == nil && r != nil && c.query.Payloads {
					err = r.fetch(tx)
				}
				if c.q.opt.Unreadable.Met(err) {
					continue
				}
				if err != nil {
					return err
				}
				if r == nil || !r.at(c.segment.index, h.SortKey) {
					continue
				}
				if !c.query.Payloads {
					r.Payload, r.Result = nil, nil
				}
				if r.Lease != nil {
					r.Lease.ExpiresIn = r.Lease.left(tx)
				}
				c.ready = append(c.ready, r)
				c.readyHits = append(c.readyHits, h)
			}
			return nil
		})
		if err != nil {
			return nil, store.Hit{}, err
		}
	}
	r, h := c.ready[0], c.readyHits[0]
	c.ready, c.readyHits = c.ready[1:], c.readyHits[1:]
	return r, h, nil
}

// scan reads a page of an index of colJobs in a View of its own.
func (q *Queue) scan(ctx context.Context, index string, r store.Range) (hits []store.Hit, err error) {
	err = q.store.View(ctx, func(tx store.Tx) (err error) {
		hits, err = tx.Scan(colJobs, index, r)
		return err
	})
	return hits, err
}

// pages reads a part of an index page by page. The loop ends after an error.
func (q *Queue) pages(ctx context.Context, index string, r store.Range) iter.Seq2[[]store.Hit, error] {
	return func(yield func([]store.Hit, error) bool) {
		for {
			hits, err := q.scan(ctx, index, r)
			if !yield(hits, err) || err != nil || len(hits) < r.Limit {
				return
			}
			r.After = &hits[len(hits)-1]
		}
	}
}
