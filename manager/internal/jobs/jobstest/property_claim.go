package jobstest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (p *property) limit(t *rapid.T) {
	f := genFunction.Draw(t, "function")
	var l jobs.Limits
	if rapid.Bool().Draw(t, "limited") {
		l.MaxRunning = rapid.IntRange(1, 3).Draw(t, "max_running")
	}
	if rapid.Bool().Draw(t, "limited by key") {
		l.MaxRunningPerKey = rapid.IntRange(1, 2).Draw(t, "max_running_per_key")
	}
	if rapid.IntRange(0, 2).Draw(t, "rated") == 0 {
		n := rapid.IntRange(1, 3).Draw(t, "count")
		l.Rate = jobs.Rate{Count: n, Per: time.Duration(n*rapid.IntRange(1, 3).Draw(t, "hours a token")) * time.Hour}
	}
	p.wantErr("limits", p.q.SetLimits(p.ctx, f, l), "")
	p.m.limits[f] = l
}

func (p *property) claim(t *rapid.T) {
	c := jobs.ClaimRequest{Worker: "w", Limit: rapid.IntRange(1, 4).Draw(t, "limit")}
	c.Functions = rapid.SliceOfNDistinct(genFunction, 0, 3, rapid.ID[string]).Draw(t, "functions")
	p.claimNow(t, c, p.hours(t, "lease"))
}

// claimNow claims, and compares the answer with what the lanes of the model have.
func (p *property) claimNow(t *rapid.T, c jobs.ClaimRequest, hours int) {
	c.Lease = time.Duration(hours) * time.Hour
	got, err := p.q.Claim(p.ctx, c)
	p.wantErr("claim", err, "")
	p.m.due()
	p.learn()
	p.m.tick += 1000
	lanes := p.m.lanes(c.Functions)
	left, want, ordered := p.quotas(lanes, c.Limit)
	if len(got) != want {
		t.Fatalf("claim of %v: got %v, want %d jobs", c.Functions, ids(got), want)
	}
	delivered := map[string]int{}
	for i, j := range got {
		mj := p.m.jobs[j.ID]
		k := slices.IndexFunc(lanes, func(l *modelLane) bool { return slices.Contains(l.left, mj) })
		if mj == nil || k < 0 || left[mj.function] == 0 {
			t.Fatalf("claim of %v: %v, where %s may not run", c.Functions, ids(got), j.ID)
		}
		l := lanes[k]
		if ordered {
			p.checkOrder(t, c, lanes, left, l, mj, ids(got[:i+1]))
		}
		if l.left[0] != mj {
			t.Fatalf("claim of %v: %v, want %s instead of %s", c.Functions, ids(got), l.left[0].id, j.ID)
		}
		l.take()
		left[mj.function]--
		delivered[mj.function]++
		p.m.claimed(mj, i+1, hours, j.Lease.Token)
		if string(j.Payload) != mj.payload {
			t.Fatalf("claim: payload %s, want %s", j.Payload, mj.payload)
		}
	}
	for function, n := range delivered {
		p.m.delivered(function, n)
	}
}

// quotas returns how many jobs of each function a claim may get, and how many jobs it must get. ordered is false if a limit
// of a function is met by jobs with concurrency keys and others. Which of these come first is not laid down.
func (p *property) quotas(lanes []*modelLane, limit int) (left map[string]int, want int, ordered bool) {
	left, ordered = map[string]int{}, true
	for _, function := range functionNames {
		left[function] = p.m.quota(function)
		kinds, all, near := 0, 0, 0
		for _, l := range lanes {
			if l.function == function {
				kinds++
				all += len(l.all)
				near += min(len(l.all), limit, left[function])
			}
		}
		want += min(all, left[function])
		ordered = ordered && (kinds < 2 || near <= left[function])
	}
	return left, min(want, limit), ordered
}

// checkOrder makes sure that no lane has a job that must come before j, which is the next job from lane l.
func (p *property) checkOrder(t *rapid.T, c jobs.ClaimRequest, lanes []*modelLane, left map[string]int, l *modelLane, j *modelJob, got []string) {
	level := l.next()
	for _, o := range lanes {
		switch {
		case len(o.left) == 0 || left[o.function] == 0 || o.next() < level:
		case o.next() > level:
			t.Fatalf("claim of %v: %v, where %s has a higher priority", c.Functions, got, o.left[0].id)
		case len(c.Functions) > 0 && o.hadOf(level) < l.hadOf(level):
			t.Fatalf("claim of %v: %v, where it is the turn of %s", c.Functions, got, o.left[0].id)
		case len(c.Functions) == 0 && !o.keyed && !l.keyed && o.left[0].runAt.Before(j.runAt):
			t.Fatalf("claim of %v: %v, where %s has waited longer", c.Functions, got, o.left[0].id)
		}
	}
}

// drain works until no job is left, so that none may wait forever.
func (p *property) drain(t *rapid.T) {
	for _, f := range functionNames {
		if p.m.paused[f] {
			p.wantErr("resume", p.q.Resume(p.ctx, f), "")
			p.m.paused[f] = false
		}
	}
	for round := 0; ; round++ {
		var fs []jobs.Finish
		var running []*modelJob
		live := 0
		for _, j := range p.m.sorted(nil) {
			if !j.state.Terminal() {
				live++
			}
			if isActive(j) {
				running = append(running, j)
				fs = append(fs, jobs.Finish{ID: j.id, Token: j.token, State: jobs.Complete})
			}
		}
		if live == 0 {
			break
		}
		if round == 200 {
			t.Fatalf("%d jobs still wait: %v", live, p.m.jobs)
		}
		if p.m.tick += 1000; len(fs) > 0 {
			done, err := p.q.FinishMany(p.ctx, fs)
			p.wantErr("finish many", err, "")
			for i, j := range running {
				p.wantErr("finish of many", done[i].Err, "")
				j.lastToken = j.token
				p.m.end(j, jobs.Complete)
			}
			p.learn()
		}
		p.advanceBy(4)
		p.m.tick += 1000
		c := jobs.ClaimRequest{Worker: "w", Limit: jobs.MaxLimit}
		if round%2 == 0 {
			c.Functions = functionNames
		}
		p.claimNow(t, c, 24)
	}
	p.check(t)
	for _, b := range p.m.batches {
		if b.finished == nil {
			t.Fatalf("batch %s has not finished, and no job is left", b.id)
		}
	}
}

func (l *modelLane) String() string { return fmt.Sprint(l.function, " keyed ", l.keyed) }
