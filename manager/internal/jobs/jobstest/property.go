package jobstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// slowSteps is how many operations a slow engine makes between two comparisons
// of all jobs.
const slowSteps = 5

// quickRuns is how many runs make test makes at most.
const quickRuns = 8

// testProperty runs random operations against the queue and against model, and
// compares every answer and, after each operation, every job.
func testProperty(t *testing.T, e Engine) {
	runs := 0 // successful runs; after a failure all further runs continue, to find the shortest failing one
	rapid.Check(t, func(rt *rapid.T) {
		if e.Runs > 0 && runs >= e.Runs || !deep.On() && runs >= quickRuns {
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
		if e.Slow {
			p.every = slowSteps
		}
		rt.Repeat(map[string]func(*rapid.T){
			"submit": p.submit, "submit again": p.submit, "claim": p.claim, "finish": p.finish, "heartbeat": p.heartbeat,
			"worker retry": p.workerRetry, "operator retry": p.operatorRetry, "cancel": p.cancel, "delete": p.remove, "pause": p.pause,
			"replay": p.replay, "stale": p.stale,
			"advance": p.advance, "duties": p.duties,
			"": p.checkNow,
		})
		p.check(rt)
		if err := e.CheckSums(ctx, q); err != nil {
			rt.Fatalf("the sums: %v", err)
		}
		well = true
	})
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
}

var (
	genFunction = rapid.SampledFrom([]string{"f", "g", "h"})
	genHours    = rapid.IntRange(1, 4)
)

func (p *property) hours(t *rapid.T, label string) int { return genHours.Draw(t, label) }

// wantErr compares an error with the one that the model expects.
func (p *property) wantErr(op string, got error, want string) {
	kind := ""
	var dup *jobs.DuplicateKeyError
	switch {
	case got == nil:
	case errors.As(got, &dup):
		kind = "duplicate " + dup.Holder
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

func (p *property) submit(t *rapid.T) {
	p.made++
	s := jobs.Submission{
		Function:    genFunction.Draw(t, "function"),
		Payload:     []byte(rapid.SampledFrom([]string{`1`, `{"a": [1,2]}`, `{"a":[1.0, 2]}`, `"x"`}).Draw(t, "payload")),
		Key:         rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(t, "key"),
		Priority:    rapid.IntRange(-1, 1).Draw(t, "priority"),
		MaxAttempts: rapid.IntRange(1, 3).Draw(t, "max_attempts"),
		ID:          fmt.Sprintf("j%04d", p.made),
	}
	if rapid.IntRange(0, 9).Draw(t, "taken id") == 0 {
		s.ID = fmt.Sprintf("j%04d", rapid.IntRange(1, p.made).Draw(t, "id"))
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
		p.m.created(&s, out.Job)
	}
}

// followed learns the run_at of jobs that the queue made by itself.
func (p *property) followed(ids ...string) {
	for _, id := range ids {
		if id == "" {
			continue
		}
		j, err := p.q.Get(p.ctx, id)
		if err != nil {
			p.Fatalf("the run %s that must follow: %v", id, err)
		}
		p.m.jobs[id].runAt = j.RunAt
	}
}

func (p *property) claim(t *rapid.T) {
	c := jobs.ClaimRequest{Worker: "w", Limit: rapid.IntRange(1, 4).Draw(t, "limit")}
	c.Functions = rapid.SliceOfNDistinct(genFunction, 0, 3, rapid.ID[string]).Draw(t, "functions")
	hours := p.hours(t, "lease")
	c.Lease = time.Duration(hours) * time.Hour
	got, err := p.q.Claim(p.ctx, c)
	p.wantErr("claim", err, "")
	p.followed(p.m.due()...)
	left := p.m.claimable(c.Functions)
	if len(got) != min(len(left), c.Limit) {
		t.Fatalf("claim of %v: got %v, want %d jobs", c.Functions, ids(got), min(len(left), c.Limit))
	}
	had := make(map[string]int) // jobs of the present priority, by function
	for i, j := range got {
		if i > 0 && j.Priority != got[i-1].Priority {
			clear(had)
		}
		// It is the first of its priority and, if functions take turns, of its function. No function with such a job had fewer.
		k := slices.IndexFunc(left, func(o *modelJob) bool { return len(c.Functions) == 0 || o.function == j.Function })
		if k < 0 || left[k].id != j.ID || left[0].priority != j.Priority {
			t.Fatalf("claim of %v: job %d is %s, and the first is %s", c.Functions, i, j.ID, left[0].id)
		}
		for _, o := range left {
			if len(c.Functions) > 0 && o.priority == j.Priority && had[o.function] < had[j.Function] {
				t.Fatalf("claim of %v: %v has no job of %s at place %d", c.Functions, ids(got), o.function, i)
			}
		}
		had[j.Function]++
		want := left[k]
		left = slices.Delete(left, k, k+1)
		p.m.claimed(want, hours, j.Lease.Token)
		if string(j.Payload) != want.payload {
			t.Fatalf("claim: payload %s, want %s", j.Payload, want.payload)
		}
	}
}

// pick draws a job that f accepts; nil when there is none.
func (p *property) pick(t *rapid.T, f func(*modelJob) bool) *modelJob {
	var names []string
	for id, j := range p.m.jobs {
		if f == nil || f(j) {
			names = append(names, id)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return p.m.jobs[rapid.SampledFrom(names).Draw(t, "job")]
}

func isActive(j *modelJob) bool { return j.state == jobs.Active }

func (p *property) finish(t *rapid.T) {
	j := p.pick(t, func(j *modelJob) bool { return isActive(j) || j.lastToken != "" })
	if j == nil {
		return
	}
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
		p.followed(p.m.end(j, s))
	}
}

func (p *property) heartbeat(t *rapid.T) {
	j := p.pick(t, isActive)
	if j == nil {
		return
	}
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
	if j.dueHour = p.m.hour + hours; j.timeout > 0 {
		j.dueHour = min(j.dueHour, j.deadline)
	}
}

func (p *property) workerRetry(t *rapid.T) {
	j := p.pick(t, func(j *modelJob) bool { return isActive(j) || j.lastToken != "" })
	if j == nil {
		return
	}
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
		p.followed(p.m.end(j, jobs.Cancelled))
		return
	}
	p.requeued(j, hours, got)
}

func (p *property) requeued(j *modelJob, hours int, got jobs.Job) {
	j.state, j.token, j.runAt = jobs.Queued, "", got.RunAt
	if hours > 0 {
		j.state, j.dueHour = jobs.Scheduled, p.m.hour+hours
	}
	p.m.holdLock(j, hours)
}

func (p *property) operatorRetry(t *rapid.T) {
	j := p.pick(t, nil)
	if j == nil {
		return
	}
	hours := 0
	if rapid.Bool().Draw(t, "delayed") {
		hours = p.hours(t, "delay")
	}
	want := ""
	switch j.state {
	case jobs.Failed, jobs.Cancelled, jobs.Expired:
		if holder := cmp.Or(p.m.locker(j.lock), p.m.keyHolder(j.key)); holder != "" {
			want = "duplicate " + holder
		}
	case jobs.Scheduled:
	default:
		want = "conflict"
	}
	got, err := p.q.Retry(p.ctx, jobs.Retry{ID: j.id, Delay: ptr(time.Duration(hours) * time.Hour)})
	p.wantErr("operator retry", err, want)
	if err != nil {
		return
	}
	if j.state != jobs.Scheduled {
		j.attempt, j.cancelled = 0, false
		if j.key != "" {
			p.m.keys[j.key] = j.id
		}
	}
	if j.lastToken = ""; j.expires <= p.m.hour+hours {
		j.expires, j.deadIfExpired = 0, false
	}
	p.requeued(j, hours, got)
}

func (p *property) cancel(t *rapid.T) {
	j := p.pick(t, nil)
	if j == nil {
		return
	}
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
	case jobs.Active:
		if !j.cancelled {
			j.cancelled, j.duplicates = true, false
		}
	}
}

func (p *property) remove(t *rapid.T) {
	j := p.pick(t, nil)
	if j == nil {
		return
	}
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
	j := p.pick(t, func(j *modelJob) bool { return j.state.Terminal() })
	if j == nil {
		return
	}
	s := jobs.Submission{Function: j.function, Payload: []byte(j.payload), Key: j.key, Priority: j.priority, MaxAttempts: j.max, Dedup: j.dedup, Timeout: time.Duration(j.timeout) * time.Hour}
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
		p.m.created(&s, out.Job)
	}
}

// stale uses a token that some job had once.
func (p *property) stale(t *rapid.T) {
	j := p.pick(t, nil)
	if j == nil || len(p.past) == 0 {
		return
	}
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
	h := genHours.Draw(t, "hours")
	p.m.hour += h
	p.clock.advance(time.Duration(h) * time.Hour)
}

func (p *property) duties(*rapid.T) {
	_, err := p.q.RunDuties(p.ctx)
	p.wantErr("duties", err, "")
	p.followed(p.m.due()...)
}
