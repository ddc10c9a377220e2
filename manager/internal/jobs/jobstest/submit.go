package jobstest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

var submitTests = map[string]func(*env){
	"a job has the fields it was submitted with": func(e *env) {
		wal, err := jobs.ParseWALLocations(map[string]string{"main": "0/16B3748", "ci": "A/1"})
		e.ok(err)
		before := e.now().Truncate(time.Microsecond)
		made := e.job(jobs.Submission{
			Function: "billing.Charge", Payload: []byte(`{"amount": 5}`), ID: "my-id", Key: "order:17",
			Priority: -7, MaxAttempts: 3, WALLocations: wal,
			Dedup: &jobs.Dedup{Strategy: jobs.UntilExecuted, TTL: time.Minute, RescheduleOnce: true},
		})
		for _, j := range []jobs.Job{made, e.get("my-id")} {
			if j.ID != "my-id" || j.Function != "billing.Charge" || string(j.Payload) != `{"amount": 5}` || j.Key != "order:17" ||
				j.Priority != -7 || j.MaxAttempts != 3 || j.Attempt != 0 || j.State != jobs.Queued || j.Lease != nil {
				e.Fatalf("job %+v", j)
			}
			if fmt.Sprint(j.WALLocations.Map()) != "map[ci:A/1 main:0/16B3748]" {
				e.Fatalf("WALLocations %v", j.WALLocations.Map())
			}
			if *j.Dedup != (jobs.Dedup{Strategy: jobs.UntilExecuted, TTL: time.Minute, RescheduleOnce: true}) {
				e.Fatalf("Dedup %+v", j.Dedup)
			}
			if j.CreatedAt.Before(before) || !j.RunAt.Equal(j.CreatedAt) || !j.StartedAt.IsZero() || !j.FinishedAt.IsZero() {
				e.Fatalf("times of %+v, submitted after %s", j, before)
			}
		}
	},
	"a submission gets the defaults": func(e *env) {
		j := e.job(jobs.Submission{Function: "f"})
		if string(j.Payload) != "null" || j.MaxAttempts != 25 || j.Priority != 0 || j.ID == "" {
			e.Fatalf("job %+v", j)
		}
	},
	"ids made by the queue sort by submission": func(e *env) {
		last := ""
		for range 50 {
			id := e.job(jobs.Submission{}).ID
			if id <= last {
				e.Fatalf("id %s after %s", id, last)
			}
			last = id
		}
	},
	"a taken id is refused": func(e *env) {
		e.job(jobs.Submission{ID: "a", Payload: []byte("1")})
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{ID: "a", Function: "g"})
		if !errors.Is(err, jobs.ErrConflict) || refused(err, jobs.ErrConflict).ID != "a" {
			e.Fatalf("second job a: %v", err)
		}
		if j := e.get("a"); j.Function != "f" || string(j.Payload) != "1" {
			e.Fatalf("the first job changed: %+v", j)
		}
	},
	"payloads of any size up to the limit are accepted": func(e *env) {
		for _, size := range []int{2, 511, 512, 513, 5000, jobs.MaxPayloadBytes} {
			payload := []byte(`"` + strings.Repeat("x", size-2) + `"`)
			id := e.job(jobs.Submission{Payload: payload}).ID
			if got := e.get(id).Payload; !bytes.Equal(got, payload) {
				e.Fatalf("payload of %d bytes came back as %d", size, len(got))
			}
			if got := e.claimOne(); got.ID != id || !bytes.Equal(got.Payload, payload) {
				e.Fatalf("claim of the job with %d bytes returned %s with %d", size, got.ID, len(got.Payload))
			}
		}
	},
	"a delay and a run_at postpone the delivery": func(e *env) {
		d := span
		late := e.job(jobs.Submission{ID: "late", Delay: far})
		byDelay := e.job(jobs.Submission{ID: "delay", Delay: d})
		byTime := e.job(jobs.Submission{ID: "time", RunAt: e.now().Add(d)})
		for _, j := range []jobs.Job{late, byDelay, byTime} {
			if j.State != jobs.Scheduled || !j.RunAt.After(j.CreatedAt) {
				e.Fatalf("job %+v is not scheduled", j)
			}
		}
		if got := byDelay.RunAt.Sub(byDelay.CreatedAt); got != d {
			e.Fatalf("delay %s became %s", d, got)
		}
		e.claimNone()
		e.pass(d)
		e.wantIDs("after the delay", e.claim(jobs.ClaimRequest{Limit: 10}), "delay", "time")
		e.wantState("late", jobs.Scheduled)
	},
	"a run_at in the past means now": func(e *env) {
		first := e.job(jobs.Submission{ID: "first"})
		past := e.job(jobs.Submission{ID: "past", RunAt: e.now().Add(-time.Hour)})
		if past.State != jobs.Queued || past.RunAt.Before(first.RunAt) {
			e.Fatalf("job %+v is not queued after %+v", past, first)
		}
		e.wantIDs("order", e.claim(jobs.ClaimRequest{Limit: 10}), "first", "past")
	},
	"bad fields are named": func(e *env) {
		long := strings.Repeat("x", 129)
		wals := make(jobs.WALLocations, 17)
		for i := range wals {
			wals[i].Database = fmt.Sprintf("db%02d", i)
		}
		ok := jobs.Submission{Function: "f"}
		cases := []struct {
			field string
			edit  func(*jobs.Submission)
		}{
			{"function", func(s *jobs.Submission) { s.Function = "" }},
			{"function", func(s *jobs.Submission) { s.Function = long }},
			{"function", func(s *jobs.Submission) { s.Function = "a/b" }},
			{"function", func(s *jobs.Submission) { s.Function = ".." }},
			{"function", func(s *jobs.Submission) { s.Function = "a\x00b" }},
			{"payload", func(s *jobs.Submission) { s.Payload = []byte("{") }},
			{"payload", func(s *jobs.Submission) { s.Payload = []byte("1 2") }},
			{"payload", func(s *jobs.Submission) { s.Payload = []byte("\"M\xfcller\"") }},
			{"id", func(s *jobs.Submission) { s.ID = long }},
			{"id", func(s *jobs.Submission) { s.ID = "a b" }},
			{"id", func(s *jobs.Submission) { s.ID = "a~1" }},
			{"id", func(s *jobs.Submission) { s.ID = "claim" }},
			{"key", func(s *jobs.Submission) { s.Key = strings.Repeat("k", 256) }},
			{"key", func(s *jobs.Submission) { s.Key = "a " }},
			{"key", func(s *jobs.Submission) { s.Key = "ü" }},
			{"priority", func(s *jobs.Submission) { s.Priority = 32768 }},
			{"priority", func(s *jobs.Submission) { s.Priority = -32769 }},
			{"delay_ms", func(s *jobs.Submission) { s.Delay = -1 }},
			{"delay_ms", func(s *jobs.Submission) { s.Delay = jobs.MaxDelay + 1 }},
			{"delay_ms", func(s *jobs.Submission) { s.Delay, s.RunAt = time.Second, time.Unix(1, 0) }},
			{"run_at", func(s *jobs.Submission) { s.RunAt = time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC) }},
			{"run_at", func(s *jobs.Submission) { s.RunAt = e.now().Add(jobs.MaxDelay + time.Hour) }},
			{"max_attempts", func(s *jobs.Submission) { s.MaxAttempts = -1 }},
			{"max_attempts", func(s *jobs.Submission) { s.MaxAttempts = 1001 }},
			{"on_duplicate", func(s *jobs.Submission) { s.ReturnExisting = true }},
			{"dedup.strategy", func(s *jobs.Submission) { s.Dedup = &jobs.Dedup{Strategy: 9} }},
			{"dedup.key", func(s *jobs.Submission) { s.Dedup = &jobs.Dedup{Key: " a"} }},
			{"dedup.ttl_ms", func(s *jobs.Submission) { s.Dedup = &jobs.Dedup{TTL: time.Millisecond} }},
			{"dedup.ttl_ms", func(s *jobs.Submission) { s.Dedup = &jobs.Dedup{TTL: -time.Hour} }},
			{"dedup.if_deduplicated", func(s *jobs.Submission) { s.Dedup = &jobs.Dedup{RescheduleOnce: true} }},
			{"wal_locations", func(s *jobs.Submission) { s.WALLocations = wals }},
			{"wal_locations", func(s *jobs.Submission) { s.WALLocations = jobs.WALLocations{{Database: ""}} }},
			{"wal_locations", func(s *jobs.Submission) { s.WALLocations = jobs.WALLocations{{Database: "b"}, {Database: "a"}} }},
		}
		for _, c := range cases {
			s := ok
			c.edit(&s)
			_, err := e.q.Enqueue(e.ctx, s)
			var fe *jobs.FieldError
			if !errors.As(err, &fe) || !errors.Is(err, jobs.ErrInvalid) {
				e.Errorf("%s: %+v: got %v, want a FieldError", c.field, s, err)
				continue
			}
			if fe.Field != c.field || fe.Value == "" || fe.Allowed == "" {
				e.Errorf("%s: got %v", c.field, err)
			}
		}
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Payload: []byte(`"` + strings.Repeat("x", jobs.MaxPayloadBytes) + `"`)})
		var fe *jobs.FieldError
		if !errors.As(err, &fe) || !errors.Is(err, jobs.ErrTooLarge) || fe.Field != "payload" {
			e.Errorf("payload over the limit: %v", err)
		}
		e.claimNone()
	},
	"the jobs of a batch run in its order": func(e *env) {
		for _, delay := range []time.Duration{0, span} {
			var all []*jobs.Prepared
			want := []string{"z", "a", "m", "b"}
			for i, id := range want {
				p, err := e.q.Prepare(jobs.Submission{Function: "f", ID: id + delay.String(), Delay: delay, Place: i})
				e.ok(err)
				all, want[i] = append(all, p), id+delay.String()
			}
			e.enqueueAll(all)
			e.wantIDs("listed", e.list(jobs.ListQuery{State: map[bool]jobs.State{true: jobs.Queued, false: jobs.Scheduled}[delay == 0]}), want...)
			e.pass(delay)
			e.wantIDs("claimed", e.claim(jobs.ClaimRequest{Limit: 9, Lease: jobs.MaxLease}), want...)
		}
	},
}

var keyTests = map[string]func(*env){
	"a key held by a live job is refused": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k"})
		want := func(when string) {
			_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "g", Key: "k"})
			if dup := refused(err, jobs.ErrDuplicateKey); !errors.Is(err, jobs.ErrDuplicateKey) || dup.Key != "k" || dup.ID != "a" {
				e.Fatalf("%s: got %v, want ErrDuplicateKey naming a", when, err)
			}
		}
		want("queued")
		j := e.claimOne()
		want("active")
		e.retry(jobs.Retry{ID: "a", Token: j.Lease.Token, Delay: ptr(far)})
		want("scheduled")
		e.job(jobs.Submission{Key: "other"})
		e.job(jobs.Submission{})
	},
	"return_existing answers with the job that holds the key": func(e *env) {
		payload := []byte(`"` + strings.Repeat("p", 2000) + `"`)
		e.job(jobs.Submission{ID: "a", Key: "k", Payload: payload})
		out := e.submit(jobs.Submission{Function: "g", Key: "k", ReturnExisting: true})
		if !out.Existing || out.Created() || out.Job.ID != "a" || !bytes.Equal(out.Job.Payload, payload) {
			e.Fatalf("outcome %+v", out)
		}
		e.wantIDs("jobs", e.claim(jobs.ClaimRequest{Limit: 10}), "a")
	},
	"a key is free when its job is terminal or cancelled": func(e *env) {
		for _, s := range []jobs.State{jobs.Complete, jobs.Failed, jobs.Cancelled} {
			e.job(jobs.Submission{Key: "k"})
			e.finish(e.claimOne(), s)
		}
		queued := e.job(jobs.Submission{Key: "k"})
		e.cancel(queued.ID)
		scheduled := e.job(jobs.Submission{Key: "k", Delay: far})
		e.cancel(scheduled.ID)
		active := e.job(jobs.Submission{Key: "k"})
		j := e.claimOne()
		e.cancel(active.ID)
		_, err := e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})
		if refused(err, jobs.ErrDuplicateKey).ID != active.ID || !strings.Contains(err.Error(), "has not let go") {
			e.Fatalf("got %v, want ErrDuplicateKey naming %s, which still runs", err, active.ID)
		}
		e.finish(j, jobs.Cancelled)
		e.job(jobs.Submission{Key: "k"})
	},
	"a lease lost for the last time frees the key": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k", MaxAttempts: 1})
		e.claim(jobs.ClaimRequest{Lease: span})
		e.pass(span)
		e.duties(e.q)
		e.wantState("a", jobs.Failed)
		e.job(jobs.Submission{Key: "k"})
	},
	"an operator's retry acquires the key again": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k"})
		e.finish(e.claimOne(), jobs.Failed)
		e.retry(jobs.Retry{ID: "a"})
		e.wantErr("submission after the retry", jobs.ErrDuplicateKey, errOf(e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", Key: "k"})))
	},
	"an operator's retry is refused when another job has the key": func(e *env) {
		e.job(jobs.Submission{ID: "a", Key: "k"})
		e.finish(e.claimOne(), jobs.Failed)
		e.job(jobs.Submission{ID: "b", Key: "k"})
		e.wantHeld("b", errOf(e.q.Retry(e.ctx, jobs.Retry{ID: "a"})))
		e.wantState("a", jobs.Failed)
		e.cancel("b")
		if _, err := e.q.Retry(e.ctx, jobs.Retry{ID: "a"}); err != nil {
			e.Fatalf("retry after the key is free: %v", err)
		}
	},
	"the key is free when retention removes its holder": func(e *env) {
		q := e.queue(jobs.Options{RetainFor: time.Second})
		e.job(jobs.Submission{ID: "a", Key: "k"})
		e.cancel("a")
		e.pass(time.Second)
		e.duties(q)
		e.wantErr("job a is still there", jobs.ErrNotFound, errOf(e.q.Get(e.ctx, "a")))
		e.job(jobs.Submission{ID: "a", Key: "k"})
	},
}
