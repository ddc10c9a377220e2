package jobstest

import (
	"errors"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/submit"
)

// submitTo makes the submitter. Its answers are the ids of jobs or of a batch.
func (p *property) submitTo(s store.Store) {
	l, err := ledger.New(s, ledger.Options{CommittedTTL: api.MaxTTL})
	if err != nil {
		p.Fatal(err)
	}
	p.submitter = submit.New(l, p.q, submit.Encoder{
		Sent: func(_ string, outs []jobs.Outcome) (int, []byte) {
			p.outs = outs
			var all []string
			for _, out := range outs {
				all = append(all, out.Job.ID)
			}
			return 202, []byte(strings.Join(all, " "))
		},
		Batch: func(b *jobs.Batch, outs []jobs.Outcome) (int, []byte) {
			p.outs = outs
			return 202, []byte(b.ID)
		},
	})
}

// once makes a call that may have an idempotency key, one of keys. wantErr is what the model expects of a call that is not a
// repetition, and done records that it happened.
func (p *property) once(t *rapid.T, what string, keys []string, wantErr string, enqueue func(*submit.Call) (submit.Answer, error), done func(answer string)) {
	c := submit.Call{
		Key:  rapid.SampledFrom(keys).Draw(t, "idempotency key"),
		Body: []byte(rapid.SampledFrom([]string{`{"n":1}`, `{"n":1}`, `{"n":1}`, `{"n":2}`}).Draw(t, "body")),
	}
	first, known := p.m.answers[what+" "+c.Key]
	a, err := enqueue(&c)
	switch {
	case known && first.body != string(c.Body):
		if !errors.Is(err, ledger.ErrFingerprintMismatch) {
			t.Fatalf("%s with the key of another: %+v, %v", what, a, err)
		}
	case known:
		if err != nil || !a.Replayed || string(a.Body) != first.answer {
			t.Fatalf("%s again: %+v, %v, want the answer %s", what, a, err, first.answer)
		}
	default:
		p.wantErr(what, err, wantErr)
		if err != nil {
			return
		}
		if a.Replayed {
			t.Fatalf("%s for the first time: %+v", what, a)
		}
		if done(string(a.Body)); c.Key != "" {
			p.m.answers[what+" "+c.Key] = modelAnswer{string(c.Body), string(a.Body)}
		}
	}
}

var genEvent = rapid.SampledFrom([]string{"paid", "sent"})

func (p *property) subscribe(t *rapid.T) {
	event, f := genEvent.Draw(t, "event"), genFunction.Draw(t, "function")
	all := slices.Clone(p.m.subscribed[event])
	if i, found := slices.BinarySearch(all, f); found {
		_, err := p.q.Unsubscribe(p.ctx, event, f)
		p.wantErr("unsubscribe", err, "")
		p.m.subscribed[event] = slices.Delete(all, i, i+1)
	} else {
		_, err := p.q.Subscribe(p.ctx, event, f)
		p.wantErr("subscribe", err, "")
		p.m.subscribed[event] = slices.Insert(all, i, f)
	}
}

func (p *property) send(t *rapid.T) {
	event := genEvent.Draw(t, "event")
	s := jobs.Submission{Event: event, Payload: []byte("1"), MaxAttempts: rapid.IntRange(1, 3).Draw(t, "max_attempts"),
		ConcurrencyKey: rapid.SampledFrom([]string{"", "a"}).Draw(t, "concurrency key")}
	prepared, err := p.q.PrepareEvent(s)
	p.wantErr("prepare the event", err, "")
	p.once(t, "send "+event, []string{"", "once", "once"}, "", func(c *submit.Call) (submit.Answer, error) {
		return p.submitter.Event(p.ctx, c, event, prepared)
	}, func(string) {
		if len(p.outs) != len(p.m.subscribed[event]) {
			t.Fatalf("send: %d jobs, want one for each of %v", len(p.outs), p.m.subscribed[event])
		}
		var made []jobs.Job
		for i, f := range p.m.subscribed[event] {
			one := s
			one.ID, one.Function, one.Place = p.outs[i].Job.ID, f, i
			p.m.created(&one, 0)
			made = append(made, p.outs[i].Job)
		}
		p.learn(made...)
	})
}

func (p *property) batch(t *rapid.T) {
	var all []jobs.Submission
	for range rapid.IntRange(1, 3).Draw(t, "jobs") {
		all = append(all, p.submission(t))
	}
	var callback *jobs.Submission
	if rapid.IntRange(0, 3).Draw(t, "without callback") > 0 {
		s := p.submission(t)
		s.Delay = 0
		callback = &s
	}
	after, wantErr := p.m.enqueueBatch(all, callback)
	prepared, err := p.q.PrepareBatch(all, callback, "")
	p.wantErr("prepare the batch", err, "")
	p.once(t, "batch", []string{"", "", "", "once"}, wantErr, func(c *submit.Call) (submit.Answer, error) {
		return p.submitter.JobBatch(p.ctx, c, prepared)
	}, func(id string) {
		p.m = after
		b := p.m.batches[len(p.m.batches)-1]
		b.id = id
		if b.finished != nil { // the callback has another run_at by now
			p.outs = p.outs[:len(all)]
		}
		var made []jobs.Job
		for _, out := range p.outs {
			made = append(made, out.Job)
		}
		p.learn(made...)
	})
}

// checkBatches compares all batches.
func (p *property) checkBatches(t *rapid.T) {
	page, err := p.q.Batches(p.ctx, jobs.MaxLimit, "")
	if err != nil || len(page.Batches) != len(p.m.batches) {
		t.Fatalf("batches: %+v, %v, want %d", page, err, len(p.m.batches))
	}
	for i, b := range p.m.batches {
		got, want := page.Batches[i], b.count()
		want.ID, want.CreatedAt, want.FinishedAt = b.id, got.CreatedAt, got.FinishedAt
		if b.callback != nil {
			want.Callback = b.callback.id
		}
		if got != want || got.FinishedAt.IsZero() != (b.finished == nil) {
			t.Fatalf("batch:\n got %+v\nwant %+v", got, want)
		}
	}
}

// name is the batch's id; that of no batch is empty.
func (b *modelBatch) name() string {
	if b == nil {
		return ""
	}
	return b.id
}
