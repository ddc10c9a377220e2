package clienttest

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

func TestScheduleCalls(t *testing.T) {
	m := startManager(t)
	begin := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	m.frozen.Store(&begin)
	c := m.client(nil)
	a, ctx := admin.New(c), t.Context()
	s, err := a.PutSchedule(ctx, "report", admin.ScheduleSpec{
		Cron: "30 2 * * *", TimeZone: "Europe/Vienna", Function: "f", Payload: map[string]int{"a": 1}, MaxAttempts: 2, Timeout: time.Minute, Missed: "all", Overlap: "skip",
	})
	next := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	if err != nil || s.Name != "report" || string(s.Payload) != `{"a":1}` || !s.NextAt.Equal(next) || s.MaxAttempts != 2 || s.Timeout != time.Minute || s.Missed != "all" || s.Overlap != "skip" || !s.CreatedAt.Equal(begin) {
		t.Errorf("put: %+v, %v", s, err)
	}
	if s, err := a.PauseSchedule(ctx, "report"); err != nil || !s.Paused || !s.PausedAt.Equal(begin) || !s.NextAt.IsZero() {
		t.Errorf("pause: %+v, %v", s, err)
	}
	if s, err := a.ResumeSchedule(ctx, "report"); err != nil || s.Paused || !s.NextAt.Equal(next) {
		t.Errorf("resume: %+v, %v", s, err)
	}
	m.frozen.Store(&next)
	if _, err := m.schedules.RunDue(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = a.Schedule(ctx, "report"); err != nil || !s.LastAt.Equal(next) || s.LastJob == "" {
		t.Fatalf("get: %+v, %v", s, err)
	}
	if j, err := c.Get(ctx, s.LastJob); err != nil || j.Key != "report@2026-03-29T01:00:00Z" {
		t.Errorf("its job: %+v, %v", j, err)
	}
	first, err := a.RunSchedule(ctx, "report", "k")
	if err != nil || first.Replayed || first.Function != "f" {
		t.Fatalf("run: %+v, %v", first, err)
	}
	if again, err := a.RunSchedule(ctx, "report", "k"); err != nil || !again.Replayed || again.ID != first.ID {
		t.Errorf("run again: %+v, %v", again, err)
	}
	if page, err := a.Schedules(ctx, 10, ""); err != nil || len(page.Schedules) != 1 || page.Schedules[0].Payload != nil || page.Cursor != "" {
		t.Errorf("list: %+v, %v", page, err)
	}
	if err := a.DeleteSchedule(ctx, "report"); err != nil {
		t.Error(err)
	}
	if _, err := a.Schedule(ctx, "report"); !client.HasCode(err, api.CodeNotFound) {
		t.Errorf("get: %v", err)
	}
}
