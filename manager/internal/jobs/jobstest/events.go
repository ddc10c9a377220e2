package jobstest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

func (e *env) subscribe(event string, functions ...string) {
	e.Helper()
	for _, f := range functions {
		s, err := e.q.Subscribe(e.ctx, event, f)
		if err != nil || s.Function != f || s.Since.IsZero() {
			e.Fatalf("Subscribe(%s, %s) = %+v, %v", event, f, s, err)
		}
	}
}

// send sends an event in a transaction of its own, and returns the functions of its jobs in their order.
func (e *env) send(s jobs.Submission) ([]jobs.Outcome, error) {
	e.Helper()
	p, err := e.q.PrepareEvent(s)
	if err != nil {
		return nil, err
	}
	var outs []jobs.Outcome
	err = e.in.Store.Update(e.ctx, func(tx store.Tx) error {
		outs, err = e.q.SendTx(tx, p)
		return err
	})
	if err == nil {
		for _, out := range outs {
			e.q.Committed(out)
		}
	}
	return outs, err
}

// events lists the subscriptions as event/function.
func (e *env) events(q *jobs.Queue) []string {
	e.Helper()
	var all []string
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := q.Events(e.ctx, 2, cursor)
		e.ok(err)
		for _, ev := range page.Events {
			for _, s := range ev.Subscriptions {
				all = append(all, ev.Name+"/"+s.Function)
			}
		}
		cursor = page.Cursor
	}
	return all
}

var eventTests = map[string]func(*env){
	"an event becomes one job for each subscription": func(e *env) {
		e.subscribe("paid", "receipt", "audit", "receipt")
		e.subscribe("refunded", "audit")
		outs, err := e.send(jobs.Submission{Event: "paid", Payload: []byte(`{"order":1}`), Priority: 3, Owner: "shop"})
		if err != nil || len(outs) != 2 {
			e.Fatalf("%+v, %v", outs, err)
		}
		for i, function := range []string{"audit", "receipt"} {
			j := e.wantState(outs[i].Job.ID, jobs.Queued)
			if !outs[i].Created() || j.Function != function || j.Event != "paid" || string(j.Payload) != `{"order":1}` || j.Priority != 3 || j.Owner != "shop" {
				e.Errorf("job %d: %+v", i, j)
			}
		}
		got := e.claim(jobs.ClaimRequest{Functions: []string{"receipt"}, Limit: 10})
		e.wantIDs("receipt", got, outs[1].Job.ID)
		if got[0].Event != "paid" {
			e.Errorf("the worker gets the event %q", got[0].Event)
		}
	},
	"an event without subscriptions makes no job": func(e *env) {
		if outs, err := e.send(jobs.Submission{Event: "paid"}); err != nil || len(outs) != 0 {
			e.Errorf("%+v, %v", outs, err)
		}
		e.claimNone()
	},
	"a subscription that has ended makes no more jobs": func(e *env) {
		e.subscribe("paid", "a", "b")
		first, err := e.send(jobs.Submission{Event: "paid"})
		e.ok(err)
		if s, err := e.q.Unsubscribe(e.ctx, "paid", "a"); err != nil || s.Function != "a" || s.Since.IsZero() {
			e.Fatalf("%+v, %v", s, err)
		}
		second, err := e.send(jobs.Submission{Event: "paid"})
		if err != nil || len(second) != 1 || second[0].Job.Function != "b" {
			e.Errorf("%+v, %v", second, err)
		}
		e.wantState(first[0].Job.ID, jobs.Queued)
		e.ok(errOf(e.q.Unsubscribe(e.ctx, "paid", "b")))
		if left := e.events(e.q); len(left) > 0 {
			e.Errorf("left: %q", left)
		}
		if s, err := e.q.Unsubscribe(e.ctx, "paid", "b"); err != nil || s.Function != "b" || !s.Since.IsZero() {
			e.Errorf("once more: %+v, %v", s, err)
		}
	},
	"events are listed page by page, by every manager, and after a restart": func(e *env) {
		var want []string
		for i := range 5 {
			name := fmt.Sprint("event-", i)
			e.subscribe(name, "g", "f")
			want = append(want, name+"/f", name+"/g")
		}
		for _, q := range e.managers(jobs.Options{}) {
			if got := e.events(q); !slices.Equal(got, want) {
				e.Errorf("%q, want %q", got, want)
			}
		}
		if e.in.Reopen == nil {
			return
		}
		e.restart(jobs.Options{})
		if got := e.events(e.q); !slices.Equal(got, want) {
			e.Errorf("after a restart: %q, want %q", got, want)
		}
	},
	"all jobs of an event or none": func(e *env) {
		for i := range 40 {
			e.subscribe("paid", fmt.Sprint("f", i))
		}
		large := []byte(`"` + strings.Repeat("x", 900<<10) + `"`) // no transaction has room for all
		if outs, err := e.send(jobs.Submission{Event: "paid", Payload: large}); !errors.Is(err, store.ErrTooLarge) {
			e.Fatalf("%d outcomes, %v", len(outs), err)
		}
		e.claimNone()
	},
	"a function that subscribes while an event is sent gets all of it or nothing": func(e *env) {
		qs := e.managers(jobs.Options{})
		const functions, sent = 8, 20
		var outs [sent][]jobs.Outcome
		together(functions+sent, func(i int) {
			if i < functions {
				if _, err := qs[i%len(qs)].Subscribe(e.ctx, "paid", fmt.Sprint("f", i)); err != nil && !errors.Is(err, store.ErrConflict) {
					e.Errorf("subscribe: %v", err)
				}
				return
			}
			var err error
			if outs[i-functions], err = e.send(jobs.Submission{Event: "paid"}); err != nil && !errors.Is(err, store.ErrConflict) {
				e.Errorf("send: %v", err)
			}
		})
		want := 0
		for _, all := range outs {
			want += len(all)
		}
		if got := e.claim(jobs.ClaimRequest{Limit: 1000}); len(got) != want {
			e.Errorf("%d jobs, the events were answered with %d", len(got), want)
		}
	},
	"bad names and too many subscriptions are refused": func(e *env) {
		var field *jobs.FieldError
		for _, names := range [][2]string{{"", "f"}, {"a/b", "f"}, {"paid", ""}, {"paid", "f g"}} {
			if _, err := e.q.Subscribe(e.ctx, names[0], names[1]); !errors.As(err, &field) {
				e.Errorf("Subscribe(%q): %v", names, err)
			}
			if _, err := e.q.Unsubscribe(e.ctx, names[0], names[1]); !errors.As(err, &field) {
				e.Errorf("Unsubscribe(%q): %v", names, err)
			}
		}
		for _, name := range []string{"", "a b"} {
			e.wantField(fmt.Sprintf("send %q", name), "event", errOf(e.send(jobs.Submission{Event: name})))
		}
		e.wantField("limit", "limit", errOf(e.q.Events(e.ctx, jobs.MaxLimit+1, "")))
		for i := range jobs.MaxSubscriptions {
			e.subscribe("paid", fmt.Sprintf("f%03d", i))
		}
		e.wantField("one more", "function", errOf(e.q.Subscribe(e.ctx, "paid", "one-more")))
		e.subscribe("paid", "f000")
		if outs, err := e.send(jobs.Submission{Event: "paid"}); err != nil || len(outs) != jobs.MaxSubscriptions {
			e.Errorf("%d jobs, %v", len(outs), err)
		}
	},
	"an event that cannot be read costs only itself": func(e *env) {
		e.subscribe("bad", "f")
		e.subscribe("good", "f")
		for what, damage := range damages {
			before := e.value("job_events", "bad")
			e.rewrite("job_events", damage, "bad")
			_, err := e.send(jobs.Submission{Event: "bad"})
			e.wantUnreadable(what+": send", err, "job_events", "bad")
			_, err = e.q.Subscribe(e.ctx, "bad", "g")
			e.wantUnreadable(what+": Subscribe", err, "job_events", "bad")
			_, err = e.q.Unsubscribe(e.ctx, "bad", "f")
			e.wantUnreadable(what+": Unsubscribe", err, "job_events", "bad")
			if got := e.events(e.q); !slices.Equal(got, []string{"good/f"}) {
				e.Errorf("%s: listed %q", what, got)
			}
			e.rewrite("job_events", func([]byte) []byte { return slices.Clone(before) }, "bad")
		}
		e.rewrite("job_events", damages["nonsense"], "bad")
		e.deleteUnreadable("job_events", "bad")
		e.subscribe("bad", "g")
		if outs, err := e.send(jobs.Submission{Event: "bad"}); err != nil || len(outs) != 1 {
			e.Errorf("%+v, %v", outs, err)
		}
	},
}
