package managertest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/managertest"
)

func newClient(t testing.TB, m *managertest.Manager) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: m.URL, BackoffBase: time.Millisecond, BackoffMax: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStoppedManagerKeepsItsRecords(t *testing.T) {
	m := managertest.Start(t, managertest.Options{})
	c := newClient(t, m)
	first, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	m.Stop()
	m.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if j, err := c.Get(ctx, first.ID); err == nil {
		t.Errorf("a stopped manager answers %+v", j)
	}
	m.Resume()
	m.Resume()
	again, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", IdempotencyKey: "k"})
	if err != nil || again.ID != first.ID {
		t.Errorf("after the stop the same call makes %+v, %v; want job %s", again, err, first.ID)
	}
}

func TestManagerRunsItsDuties(t *testing.T) {
	m := managertest.Start(t, managertest.Options{})
	c := newClient(t, m)
	if _, err := c.SubmitIdempotent(t.Context(), client.Submission{Function: "f", Delay: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	jobs, err := c.Claim(t.Context(), client.ClaimRequest{Worker: "w", Functions: []string{"f"}, Wait: time.Minute})
	if err != nil || len(jobs) != 1 {
		t.Errorf("claimed %+v, %v; want the job that fell due", jobs, err)
	}
}

// Schedules go by the clock of the test.
func TestManagerEnqueuesTheJobsOfSchedules(t *testing.T) {
	var ahead atomic.Int64
	m := managertest.Start(t, managertest.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	c := newClient(t, m)
	s, err := admin.New(c).PutSchedule(t.Context(), "nightly", admin.ScheduleSpec{Cron: "@daily", Function: "f"})
	if err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(25 * time.Hour))
	jobs, err := c.Claim(t.Context(), client.ClaimRequest{Worker: "w", Wait: time.Minute})
	if err != nil || len(jobs) != 1 || !strings.HasPrefix(jobs[0].Key, "nightly@") || jobs[0].Key < "nightly@"+s.NextAt.Format(time.RFC3339) {
		t.Errorf("claimed %+v, %v; want the job of %v or a day later", jobs, err, s.NextAt)
	}
}

func TestPagesAreMountedBelowAPrefix(t *testing.T) {
	m := managertest.Start(t, managertest.Options{})
	if _, err := newClient(t, m).SubmitIdempotent(t.Context(), client.Submission{Function: "invoice.send"}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/ui/", http.StripPrefix("/ops", m.Pages()))
	r := httptest.NewRequest("GET", "/ops/ui/jobs", nil)
	r.Host = "127.0.0.1"
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, r); w.Code != 200 || !strings.Contains(w.Body.String(), "invoice.send") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
