package jobs_test

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestJobsRunByTheWallClock: managers and etcd were off for an hour of which etcd counted nothing. Jobs are due by the
// wall clock then, in all managers, whatever their own clocks show. Leases have what was left of them.
func TestJobsRunByTheWallClock(t *testing.T) {
	const away = time.Hour
	dsn := servers.Etcd(t).URL
	open := func(off time.Duration) (*jobs.Queue, *downtime.Store) {
		t.Helper()
		wall := func() time.Time { return time.Now().Add(off) }
		s, err := etcd.Open(t.Context(), etcd.Options{DSN: dsn, Wall: wall, Patience: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		st := downtime.New(s, downtime.Options{Leases: []store.Leases{jobs.Leases()}, Clock: wall})
		if err := st.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		q, err := jobs.New(closed(t, st), jobs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return q, st
	}
	submit := func(q *jobs.Queue, s jobs.Submission) jobs.Job {
		t.Helper()
		out, err := q.Enqueue(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return out.Job
	}
	claim := func(q *jobs.Queue, function string, lease time.Duration) jobs.Job {
		t.Helper()
		got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{function}, Lease: lease, Wait: 50 * time.Second})
		if err != nil || len(got) != 1 {
			t.Fatalf("claim of %s: %v, %v", function, got, err)
		}
		return got[0]
	}

	q, st := open(0)
	submit(q, jobs.Submission{Function: "soon", Delay: away / 2})
	submit(q, jobs.Submission{Function: "later", Delay: 2 * away})
	submit(q, jobs.Submission{Function: "held"})
	submit(q, jobs.Submission{Function: "renewed"})
	held, renewed := claim(q, "held", time.Minute), claim(q, "renewed", time.Minute)
	if _, err := q.Heartbeat(t.Context(), renewed.ID, renewed.Lease.Token, 10*time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	if err := st.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.Close()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}

	q, st = open(away)
	defer q.Close()
	behind := st.Capabilities().Behind
	if b := behind(); (b - away).Abs() > time.Minute {
		t.Errorf("the store's time is behind by %v, want nearly %v", b, away)
	}
	if j := claim(q, "soon", time.Minute); j.StartedAt.Before(j.RunAt) {
		t.Errorf("it ran at %v, before %v", j.StartedAt, j.RunAt)
	}
	other, _ := open(-away) // a manager whose own clock is wrong follows the first one
	defer other.Close()
	for _, q := range []*jobs.Queue{q, other} {
		run := time.Now().Add(away + 300*time.Millisecond)
		submit(q, jobs.Submission{Function: "dated", RunAt: run})
		j := claim(q, "dated", time.Minute)
		if late := time.Since(run.Add(-away)); late < -time.Second || late > 30*time.Second {
			t.Errorf("run_at %v was met %v late", run, late)
		}
		if left := j.Lease.ExpiresIn; left != time.Minute {
			t.Errorf("the lease lasts %v", left)
		}
		zero := 200 * time.Millisecond
		if _, err := q.Retry(t.Context(), jobs.Retry{ID: j.ID, Token: j.Lease.Token, Delay: &zero}); err != nil {
			t.Fatal(err)
		}
		if j = claim(q, "dated", time.Minute); j.Attempt != 2 {
			t.Errorf("attempt %d", j.Attempt)
		}
	}
	for _, want := range []struct {
		job  jobs.Job
		left time.Duration
	}{{held, time.Minute}, {renewed, 10 * time.Hour}} {
		j, err := q.Get(t.Context(), want.job.ID)
		if err != nil {
			t.Fatal(err)
		}
		if j.State != jobs.Active || j.Lease.Token != want.job.Lease.Token || j.Lease.ExpiresIn > want.left+10*time.Second || j.Lease.ExpiresIn < want.left-30*time.Second {
			t.Errorf("%s: %s with the lease %+v; want %v left of it", j.Function, j.State, j.Lease, want.left)
		}
		if _, err := q.Finish(t.Context(), jobs.Finish{ID: j.ID, Token: want.job.Lease.Token, State: jobs.Complete}); err != nil {
			t.Error(err)
		}
	}
	if got, err := q.Claim(t.Context(), jobs.ClaimRequest{Worker: "w", Functions: []string{"later"}}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v: it is due an hour later", got, err)
	}
}
