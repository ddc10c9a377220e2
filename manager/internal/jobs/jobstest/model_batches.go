package jobstest

import (
	"maps"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// modelSets are the part of the model about jobs that are enqueued together.
type modelSets struct {
	batches []*modelBatch
	// subscribed are the functions that subscribe to an event, sorted.
	subscribed map[string][]string
	// answers are those to calls with an idempotency key, by what was called and the key.
	answers map[string]modelAnswer
}

type modelAnswer struct{ body, answer string }

type modelBatch struct {
	id       string
	members  []*modelJob // deleted ones, too
	callback *modelJob
	// finished are the counts when the last member had ended, nil before.
	finished *jobs.Batch
}

// count counts what became of the members.
func (b *modelBatch) count() jobs.Batch {
	if b.finished != nil {
		return *b.finished
	}
	n := jobs.Batch{Total: len(b.members)}
	for _, j := range b.members {
		switch j.state {
		case jobs.Complete:
			n.Complete++
		case jobs.Failed, jobs.Replayed:
			n.Failed++
		case jobs.Cancelled:
			n.Cancelled++
		case jobs.Expired:
			n.Expired++
		default:
			n.Pending++
		}
	}
	return n
}

// settle queues the callback of a batch when its last member has ended.
func (m *model) settle(b *modelBatch) {
	if b == nil || b.finished != nil {
		return
	}
	n := b.count()
	if n.Pending > 0 {
		return
	}
	b.finished = &n
	if c := b.callback; c != nil && m.jobs[c.id] == c && c.state == jobs.Scheduled && c.dueHour >= never {
		m.requeue(c, 0)
	}
}

// enqueueBatch returns the model as it is after a batch, or the error if a submission of it is refused. Then the model
// stays as it was.
func (m *model) enqueueBatch(all []jobs.Submission, callback *jobs.Submission) (after *model, wantErr string) {
	after = m.clone()
	b := &modelBatch{}
	after.batches = append(after.batches, b)
	for i := range all {
		s := all[i]
		s.Place = i
		wantErr, stands, _ := after.submit(&s)
		if wantErr != "" {
			return m, wantErr
		}
		if stands == "" {
			j := after.created(&s, int(s.Delay/time.Hour))
			j.batch = b
			b.members = append(b.members, j)
		}
	}
	if callback != nil {
		s := *callback
		wantErr, stands, _ := after.submit(&s)
		if wantErr != "" {
			return m, wantErr
		}
		if stands == "" {
			b.callback = after.created(&s, never)
			b.callback.after = b
		}
	}
	after.settle(b)
	return after, ""
}

// clone returns a deep copy.
func (m *model) clone() *model {
	c := *m
	batches := map[*modelBatch]*modelBatch{}
	copies := map[*modelJob]*modelJob{}
	var batch func(*modelBatch) *modelBatch
	job := func(j *modelJob) *modelJob {
		if j == nil || copies[j] != nil {
			return copies[j]
		}
		k := *j
		copies[j] = &k
		k.wal, k.batch, k.after = maps.Clone(j.wal), batch(j.batch), batch(j.after)
		return &k
	}
	batch = func(b *modelBatch) *modelBatch {
		if b == nil || batches[b] != nil {
			return batches[b]
		}
		d := *b
		batches[b] = &d
		d.members = slices.Clone(b.members)
		for i := range d.members {
			d.members[i] = job(d.members[i])
		}
		d.callback = job(b.callback)
		return &d
	}
	c.jobs, c.keys, c.locks = map[string]*modelJob{}, maps.Clone(m.keys), map[string]*modelLock{}
	for id, j := range m.jobs {
		c.jobs[id] = job(j)
	}
	for id, l := range m.locks {
		k := *l
		c.locks[id] = &k
	}
	c.turns = maps.Clone(m.turns)
	c.batches = slices.Clone(m.batches)
	for i := range c.batches {
		c.batches[i] = batch(c.batches[i])
	}
	c.moved = slices.Clone(m.moved)
	return &c
}
