package jobstest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (e *env) subscribe(event string, functions ...string) {
	e.Helper()
	for _, f := range functions {
		if err := e.q.Subscribe(e.ctx, event, f); err != nil {
			e.Fatalf("Subscribe(%s, %s): %v", event, f, err)
		}
	}
}

func (e *env) send(ev jobs.Event) jobs.EventOutcome {
	e.Helper()
	out, err := e.q.Send(e.ctx, ev)
	if err != nil {
		e.Fatalf("Send(%+v): %v", ev, err)
	}
	return out
}

var eventTests = map[string]func(*env){
	"an event enqueues one job per subscriber": func(e *env) {
		e.subscribe("order.paid", "ship", "bill", "bill", "mail")
		e.subscribe("order.lost", "cry")
		got, err := e.q.Subscribers(e.ctx, "order.paid")
		if err != nil || fmt.Sprint(got) != "[bill mail ship]" {
			e.Fatalf("subscribers %v, %v", got, err)
		}
		payload := []byte(`"` + strings.Repeat("p", 1000) + `"`)
		out := e.send(jobs.Event{Name: "order.paid", Payload: payload, Priority: 2, MaxAttempts: 7,
			WALLocations: jobs.WALLocations{{Database: "main", LSN: 1}}})
		if len(out.Jobs) != 3 || len(out.IDs) != 3 || out.Deduplicated {
			e.Fatalf("outcome %+v", out)
		}
		functions := map[string]bool{}
		for _, j := range e.claim(jobs.ClaimRequest{Limit: 10}) {
			functions[j.Function] = true
			if string(j.Payload) != string(payload) || j.Event != "order.paid" || j.Priority != 2 || j.MaxAttempts != 7 ||
				j.WALLocations.Map()["main"] != "0/1" {
				e.Fatalf("job %+v", j)
			}
		}
		if fmt.Sprint(functions) != "map[bill:true mail:true ship:true]" {
			e.Fatalf("jobs for %v", functions)
		}
		again := e.send(jobs.Event{Name: "order.paid"})
		if len(again.Jobs) != 3 || again.IDs[0] == out.IDs[0] || string(again.Jobs[0].Payload) != "null" {
			e.Fatalf("second send without a key: %+v", again)
		}
	},
	"no subscribers, no jobs": func(e *env) {
		if out := e.send(jobs.Event{Name: "nothing", Key: "k"}); len(out.Jobs) != 0 || out.Deduplicated {
			e.Fatalf("outcome %+v", out)
		}
		e.subscribe("nothing", "f")
		if out := e.send(jobs.Event{Name: "nothing", Key: "k"}); len(out.Jobs) != 0 || !out.Deduplicated {
			e.Fatalf("second send with the key: %+v", out)
		}
		e.claimNone()
	},
	"a second send with the key answers with the first one's jobs": func(e *env) {
		e.subscribe("ev", "a", "b")
		e.subscribe("other", "a")
		first := e.send(jobs.Event{Name: "ev", Key: "k", Payload: []byte("1")})
		e.subscribe("ev", "c")
		j := e.claim(jobs.ClaimRequest{Functions: []string{"b"}})[0]
		e.finish(j, jobs.Complete)
		second := e.send(jobs.Event{Name: "ev", Key: "k", Payload: []byte("2")})
		if !second.Deduplicated || fmt.Sprint(second.IDs) != fmt.Sprint(first.IDs) || len(second.Jobs) != 2 ||
			second.Jobs[1].State != jobs.Complete || string(second.Jobs[0].Payload) != "1" {
			e.Fatalf("second send %+v, first %+v", second, first)
		}
		// Keys are apart from other events' and from jobs'.
		if out := e.send(jobs.Event{Name: "other", Key: "k"}); out.Deduplicated || len(out.Jobs) != 1 {
			e.Fatalf("other event: %+v", out)
		}
		e.job(jobs.Submission{Key: "k"})
		if out := e.send(jobs.Event{Name: "ev", Key: "k2"}); out.Deduplicated || len(out.Jobs) != 3 {
			e.Fatalf("other key: %+v", out)
		}
	},
	"a key is forgotten after its time": func(e *env) {
		d := span
		q := e.queue(jobs.Options{EventKeyTTL: d})
		e.subscribe("ev", "a")
		if _, err := q.Send(e.ctx, jobs.Event{Name: "ev", Key: "k"}); err != nil {
			e.Fatal(err)
		}
		e.pass(d)
		if out := e.send(jobs.Event{Name: "ev", Key: "k"}); out.Deduplicated {
			e.Fatalf("after the time: %+v", out)
		}
		if out := e.send(jobs.Event{Name: "ev", Key: "k"}); !out.Deduplicated {
			e.Fatalf("the new send is not remembered: %+v", out)
		}
	},
	"an answer leaves out what retention removed": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: span})
		e.subscribe("ev", "a", "b")
		first := e.send(jobs.Event{Name: "ev", Key: "k"})
		e.cancel(first.IDs[0])
		e.pass(span)
		e.duties(q)
		out := e.send(jobs.Event{Name: "ev", Key: "k"})
		if !out.Deduplicated || len(out.IDs) != 2 {
			e.Fatalf("outcome %+v", out)
		}
		e.wantIDs("jobs", out.Jobs, first.IDs[1])
	},
	"unsubscribe ends it for later sends": func(e *env) {
		e.subscribe("ev", "a", "b")
		e.send(jobs.Event{Name: "ev"})
		for _, f := range []string{"a", "b"} {
			if err := e.q.Unsubscribe(e.ctx, "ev", f); err != nil {
				e.Fatal(err)
			}
		}
		var nf *jobs.NotFoundError
		if err := e.q.Unsubscribe(e.ctx, "ev", "a"); !errors.As(err, &nf) || nf.Kind != "subscription" {
			e.Fatalf("second time: %v", err)
		}
		if out := e.send(jobs.Event{Name: "ev"}); len(out.Jobs) != 0 {
			e.Fatalf("send after unsubscribe: %+v", out)
		}
		if n := len(e.claim(jobs.ClaimRequest{Limit: 10})); n != 2 {
			e.Fatalf("%d jobs of the first send are left, want 2", n)
		}
	},
	"bounds": func(e *env) {
		for i := range jobs.MaxSubscribers {
			e.subscribe("full", fmt.Sprintf("f%03d", i))
		}
		e.subscribe("full", "f000")
		err := e.q.Subscribe(e.ctx, "full", "one-more")
		var fe *jobs.FieldError
		if !errors.As(err, &fe) || fe.Field != "function" {
			e.Errorf("subscriber too many: %v", err)
		}
		small := []byte(`"` + strings.Repeat("p", jobs.MaxEventBytes/jobs.MaxSubscribers-2) + `"`)
		if out := e.send(jobs.Event{Name: "full", Payload: small}); len(out.Jobs) != jobs.MaxSubscribers {
			e.Errorf("%d jobs", len(out.Jobs))
		}
		_, err = e.q.Send(e.ctx, jobs.Event{Name: "full", Payload: []byte(`"` + strings.Repeat("p", len(small)) + `"`)})
		if !errors.As(err, &fe) || fe.Field != "payload" || !errors.Is(err, jobs.ErrTooLarge) {
			e.Errorf("event too large: %v", err)
		}
		for field, ev := range map[string]jobs.Event{
			"event":        {},
			"key":          {Name: "ev", Key: "a b"},
			"payload":      {Name: "ev", Payload: []byte("{")},
			"priority":     {Name: "ev", Priority: 1 << 20},
			"max_attempts": {Name: "ev", MaxAttempts: -1},
		} {
			if _, err := e.q.Send(e.ctx, ev); !errors.As(err, &fe) || fe.Field != field {
				e.Errorf("%s: %v", field, err)
			}
		}
		for _, err := range []error{
			e.q.Subscribe(e.ctx, "", "f"), e.q.Subscribe(e.ctx, "ev", ""), e.q.Unsubscribe(e.ctx, "a/b", "f"), e.q.Unsubscribe(e.ctx, "ev", "/"),
			func() error { _, err := e.q.Subscribers(e.ctx, ""); return err }(),
		} {
			if !errors.As(err, &fe) {
				e.Errorf("got %v, want a FieldError", err)
			}
		}
	},
}

var waitTests = map[string]func(*env){
	"a result wakes the caller": func(e *env) {
		for _, end := range []func(jobs.Job){
			func(j jobs.Job) { e.finish(j, jobs.Complete) },
			func(j jobs.Job) { e.finish(j, jobs.Failed) },
			func(j jobs.Job) { e.cancel(j.ID); e.finish(j, jobs.Cancelled) },
			func(j jobs.Job) {
				e.cancel(j.ID)
				e.retry(jobs.Retry{ID: j.ID, Token: j.Lease.Token})
			},
		} {
			a := e.job(jobs.Submission{})
			j := e.claimOne()
			got := e.waitFor(a.ID)
			end(j)
			if r := e.receive(got); len(r) != 1 || !r[0].State.Terminal() || r[0].ID != a.ID {
				e.Fatalf("waited for %s: %+v", a.ID, r)
			}
		}
		queued := e.job(jobs.Submission{})
		got := e.waitFor(queued.ID)
		e.cancel(queued.ID)
		if r := e.receive(got); r[0].State != jobs.Cancelled {
			e.Fatalf("waited for a cancelled job: %+v", r)
		}
	},
	"a lost last lease wakes the caller": func(e *env) {
		a := e.job(jobs.Submission{MaxAttempts: 1})
		e.claim(jobs.ClaimRequest{Lease: span})
		got := e.waitFor(a.ID)
		e.pass(span)
		e.duties(e.q)
		if r := e.receive(got); r[0].State != jobs.Failed {
			e.Fatalf("waited: %+v", r)
		}
	},
	"what is over is answered at once": func(e *env) {
		a := e.job(jobs.Submission{})
		e.finish(e.claimOne(), jobs.Complete)
		got, err := e.q.Wait(e.ctx, a.ID, jobs.MaxWait)
		if err != nil || got.State != jobs.Complete {
			e.Fatalf("got %+v, %v", got, err)
		}
	},
	"the time over, the job as it is": func(e *env) {
		a := e.job(jobs.Submission{})
		got, err := e.q.Wait(e.ctx, a.ID, 5*time.Millisecond)
		if err != nil || got.State != jobs.Queued {
			e.Fatalf("got %+v, %v", got, err)
		}
	},
	"errors": func(e *env) {
		if _, err := e.q.Wait(e.ctx, "nobody", time.Minute); !errors.Is(err, jobs.ErrNotFound) {
			e.Errorf("unknown job: %v", err)
		}
		var fe *jobs.FieldError
		if _, err := e.q.Wait(e.ctx, "a", jobs.MaxWait+1); !errors.As(err, &fe) || fe.Field != "wait_ms" {
			e.Errorf("wait too long: %v", err)
		}
		if _, err := e.q.Get(e.ctx, ""); !errors.As(err, &fe) || fe.Field != "id" {
			e.Errorf("no id: %v", err)
		}
	},
}

// waitFor waits for a job's end on another goroutine.
func (e *env) waitFor(id string) <-chan []jobs.Job {
	e.Helper()
	before := e.q.Counters().Waiting
	out := make(chan []jobs.Job, 1)
	go func() {
		j, err := e.q.Wait(e.ctx, id, jobs.MaxWait)
		if err != nil {
			e.Errorf("Wait(%s): %v", id, err)
		}
		out <- []jobs.Job{j}
	}()
	e.eventually("the call waits", func() bool { return e.q.Counters().Waiting > before })
	return out
}
