package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

func (e *env) put(name string, s schedules.Spec) schedules.Schedule {
	e.Helper()
	if s.Function == "" {
		s.Function = "f"
	}
	out, _, err := e.schedules.Put(e.Context(), name, s)
	if err != nil {
		e.Fatalf("Put(%s, %+v): %v", name, s, err)
	}
	return out
}

func (e *env) due() {
	e.Helper()
	if _, err := e.schedules.RunDue(e.Context()); err != nil {
		e.Fatalf("RunDue: %v", err)
	}
}

func (e *env) get(name string) schedules.Schedule {
	e.Helper()
	s, err := e.schedules.Get(e.Context(), name)
	if err != nil {
		e.Fatalf("Get(%s): %v", name, err)
	}
	return s
}

// jobs are all jobs, by key.
func (e *env) jobs() map[string][]jobs.Job {
	e.Helper()
	all := map[string][]jobs.Job{}
	for cursor := ""; ; {
		page, err := e.queue.List(e.Context(), jobs.ListQuery{Limit: 1000, Cursor: cursor, Payloads: true})
		if err != nil {
			e.Fatal(err)
		}
		for _, j := range page.Jobs {
			all[j.Key] = append(all[j.Key], j)
		}
		if cursor = page.Cursor; cursor == "" {
			return all
		}
	}
}

// damage makes a job unreadable.
func (e *env) damage(id string) {
	e.Helper()
	if err := e.store.Update(e.Context(), func(tx store.Tx) error { return tx.Put(jobs.Collection, id, []byte{99}) }); err != nil {
		e.Fatal(err)
	}
}

// wantInstants checks for which instants a schedule has jobs: one each.
func (e *env) wantInstants(name string, want ...string) {
	e.Helper()
	var got []string
	for key, js := range e.jobs() {
		if instant, ok := strings.CutPrefix(key, name+"@"); ok {
			got = append(got, instant)
			if len(js) != 1 {
				e.Errorf("%s has %d jobs", key, len(js))
			}
		}
	}
	slices.Sort(got)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		e.Errorf("%s has jobs for %v, want %v", name, got, want)
	}
}

// wantDepth waits until the counts are right: shared engines may estimate them.
func (e *env) wantDepth(want schedules.Depth) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		d, err := e.schedules.Depth(ctx)
		if err != nil || ctx.Err() != nil {
			e.Fatalf("depth %+v, %v; want %+v", d, err, want)
		}
		if d == want {
			return
		}
		<-tick.C
	}
}

// finish ends the only job that is queued.
func (e *env) finish() {
	e.Helper()
	got, err := e.queue.Claim(e.Context(), jobs.ClaimRequest{Worker: "w"})
	if err != nil || len(got) != 1 {
		e.Fatalf("claimed %v, %v", got, err)
	}
	if _, err := e.queue.Finish(e.Context(), jobs.Finish{ID: got[0].ID, Token: got[0].Lease.Token, State: jobs.Complete}); err != nil {
		e.Fatal(err)
	}
}

var cases = map[string]func(*env){
	"an instant has one job, and the schedule moves on": func(e *env) {
		made := e.put("daily", schedules.Spec{Cron: "30 2 * * *", TimeZone: "Europe/Vienna", Function: "report", Payload: []byte(`{"a":1}`), Priority: 3, MaxAttempts: 4,
			ExpiresIn: time.Hour, DeadIfExpired: true, Timeout: time.Minute})
		instant := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC) // 02:30 does not exist
		if !made.Next.Equal(instant) || made.LastJob != "" || !made.CreatedAt.Equal(begin) || made.Missed != schedules.MissedOne || made.Overlap != schedules.OverlapAllow {
			e.Fatalf("made %+v", made)
		}
		e.clock.set(instant.Add(-time.Microsecond))
		pause, err := e.schedules.RunDue(e.Context())
		if err != nil || pause != time.Millisecond {
			e.Errorf("a microsecond before: %v, %v", pause, err)
		}
		e.wantInstants("daily")
		e.clock.set(instant)
		for range 2 {
			e.due()
		}
		e.wantInstants("daily", "2026-03-29T01:00:00Z")
		j := e.jobs()["daily@2026-03-29T01:00:00Z"][0]
		if j.Function != "report" || string(j.Payload) != `{"a":1}` || j.Priority != 3 || j.MaxAttempts != 4 || !j.ExpiresAt.Equal(instant.Add(time.Hour)) || !j.DeadIfExpired || j.Timeout != time.Minute || j.State != jobs.Queued {
			e.Errorf("job %+v", j)
		}
		s := e.get("daily")
		if want := time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC); !s.Next.Equal(want) || !s.Last.Equal(instant) || s.LastJob != j.ID || s.MissedInstants != 0 {
			e.Errorf("then %+v", s)
		}
		if c := e.schedules.Counters(); c != (schedules.Counters{Enqueued: 1}) {
			e.Errorf("%+v", c)
		}
	},
	"of missed instants all, one or none have a job": func(e *env) {
		for name, m := range map[string]schedules.Missed{"all": schedules.MissedAll, "one": schedules.MissedOne, "skip": schedules.MissedSkip} {
			e.put(name, schedules.Spec{Cron: "0 * * * *", Missed: m})
		}
		e.clock.advance(3*time.Hour + 2*time.Minute)
		e.due()
		e.wantInstants("all", "2026-03-28T13:00:00Z", "2026-03-28T14:00:00Z", "2026-03-28T15:00:00Z")
		e.wantInstants("one", "2026-03-28T15:00:00Z")
		e.wantInstants("skip")
		for name, want := range map[string]uint64{"all": 0, "one": 2, "skip": 3} {
			if s := e.get(name); s.MissedInstants != want || !s.Next.Equal(begin.Add(4*time.Hour)) {
				e.Errorf("%s: %+v; want %d missed", name, s, want)
			}
		}
		// One that is on time is none of those that were missed.
		e.clock.set(begin.Add(5*time.Hour + schedules.OnTime - time.Microsecond))
		e.due()
		e.wantInstants("all", "2026-03-28T13:00:00Z", "2026-03-28T14:00:00Z", "2026-03-28T15:00:00Z", "2026-03-28T16:00:00Z", "2026-03-28T17:00:00Z")
		e.wantInstants("one", "2026-03-28T15:00:00Z", "2026-03-28T17:00:00Z")
		e.wantInstants("skip", "2026-03-28T17:00:00Z")
		if c := e.schedules.Counters(); c.Enqueued != 5+2+1 || c.Missed != 3+4 {
			e.Errorf("%+v", c)
		}
	},
	"while the last job is not terminal, skip has no other": func(e *env) {
		e.put("s", schedules.Spec{Cron: "* * * * *", Overlap: schedules.OverlapSkip})
		for range 3 {
			e.clock.advance(time.Minute)
			e.due()
		}
		e.wantInstants("s", "2026-03-28T12:01:00Z")
		if s := e.get("s"); s.OverlappedInstants != 2 || !s.Last.Equal(begin.Add(time.Minute)) || !s.Next.Equal(begin.Add(4*time.Minute)) {
			e.Errorf("%+v", s)
		}
		e.finish()
		e.clock.advance(time.Minute)
		e.due()
		e.wantInstants("s", "2026-03-28T12:01:00Z", "2026-03-28T12:04:00Z")
		if c := e.schedules.Counters(); c != (schedules.Counters{Enqueued: 2, Overlapped: 2}) {
			e.Errorf("%+v", c)
		}
	},
	"no clock that is set makes an instant twice": func(e *env) {
		spec := schedules.Spec{Cron: "0 * * * *", Missed: schedules.MissedAll, Function: "f"}
		e.put("s", spec)
		forward := begin.Add(2*time.Hour + time.Second)
		want := []string{"2026-03-28T13:00:00Z", "2026-03-28T14:00:00Z"}
		e.clock.set(forward)
		e.due()
		for range 2 {
			e.finish() // so that the keys are free
		}
		e.clock.set(begin.Add(30 * time.Minute))
		e.due()
		// Neither a change nor a pause repeats an instant.
		spec.Cron = "0,30 * * * *"
		e.put("s", spec)
		for _, call := range []func(context.Context, string) (schedules.Schedule, error){e.schedules.Pause, e.schedules.Resume} {
			if _, err := call(e.Context(), "s"); err != nil {
				e.Fatal(err)
			}
		}
		e.clock.set(begin.Add(time.Hour + time.Minute))
		e.due()
		e.wantInstants("s", want...)
		if s := e.get("s"); !s.Next.Equal(begin.Add(150 * time.Minute)) {
			e.Errorf("next is %v", s.Next)
		}
		e.clock.set(begin.Add(151 * time.Minute))
		e.due()
		e.wantInstants("s", append(want, "2026-03-28T14:30:00Z")...)
	},
	"each instant has one job, however many managers there are": func(e *env) {
		const n, minutes = 20, 3
		all := []*manager{e.manager, e.another(), e.another()}
		for i := range n {
			e.put(fmt.Sprintf("s%02d", i), schedules.Spec{Cron: "* * * * *", Missed: schedules.MissedAll})
		}
		e.clock.advance(minutes * time.Minute)
		var wg sync.WaitGroup
		for _, m := range all {
			for range 2 {
				wg.Go(func() {
					for {
						_, err := m.schedules.RunDue(e.Context())
						if err == nil {
							return
						}
						if !errors.Is(err, store.ErrConflict) {
							e.Error(err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		counted := int64(0)
		for _, m := range all {
			counted += m.schedules.Counters().Enqueued
		}
		if counted != n*minutes {
			e.Errorf("the managers counted %d jobs, want %d", counted, n*minutes)
		}
		for i := range n {
			e.wantInstants(fmt.Sprintf("s%02d", i), "2026-03-28T12:01:00Z", "2026-03-28T12:02:00Z", "2026-03-28T12:03:00Z")
		}
	},
	"schedules outlive the manager": func(e *env) {
		if !e.durable {
			return
		}
		e.put("s", schedules.Spec{Cron: "0 * * * *"})
		e.put("paused", schedules.Spec{Cron: "0 * * * *"})
		if _, err := e.schedules.Pause(e.Context(), "paused"); err != nil {
			e.Fatal(err)
		}
		e.clock.advance(time.Hour)
		e.due()
		before := e.get("s")
		e.close()
		e.manager = e.newManager(e.open(e.T))
		if after := e.get("s"); fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", before) {
			e.Errorf("%+v, and before %+v", after, before)
		}
		e.due()
		e.wantInstants("s", "2026-03-28T13:00:00Z")
		e.clock.advance(time.Hour)
		e.due()
		e.wantInstants("s", "2026-03-28T13:00:00Z", "2026-03-28T14:00:00Z")
		e.wantInstants("paused")
	},
	"a paused schedule has no instants, and misses none": func(e *env) {
		e.put("s", schedules.Spec{Cron: "0 * * * *", Missed: schedules.MissedAll})
		for range 2 {
			s, err := e.schedules.Pause(e.Context(), "s")
			if err != nil || !s.PausedAt.Equal(begin) || !s.Next.IsZero() {
				e.Fatalf("paused: %+v, %v", s, err)
			}
			e.clock.advance(90 * time.Minute)
			e.put("s", schedules.Spec{Cron: "30 * * * *", Missed: schedules.MissedAll}) // stays paused
			e.due()
		}
		e.wantDepth(schedules.Depth{Paused: 1})
		for range 2 {
			s, err := e.schedules.Resume(e.Context(), "s")
			if err != nil || !s.PausedAt.IsZero() || !s.Next.Equal(begin.Add(210*time.Minute)) {
				e.Fatalf("resumed: %+v, %v", s, err)
			}
		}
		e.wantInstants("s")
		e.clock.advance(31 * time.Minute)
		e.wantDepth(schedules.Depth{Active: 1, Late: time.Minute})
		e.due()
		e.wantInstants("s", "2026-03-28T15:30:00Z")
	},
	"a change counts from now, and an equal one changes nothing": func(e *env) {
		spec := schedules.Spec{Cron: "0 * * * *", Function: "f"}
		put := func(want bool) schedules.Schedule {
			e.Helper()
			s, created, err := e.schedules.Put(e.Context(), "s", spec)
			if err != nil || created != want {
				e.Fatalf("%+v, created %v, %v", s, created, err)
			}
			return s
		}
		first := put(true)
		e.clock.advance(time.Hour + time.Second)
		if again := put(false); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", first) {
			e.Errorf("an equal one: %+v, and before %+v", again, first)
		}
		spec.Payload = []byte("7")
		if s := put(false); !s.Next.Equal(first.Next) || s.ChangedAt.Equal(first.ChangedAt) || !s.CreatedAt.Equal(first.CreatedAt) {
			e.Errorf("another payload: %+v", s)
		}
		e.due() // the instant that was due is not lost
		e.wantInstants("s", "2026-03-28T13:00:00Z")
		spec.TimeZone = "Asia/Kolkata"
		if s := put(false); !s.Next.Equal(begin.Add(90 * time.Minute)) {
			e.Errorf("another zone: %+v", s)
		}
	},
	"a schedule that is deleted has no further instants": func(e *env) {
		e.put("s", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		e.due()
		was, err := e.schedules.Delete(e.Context(), "s")
		if err != nil || was.LastJob == "" {
			e.Errorf("deleted %+v, %v", was, err)
		}
		e.clock.advance(time.Minute)
		e.due()
		e.wantInstants("s", "2026-03-28T12:01:00Z")
		for what, call := range map[string]func(context.Context, string) (schedules.Schedule, error){
			"Get": e.schedules.Get, "Delete": e.schedules.Delete, "Pause": e.schedules.Pause, "Resume": e.schedules.Resume,
		} {
			if _, err := call(e.Context(), "s"); !errors.Is(err, jobs.ErrNotFound) || err.Error() != `no schedule "s"` {
				e.Errorf("%s: %v", what, err)
			}
		}
		if _, err := e.schedules.Submission(e.Context(), "s"); !errors.Is(err, jobs.ErrNotFound) {
			e.Errorf("Submission: %v", err)
		}
	},
	"pages have all schedules in order": func(e *env) {
		var want []string
		for i := range 7 {
			want = append(want, fmt.Sprintf("s%d", i))
			e.put(want[i], schedules.Spec{Cron: "* * * * *", Payload: []byte(`"large"`)})
		}
		var got []string
		for after := ""; ; {
			page, more, err := e.schedules.List(e.Context(), 3, after)
			if err != nil || len(page) > 3 {
				e.Fatalf("%d schedules, %v", len(page), err)
			}
			for _, s := range page {
				got = append(got, s.Name)
				if s.Payload != nil || s.Function != "f" || s.Next.IsZero() {
					e.Errorf("listed %+v", s)
				}
			}
			if after = more; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			e.Errorf("%v, want %v", got, want)
		}
	},
	"a record that cannot be read stops no other schedule": func(e *env) {
		for _, name := range []string{"bad", "good"} {
			e.put(name, schedules.Spec{Cron: "* * * * *"})
		}
		next := e.get("bad").Next
		err := e.store.Update(e.Context(), func(tx store.Tx) error {
			sort := fmt.Sprintf("%c%c%c%c", 0, 0, 0, 0) // before all others
			return tx.Put(schedules.Collection, "bad", []byte{99}, store.Entry{Index: "name", SortKey: "bad"}, store.Entry{Index: "next", SortKey: sort + "\x00\x00\x00\x00"})
		})
		if err != nil {
			e.Fatal(err)
		}
		e.clock.set(next)
		e.due()
		e.wantInstants("good", "2026-03-28T12:01:00Z")
		if known := e.unreadable.Known(); len(known) != 1 || known[0].Key != "bad" {
			e.Errorf("known as unreadable: %v", known)
		}
		if page, more, err := e.schedules.List(e.Context(), 10, ""); err != nil || len(page) != 1 || more != "" {
			e.Errorf("listed %+v, %q, %v", page, more, err)
		}
		var u *store.UnreadableError
		if _, _, err := e.schedules.Put(e.Context(), "bad", schedules.Spec{Cron: "* * * * *", Function: "f"}); !errors.As(err, &u) {
			e.Errorf("Put: %v", err)
		}
		if _, err := e.schedules.DeleteUnreadable(e.Context(), "good"); !errors.Is(err, unread.ErrReadable) {
			e.Errorf("DeleteUnreadable of one that can be read: %v", err)
		}
		if u, err := e.schedules.DeleteUnreadable(e.Context(), "bad"); err != nil || u.Key != "bad" {
			e.Errorf("DeleteUnreadable: %v, %v", u, err)
		}
		if _, err := e.schedules.DeleteUnreadable(e.Context(), "bad"); !errors.Is(err, jobs.ErrNotFound) {
			e.Errorf("DeleteUnreadable again: %v", err)
		}
	},
	"while it is unknown whether the last job has ended, skip has no other, and says so": func(e *env) {
		e.put("s", schedules.Spec{Cron: "* * * * *", Overlap: schedules.OverlapSkip})
		e.put("other", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		e.due()
		last := e.get("s").LastJob
		e.damage(last)
		e.clock.advance(time.Minute)
		for range 2 {
			e.clock.advance(time.Minute)
			_, err := e.schedules.RunDue(e.Context())
			var u *store.UnreadableError
			if !errors.As(err, &u) || u.Key != last || !strings.Contains(err.Error(), "schedule s: ") {
				e.Errorf("%v, want an error that names the schedule and job %s", err, last)
			}
		}
		e.wantInstants("s")
		e.wantInstants("other", "2026-03-28T12:01:00Z", "2026-03-28T12:03:00Z", "2026-03-28T12:04:00Z")
		e.wantDepth(schedules.Depth{Active: 2, Late: 2 * time.Minute}) // OncegateScheduleMissed looks at this
		if _, err := e.queue.DeleteUnreadable(e.Context(), jobs.Collection, last); err != nil {
			e.Fatal(err)
		}
		e.due()
		e.wantInstants("s", "2026-03-28T12:04:00Z")
	},
	"Run wakes up for a schedule that is put": func(e *env) {
		ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.schedules.Run(ctx, func(err error) { e.Error(err) })
		}()
		defer func() {
			cancel()
			<-done
		}()
		e.put("old", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		for n := 0; len(e.jobs()["old@2026-03-28T12:01:00Z"]) == 0; n++ {
			// On shared engines a wake-up may be lost.
			e.put("new", schedules.Spec{Cron: "0 0 1 1 *", Priority: n % 1000})
			if ctx.Err() != nil {
				e.Fatal("the job did not come")
			}
		}
	},
}
