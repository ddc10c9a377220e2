package schedules_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
)

// TestWhatNoEngineDecides: limits, and what the queue refuses.
func TestWhatNoEngineDecides(t *testing.T) {
	memory := func(t *testing.T) *env { return newEnv(t, memoryOpener()) }
	t.Run("the latest of more missed instants than the bound", func(t *testing.T) {
		e := memory(t)
		e.put("s", schedules.Spec{Cron: "* * * * *", Missed: schedules.MissedAll})
		e.put("one", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(365 * 24 * time.Hour)
		e.due()
		all := e.jobs()
		if len(all) != schedules.MaxMissed+1 {
			t.Errorf("%d jobs", len(all))
		}
		last := begin.Add(365 * 24 * time.Hour)
		for i := range schedules.MaxMissed {
			if key := schedules.InstantKey("s", last.Add(-time.Duration(i)*time.Minute)); len(all[key]) != 1 {
				t.Fatalf("%d jobs with the key %s", len(all[key]), key)
			}
		}
		for _, name := range []string{"s", "one"} {
			if s := e.get(name); s.MissedInstants != schedules.MaxMissed || !s.Next.Equal(last.Add(time.Minute)) || !s.Last.Equal(last) {
				t.Errorf("%+v", s)
			}
		}
	})
	t.Run("bad fields", func(t *testing.T) {
		e := memory(t)
		good := schedules.Spec{Cron: "* * * * *", Function: "f"}
		for field, change := range map[string]func(*schedules.Spec){
			"cron":         func(s *schedules.Spec) { s.Cron = "0 0 30 2 *" },
			"time_zone":    func(s *schedules.Spec) { s.TimeZone = "Local" },
			"function":     func(s *schedules.Spec) { s.Function = "" },
			"payload":      func(s *schedules.Spec) { s.Payload = []byte("{") },
			"priority":     func(s *schedules.Spec) { s.Priority = 1 << 20 },
			"max_attempts": func(s *schedules.Spec) { s.MaxAttempts = -1 },
		} {
			bad := good
			change(&bad)
			_, _, err := e.schedules.Put(t.Context(), "s", bad)
			var wrong *jobs.FieldError
			if !errors.As(err, &wrong) || wrong.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		for _, name := range []string{"", "a/b", ".", strings.Repeat("n", 129)} {
			if _, _, err := e.schedules.Put(t.Context(), name, good); !errors.Is(err, jobs.ErrInvalid) {
				t.Errorf("name %q: %v", name, err)
			}
		}
		good.Cron = ""
		if _, _, err := e.schedules.Put(t.Context(), "s", good); err == nil || err.Error() != "field cron: is missing; allowed: five fields, as in 0 9 * * 1-5" {
			t.Errorf("no cron: %v", err)
		}
		if _, err := schedules.ParseMissed("some"); err == nil || err.Error() != `field missed: "some" is not allowed; allowed: one, skip, all` {
			t.Errorf("missed: %v", err)
		}
		if _, err := schedules.ParseOverlap("some"); err == nil || err.Error() != `field overlap: "some" is not allowed; allowed: allow, skip` {
			t.Errorf("overlap: %v", err)
		}
		if _, err := schedules.New(e.store, e.queue, schedules.Options{Interval: 1}); err == nil {
			t.Error("an interval of a nanosecond")
		}
	})
	t.Run("as many as allowed", func(t *testing.T) {
		e := memory(t)
		for i := range schedules.MaxSchedules {
			e.put(fmt.Sprint("s", i), schedules.Spec{Cron: "@daily"})
		}
		var wrong *jobs.FieldError
		if _, _, err := e.schedules.Put(t.Context(), "more", schedules.Spec{Cron: "@daily", Function: "f"}); !errors.As(err, &wrong) || wrong.Field != "name" {
			t.Errorf("one more: %v", err)
		}
		e.put("s0", schedules.Spec{Cron: "@hourly"}) // a change is none more
		e.clock.advance(24 * time.Hour)
		e.due()
		if n := e.schedules.Counters().Enqueued; n != schedules.MaxSchedules {
			t.Errorf("%d jobs at once", n)
		}
	})
	t.Run("a queue without room", func(t *testing.T) {
		o := memoryOpener()
		e := &env{T: t, opener: o, clock: new(clock), options: jobs.Options{MaxBytes: jobs.MinMaxBytes}}
		e.clock.set(begin)
		e.manager = e.newManager(o.open(t))
		large := []byte(`"` + strings.Repeat("x", 1<<20-2) + `"`)
		var held []jobs.Job
		for {
			out, err := e.queue.Enqueue(t.Context(), jobs.Submission{Function: "filler", Payload: large})
			if errors.Is(err, jobs.ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, out.Job)
		}
		e.put("s", schedules.Spec{Cron: "* * * * *", Payload: large, Missed: schedules.MissedAll})
		e.clock.advance(time.Minute)
		if _, err := e.schedules.RunDue(t.Context()); !errors.Is(err, jobs.ErrFull) {
			t.Errorf("RunDue: %v", err)
		}
		if s := e.get("s"); !s.Next.Equal(begin.Add(time.Minute)) {
			t.Errorf("the instant is gone: %+v", s)
		}
		if _, err := e.queue.Delete(t.Context(), held[0].ID); err != nil {
			t.Fatal(err)
		}
		e.clock.advance(time.Second)
		e.due()
		e.wantInstants("s", "2026-03-28T12:01:00Z")
	})
	t.Run("a live job that has the key is the instant's", func(t *testing.T) {
		e := memory(t)
		holder, err := e.queue.Enqueue(t.Context(), jobs.Submission{Function: "g", Key: "s@2026-03-28T12:01:00Z"})
		if err != nil {
			t.Fatal(err)
		}
		e.put("s", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		e.due()
		e.wantInstants("s", "2026-03-28T12:01:00Z")
		if s := e.get("s"); s.LastJob != holder.Job.ID {
			t.Errorf("%+v", s)
		}
	})
	t.Run("a submitter that has the key does not stand in the way", func(t *testing.T) {
		e := memory(t)
		holder, err := e.queue.Enqueue(t.Context(), jobs.Submission{Function: "g", Key: "s@2026-03-28T12:01:00Z", Owner: "somebody"})
		if err != nil {
			t.Fatal(err)
		}
		e.put("s", schedules.Spec{Cron: "* * * * *"})
		e.clock.advance(time.Minute)
		e.due()
		s := e.get("s")
		if j, err := e.queue.Get(t.Context(), s.LastJob); err != nil || j.ID == holder.Job.ID || j.Function != "f" || j.Key != "" || !s.Last.Equal(begin.Add(time.Minute)) {
			t.Errorf("%+v with the job %+v, %v", s, j, err)
		}
		e.clock.advance(time.Minute)
		e.due()
		e.wantInstants("s", "2026-03-28T12:01:00Z", "2026-03-28T12:02:00Z")
	})
	t.Run("a submission by hand has the time as its instant", func(t *testing.T) {
		e := memory(t)
		e.put("s", schedules.Spec{Cron: "* * * * *", Payload: []byte("7")})
		e.clock.advance(1500 * time.Millisecond)
		sub, err := e.schedules.Submission(t.Context(), "s")
		if err != nil || sub.Key != "s@2026-03-28T12:00:01.5Z" || sub.Function != "f" || string(sub.Payload) != "7" {
			t.Errorf("%+v, %v", sub, err)
		}
	})
}
