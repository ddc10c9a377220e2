package jobstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/submit"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// slowSteps is how many operations an engine that is slow or on a server makes
// between two comparisons of all jobs, which are several round trips.
const slowSteps = 5

// quickRuns is how many runs make test makes at most, and make test-deep under the race detector.
const quickRuns = 8

// testProperty runs random operations against the queue and against model, and
// compares every answer and, after each operation, every job.
func testProperty(t *testing.T, e Engine) {
	runs := 0 // successful runs; after a failure all further runs continue, to find the shortest failing one
	rapid.Check(t, func(rt *rapid.T) {
		if e.Runs > 0 && runs >= e.Runs || runs >= deep.Rounds(quickRuns, math.MaxInt) {
			return
		}
		well := false
		defer func() {
			if runs++; !well {
				runs = -1 << 30
			}
		}()
		own := &run{TB: t}
		defer own.end() // not at the end of all runs
		clock := new(clock)
		in := clock.move(e.Open(own))
		q, err := jobs.New(in.Store, jobs.Options{Lease: time.Hour, BackoffBase: time.Hour, BackoffMax: time.Hour, DedupTTL: 2 * time.Hour, RetainFor: 8000 * time.Hour, DeadFor: 8000 * time.Hour})
		if err != nil {
			rt.Fatal(err)
		}
		defer q.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		p := &property{T: rt, m: newModel(), q: q, clock: clock, ctx: ctx, every: 1}
		p.submitTo(in.Store)
		if e.Slow || in.Peer != nil {
			p.every = slowSteps
		}
		p.begin(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"submit": p.submit, "submit again": p.submit, "claim": p.claim, "claim again": p.claim, "limit": p.limit,
			"batch": p.batch, "send": p.send, "subscribe": p.subscribe,
			"finish": p.finish, "finish again": p.finish, "heartbeat": p.heartbeat, "worker retry": p.workerRetry,
			"operator retry": p.operatorRetry, "replay": p.replay, "pause": p.pause, "stale": p.stale,
			"cancel or delete": func(t *rapid.T) { rapid.SampledFrom([]func(*rapid.T){p.cancel, p.remove}).Draw(t, "which")(t) },
			"advance":          p.advance, "duties": p.duties,
			"": p.checkNow,
		})
		p.check(rt)
		p.drain(rt)
		if err := e.CheckSums(ctx, q); err != nil {
			rt.Fatalf("the sums: %v", err)
		}
		well = true
	})
}

// begin makes limits, subscriptions and jobs, so that a short history meets them.
func (p *property) begin(t *rapid.T) {
	for _, f := range []func(*rapid.T){p.limit, p.limit, p.subscribe, p.subscribe, p.submit, p.submit, p.submit} {
		if p.m.tick += 1000; rapid.IntRange(0, 3).Draw(t, "at first") > 0 {
			f(t)
		}
	}
}

// run is one of many runs of a test, with its own clean-up.
type run struct {
	testing.TB
	cleanups []func()
}

func (r *run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *run) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

type property struct {
	*rapid.T
	m    *model
	q    *jobs.Queue
	ctx  context.Context
	made int
	// clock is the queue's.
	clock *clock
	// every is after how many operations all jobs are compared.
	every, steps int
	// past are tokens that were current once.
	past []string
	// submitter makes the calls that may have an idempotency key, and outs are the outcomes of the last one.
	submitter *submit.Submitter
	outs      []jobs.Outcome
}

var (
	functionNames = []string{"f", "g", "h"}

	genFunction = rapid.SampledFrom(functionNames)
	genHours    = rapid.IntRange(1, 4)
)

func (p *property) hours(t *rapid.T, label string) int { return genHours.Draw(t, label) }

// wantErr compares an error with the one that the model expects.
func (p *property) wantErr(op string, got error, want string) {
	kind := ""
	switch {
	case got == nil:
	case errors.Is(got, jobs.ErrDuplicateKey):
		kind = "duplicate " + refused(got, jobs.ErrDuplicateKey).ID
	case errors.Is(got, jobs.ErrConflict):
		kind = "conflict"
	case errors.Is(got, jobs.ErrFenced):
		kind = "fenced"
	case errors.Is(got, jobs.ErrNotFound):
		kind = "not found"
	default:
		kind = got.Error()
	}
	if kind != want {
		p.Fatalf("%s: got error %q (%v), want %q", op, kind, got, want)
	}
}

// submission draws a submission whose id no job has had.
func (p *property) submission(t *rapid.T) jobs.Submission {
	p.made++
	s := jobs.Submission{
		Function:    genFunction.Draw(t, "function"),
		Payload:     []byte(rapid.SampledFrom([]string{`1`, `{"a": [1,2]}`, `{"a":[1.0, 2]}`, `"x"`}).Draw(t, "payload")),
		Key:         rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(t, "key"),
		Priority:    rapid.IntRange(-1, 1).Draw(t, "priority"),
		MaxAttempts: rapid.IntRange(1, 3).Draw(t, "max_attempts"),
		ID:          fmt.Sprintf("j%04d", p.made),

		ConcurrencyKey: rapid.SampledFrom([]string{"", "", "a", "b", "c"}).Draw(t, "concurrency key"),
	}
	if rapid.IntRange(0, 3).Draw(t, "delayed") == 0 {
		s.Delay = time.Duration(p.hours(t, "delay")) * time.Hour
	}
	if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
		s.ExpiresIn = s.Delay + time.Duration(p.hours(t, "expiry"))*time.Hour
		s.DeadIfExpired = rapid.Bool().Draw(t, "dead if expired")
	}
	if rapid.IntRange(0, 3).Draw(t, "timeout") == 0 {
		s.Timeout = time.Duration(p.hours(t, "timeout")) * time.Hour
	}
	s.ReturnExisting = s.Key != "" && rapid.Bool().Draw(t, "return_existing")
	if rapid.Bool().Draw(t, "dedup") {
		d := jobs.Dedup{
			Strategy: rapid.SampledFrom([]jobs.Strategy{jobs.UntilExecuting, jobs.UntilExecuted}).Draw(t, "strategy"),
			Key:      rapid.SampledFrom([]string{"", "", "d"}).Draw(t, "dedup key"),
			TTL:      time.Duration(p.hours(t, "ttl")) * time.Hour,
		}
		d.RescheduleOnce = d.Strategy == jobs.UntilExecuted && rapid.Bool().Draw(t, "reschedule_once")
		s.Dedup = &d
	}
	for _, db := range []string{"ci", "main"} {
		if rapid.IntRange(0, 2).Draw(t, "wal "+db) == 0 {
			s.WALLocations = append(s.WALLocations, jobs.WALLocation{Database: db, LSN: jobs.LSN(rapid.Uint64Range(1, 1<<40).Draw(t, "lsn"))})
		}
	}
	return s
}

func (p *property) submit(t *rapid.T) {
	s := p.submission(t)
	if rapid.IntRange(0, 9).Draw(t, "taken id") == 0 {
		s.ID = fmt.Sprintf("j%04d", rapid.IntRange(1, p.made).Draw(t, "id"))
	}
	wantErr, stands, dropped := p.m.submit(&s)
	out, err := p.q.Enqueue(p.ctx, s)
	p.wantErr("submit", err, wantErr)
	switch {
	case err != nil:
	case stands != "":
		if out.Job.ID != stands || out.Deduplicated != dropped || out.Existing == dropped {
			t.Fatalf("submit: got %+v, want %s, dropped %v", out, stands, dropped)
		}
	default:
		if !out.Created() || out.Job.ID != s.ID {
			t.Fatalf("submit: got %+v, want the new job %s", out, s.ID)
		}
		p.m.created(&s, int(s.Delay/time.Hour))
		p.learn(out.Job)
	}
}

// learn learns the times of jobs that wait since the last operation: those that it answered with, and those that the
// queue let wait by itself.
func (p *property) learn(answered ...jobs.Job) {
	for _, id := range p.m.moved {
		i := slices.IndexFunc(answered, func(j jobs.Job) bool { return j.ID == id })
		if i < 0 {
			j, err := p.q.Get(p.ctx, id)
			if err != nil {
				p.Fatalf("job %s, which must wait: %v", id, err)
			}
			answered = append(answered, j)
			i = len(answered) - 1
		}
		p.m.jobs[id].runAt, p.m.jobs[id].expiresAt = answered[i].RunAt, answered[i].ExpiresAt
	}
	p.m.moved = nil
}

// pick draws a job that f accepts. Without any, another operation takes the place of the present one.
func (p *property) pick(t *rapid.T, f func(*modelJob) bool) *modelJob {
	all := p.m.sorted(f)
	if len(all) == 0 {
		t.Skip("no such job")
	}
	slices.SortFunc(all, func(a, b *modelJob) int { return a.seq - b.seq }) // ids differ from run to run
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "job")]
}

func isActive(j *modelJob) bool { return j.state == jobs.Active }

func (p *property) finish(t *rapid.T) {
	j := p.pick(t, func(j *modelJob) bool { return isActive(j) || j.lastToken != "" })
	s := rapid.SampledFrom([]jobs.State{jobs.Complete, jobs.Failed, jobs.Cancelled}).Draw(t, "status")
	token, want, ends := j.token, "", isActive(j)
	if !ends {
		token = j.lastToken
		switch {
		case !j.state.Terminal():
			want = "fenced"
		case j.state != s && (j.state != jobs.Replayed || s != jobs.Failed):
			want = "conflict"
		}
	}
	_, err := p.q.Finish(p.ctx, jobs.Finish{ID: j.id, Token: token, State: s})
	p.wantErr("finish", err, want)
	if ends {
		j.lastToken = token
		p.past = append(p.past, token)
		p.m.end(j, s)
		p.learn()
	}
}

func (p *property) heartbeat(t *rapid.T) {
	j := p.pick(t, isActive)
	hours := p.hours(t, "lease")
	beat, err := p.q.Heartbeat(p.ctx, j.id, j.token, time.Duration(hours)*time.Hour, nil)
	if j.timeout > 0 && j.deadline <= p.m.hour {
		p.wantErr("heartbeat after the timeout", err, "fenced")
		return
	}
	p.wantErr("heartbeat", err, "")
	if beat.Cancelled != j.cancelled {
		t.Fatalf("heartbeat: %+v, want cancelled %v", beat, j.cancelled)
	}
	p.m.lease(j, hours)
}

func (p *property) workerRetry(t *rapid.T) {
	j := p.pick(t, func(j *modelJob) bool { return isActive(j) || j.lastToken != "" })
	hours := 0
	if rapid.Bool().Draw(t, "delayed") {
		hours = p.hours(t, "delay")
	}
	token, want := j.token, ""
	if !isActive(j) {
		token = j.lastToken
		if j.state.Terminal() && !(j.state == jobs.Cancelled && j.cancelled) {
			want = "fenced"
		}
	} else if !j.cancelled && j.attempt >= j.max {
		want = "conflict"
	}
	got, err := p.q.Retry(p.ctx, jobs.Retry{ID: j.id, Token: token, Delay: ptr(time.Duration(hours) * time.Hour)})
	p.wantErr("worker retry", err, want)
	if !isActive(j) || err != nil {
		return
	}
	j.lastToken = token
	p.past = append(p.past, token)
	if j.cancelled {
		p.m.end(j, jobs.Cancelled)
	} else {
		p.m.requeue(j, hours)
	}
	p.learn(got)
}

func (p *property) operatorRetry(t *rapid.T) {
	often := rapid.IntRange(0, 4).Draw(t, "possible") > 0
	j := p.pick(t, func(j *modelJob) bool {
		return !often || j.state == jobs.Scheduled || p.m.over(j) && j.state != jobs.Complete && j.state != jobs.Replayed
	})
	hours := 0
	if rapid.Bool().Draw(t, "delayed") {
		hours = p.hours(t, "delay")
	}
	want := ""
	fresh := p.m.over(j) && slices.Contains([]jobs.State{jobs.Scheduled, jobs.Failed, jobs.Cancelled, jobs.Expired}, j.state)
	switch {
	case fresh:
		if holder := cmp.Or(p.m.locker(j.lock), p.m.keyHolder(j.key)); holder != "" {
			want = "duplicate " + holder
		}
	case j.state != jobs.Scheduled:
		want = "conflict"
	}
	got, err := p.q.Retry(p.ctx, jobs.Retry{ID: j.id, Delay: ptr(time.Duration(hours) * time.Hour)})
	p.wantErr("operator retry", err, want)
	if err != nil {
		return
	}
	if fresh {
		j.attempt, j.cancelled = 0, false
		if j.key != "" {
			p.m.keys[j.key] = j.id
		}
	}
	if j.lastToken = ""; j.expires <= p.m.hour+hours {
		j.expires, j.deadIfExpired = 0, false
	}
	p.m.requeue(j, hours)
	p.learn(got)
}

func (p *property) cancel(t *rapid.T) {
	j := p.pick(t, nil)
	want := ""
	if j.state.Terminal() && j.state != jobs.Cancelled {
		want = "conflict"
	}
	_, err := p.q.Cancel(p.ctx, j.id)
	p.wantErr("cancel", err, want)
	switch j.state {
	case jobs.Queued, jobs.Scheduled:
		j.lastToken = ""
		p.m.end(j, jobs.Cancelled)
		p.learn()
	case jobs.Active:
		if !j.cancelled {
			j.cancelled, j.duplicates = true, false
		}
	}
}

func (p *property) remove(t *rapid.T) {
	j := p.pick(t, nil)
	want := ""
	if isActive(j) {
		want = "conflict"
	}
	_, err := p.q.Delete(p.ctx, j.id)
	p.wantErr("delete", err, want)
	if !isActive(j) {
		p.m.dropKey(j)
		p.m.dropLock(j)
		delete(p.m.jobs, j.id)
		if !j.state.Terminal() {
			p.m.set(j, jobs.Cancelled) // for its batch
			p.m.settle(j.batch)
			p.learn()
		}
	}
}

func (p *property) pause(t *rapid.T) {
	f := genFunction.Draw(t, "function")
	call := p.q.Pause
	p.m.paused[f] = !p.m.paused[f]
	if !p.m.paused[f] {
		call = p.q.Resume
	}
	p.wantErr("pause or resume", call(p.ctx, f), "")
}

func (p *property) replay(t *rapid.T) {
	often := rapid.IntRange(0, 4).Draw(t, "failed") > 0
	j := p.pick(t, func(j *modelJob) bool { return j.state == jobs.Failed || !often && j.state.Terminal() })
	s := jobs.Submission{Function: j.function, Payload: []byte(j.payload), Key: j.key, Priority: j.priority, MaxAttempts: j.max, Dedup: j.dedup, Timeout: time.Duration(j.timeout) * time.Hour,
		ConcurrencyKey: j.concurrencyKey, Event: j.event}
	for _, db := range slices.Sorted(maps.Keys(j.wal)) {
		s.WALLocations = append(s.WALLocations, jobs.WALLocation{Database: db, LSN: j.wal[db]})
	}
	want, stands := "not found", ""
	switch j.state {
	case jobs.Failed:
		want, stands, _ = p.m.submit(&s)
	case jobs.Replayed:
		want = "conflict"
	}
	out, err := p.q.Replay(p.ctx, j.function, j.id)
	p.wantErr("replay", err, want)
	switch {
	case err != nil:
	case stands != "":
		if !out.Deduplicated || out.Job.ID != stands {
			t.Fatalf("replay: %+v, want a duplicate of %s", out, stands)
		}
	default:
		if !out.Created() {
			t.Fatalf("replay: %+v, want a new job", out)
		}
		j.state, j.replayedAs = jobs.Replayed, out.Job.ID
		s.ID = out.Job.ID
		p.m.created(&s, 0)
		p.learn(out.Job)
	}
}

// stale uses a token that some job had once.
func (p *property) stale(t *rapid.T) {
	if len(p.past) == 0 {
		t.Skip("no such token")
	}
	j := p.pick(t, nil)
	token := rapid.SampledFrom(p.past).Draw(t, "token")
	if token == j.token || token == j.lastToken {
		return
	}
	_, err := p.q.Heartbeat(p.ctx, j.id, token, 0, nil)
	p.wantErr("heartbeat with a stale token", err, "fenced")
	_, err = p.q.Finish(p.ctx, jobs.Finish{ID: j.id, Token: token, State: jobs.Complete})
	p.wantErr("finish with a stale token", err, "fenced")
	_, err = p.q.Retry(p.ctx, jobs.Retry{ID: j.id, Token: token})
	p.wantErr("retry with a stale token", err, "fenced")
}

func (p *property) advance(t *rapid.T) {
	p.advanceBy(genHours.Draw(t, "hours"))
}

func (p *property) advanceBy(h int) {
	p.m.hour += h
	p.clock.advance(time.Duration(h) * time.Hour)
}

func (p *property) duties(*rapid.T) {
	_, err := p.q.RunDuties(p.ctx)
	p.wantErr("duties", err, "")
	p.m.due()
	p.learn()
}
