package main

import "context"

// column is a load.
type column struct {
	name           string
	what           string // pairs, appends, appendsApart, claims or worked
	callers, batch int    // batch: pairs or entries that are made together
}

// system is what a row measures: what it can be loaded with, nil for the rest.
type system struct {
	keys  keyStore
	log   func(context.Context) (*appender, error)
	queue *queue
}

// load is what a system does in a column; nil if it cannot.
func (s settings) load(c column, on system) *load {
	switch {
	case c.what == "pairs" && on.keys != nil:
		return on.keys.pairs(s.duration, c.callers, c.batch)
	case (c.what == "appends" || c.what == "appendsApart") && on.log != nil:
		return appends(s.duration, c, on.log)
	case on.queue != nil:
		return s.queueLoad(c, on.queue)
	}
	return nil
}

// queue is a job queue, or what is used as one.
type queue struct {
	// enqueue submits one durable job with its own key, to be claimed or to be worked.
	enqueue func(ctx context.Context, what, key string) error
	// claim takes one job durably; false when there is none. nil: the queue hands out no single jobs.
	claim func(ctx context.Context, worker int) (bool, error)
	// work runs no-op handlers until n jobs are complete; nil: the queue runs none.
	work func(ctx context.Context, concurrency, n int) error
}

func (s settings) queueLoad(c column, q *queue) *load {
	fill := func(ctx context.Context) error { return q.fill(ctx, c.what, s.jobs) }
	switch {
	case c.what == "claims" && q.claim != nil:
		return &load{prepare: fill, run: func(ctx context.Context) (int, error) {
			return timedCalls(ctx, s.duration, c.callers, func(ctx context.Context, worker, _ int) error {
				ok, err := q.claim(ctx, worker)
				if err == nil && !ok {
					err = errNoMore
				}
				return err
			})
		}}
	case (c.what == "claims" || c.what == "worked") && q.work != nil: // a queue without a call for a claim completes what it claims
		return &load{prepare: fill, run: func(ctx context.Context) (int, error) { return s.jobs, q.work(ctx, c.callers, s.jobs) }}
	}
	return nil
}
