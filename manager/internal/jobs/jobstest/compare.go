package jobstest

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// checkNow compares every job after every operation; on slow engines after every
// few operations.
func (p *property) checkNow(t *rapid.T) {
	p.m.tick += 1000
	if p.steps++; p.steps%p.every == 0 {
		p.check(t)
	}
}

func (p *property) check(t *rapid.T) {
	seen := 0
	for cursor := ""; ; {
		page, err := p.q.List(p.ctx, jobs.ListQuery{Limit: 1000, Payloads: true, Cursor: cursor})
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		for _, got := range page.Jobs {
			p.compare(t, got)
		}
		seen += len(page.Jobs)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if seen != len(p.m.jobs) {
		t.Fatalf("list: %d jobs, want %d", seen, len(p.m.jobs))
	}
	p.checkBatches(t)
	if seen == 0 {
		return
	}
	// Get must say the same. Compare only one job each time, because each costs a transaction.
	id := slices.Max(slices.Collect(maps.Keys(p.m.jobs)))
	got, err := p.q.Get(p.ctx, id)
	if err != nil {
		t.Fatalf("job %s: %v", id, err)
	}
	p.compare(t, got)
}

func (p *property) compare(t *rapid.T, got jobs.Job) {
	want := p.m.jobs[got.ID]
	if want == nil {
		t.Fatalf("job %s should not be there: %+v", got.ID, got)
	}
	lsns := map[string]jobs.LSN{}
	for _, w := range got.WALLocations {
		lsns[w.Database] = w.LSN
	}
	token := ""
	if got.Lease != nil {
		token = got.Lease.Token
	}
	if got.State != want.state || got.Attempt != want.attempt || got.MaxAttempts != want.max || got.ReplayedAs != want.replayedAs ||
		got.CancelRequested != want.cancelled || got.ExpiresAt.IsZero() != (want.expires == 0) || got.DeadIfExpired != want.deadIfExpired || got.Timeout != time.Duration(want.timeout)*time.Hour || got.Key != want.key || got.Function != want.function || got.Priority != want.priority ||
		got.ConcurrencyKey != want.concurrencyKey || got.Event != want.event || got.Batch != want.batch.name() || got.After != want.after.name() ||
		string(got.Payload) != want.payload || token != want.token || !got.RunAt.Equal(want.runAt) || !maps.Equal(lsns, want.wal) {
		t.Fatalf("job %s:\n got %+v\nwant %+v", got.ID, got, *want)
	}
}
