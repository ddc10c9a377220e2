package languages

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// end is a case of TestWorkersEnd.
type end struct {
	name, options string
	millis        int  // of work in a job
	strict        bool // no job may run again
	again         bool // some must
	// before starts what must run before the jobs are there.
	before func(w *world, l *language, log string)
	// trouble makes it while jobs are done, and returns the driver that works at last.
	trouble func(w *world, l *language, log string, progress func()) *driver
}

var ends = []end{
	{name: "killed", options: `,"lease_ms":1000`, millis: 5, trouble: func(w *world, l *language, log string, progress func()) *driver {
		d := w.driver
		for range deep.Rounds(2, 10) {
			progress()
			d.kill()
			d = w.another(l, w.wire.url(), log, `,"lease_ms":1000`)
		}
		return d
	}},
	{name: "stopped", options: `,"lease_ms":3600000`, millis: 5, strict: true, trouble: func(w *world, l *language, log string, progress func()) *driver {
		d := w.driver
		for range deep.Rounds(3, 20) {
			progress()
			if err := d.terminate(); err != nil {
				w.t.Errorf("a driver that was stopped ended with %v", err)
			}
			d = w.another(l, w.wire.url(), log, `,"lease_ms":3600000`)
		}
		return d
	}},
	{name: "cut off", options: `,"lease_ms":500,"name":"first"`, millis: 1000, again: true, before: func(w *world, l *language, log string) {
		// It finds the jobs of the first worker, and is not cut off.
		w.another(l, w.manager.URL, log, `,"lease_ms":500,"name":"second"`)
	}, trouble: func(w *world, l *language, log string, progress func()) *driver {
		for round := range deep.Rounds(1, 5) {
			eventually(w.t, "the first worker runs jobs, or all are done", func() bool { return w.runs("first", log) || round > 0 && w.open() == 0 })
			w.wire.cut(true)
			again := repeated(readEvents(w.t, log))
			eventually(w.t, "jobs run again, or all are done", func() bool {
				return repeated(readEvents(w.t, log)) > again || w.open() == 0
			})
			w.wire.cut(false)
		}
		return w.driver
	}},
	{name: "slow", options: `,"lease_ms":2000`, millis: 2500, trouble: func(w *world, l *language, log string, progress func()) *driver {
		w.wire.slow(20 * time.Millisecond)
		return w.driver
	}},
}

// another starts one more driver and its worker.
func (w *world) another(l *language, url, log, options string) *driver {
	w.t.Helper()
	d := l.start(w.t)
	d.log = log
	d.open(url, "")
	d.work(`{"f":"sleep"}`, `,"concurrency":20`+options)
	return d
}

// repeated counts the runs after a job's first attempt.
func repeated(all []event) (n int) {
	for _, e := range all {
		if e.Event == "begin" && e.Attempt > 1 {
			n++
		}
	}
	return n
}

// open counts the jobs that are not over.
func (w *world) open() (n int) {
	for _, j := range w.all() {
		if !j.Terminal() {
			n++
		}
	}
	return n
}

// runs reports whether a handler of the worker has begun a job that is not over.
func (w *world) runs(worker, log string) bool {
	begun := map[string]bool{}
	for _, e := range readEvents(w.t, log) {
		begun[e.Job] = true
	}
	for _, j := range w.all() {
		if j.State == client.StateActive && j.Lease != nil && j.Lease.Worker == worker && begun[j.ID] {
			return true
		}
	}
	return false
}

// TestWorkersEnd kills workers, stops them, cuts them off and slows them down, while they have many jobs. None is lost, and none
// runs twice without a lost lease. The handlers' log says what ran.
func TestWorkersEnd(t *testing.T) {
	jobs := deep.Rounds(100, 1000)
	each(t, func(t *testing.T, l *language) {
		for _, e := range ends {
			t.Run(e.name, func(t *testing.T) { e.run(t, l, jobs) })
		}
	})
}

func (e *end) run(t *testing.T, l *language, jobs int) {
	w := startWorld(t, l, nil)
	log := filepath.Join(t.TempDir(), "log")
	w.driver.log = log
	if e.before != nil {
		e.before(w, l, log)
	}
	all := make([]client.Submission, jobs)
	for i := range all {
		all[i] = client.Submission{Function: "f", ID: fmt.Sprint("job-", i), Payload: e.millis}
	}
	submitted, err := w.judge.SubmitBatch(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range submitted {
		if s.Err != nil {
			t.Fatal(s.Err)
		}
	}
	concurrency := 20
	if e.millis > 1000 {
		concurrency = 200
	}
	w.driver.work(`{"f":"sleep"}`, fmt.Sprintf(`,"concurrency":%d%s`, concurrency, e.options))
	d := e.trouble(w, l, log, func() { // waits until a part of the jobs has been done
		done := count(readEvents(t, log), "end", "*")
		eventually(t, "jobs are done", func() bool {
			now := count(readEvents(t, log), "end", "*")
			return now >= done+jobs/20 || now >= jobs
		})
	})
	for i := range all {
		w.driver = d
		if j := w.over(all[i].ID); j.State != client.StateComplete {
			t.Errorf("job %s is %s: %s", j.ID, j.State, j.Error)
		}
	}
	if a := d.call("stop", "", 0); a.Error != nil {
		t.Error(a.text)
	}
	runs := map[string][]event{}
	for _, v := range readEvents(t, log) {
		if v.Event == "begin" {
			runs[v.Job] = append(runs[v.Job], v)
		}
	}
	again := 0
	for i := range all {
		id := all[i].ID
		j := w.job(id)
		lost := map[int]bool{}
		for _, f := range j.Errors {
			lost[f.Attempt] = strings.Contains(f.Error, "lost its lease")
		}
		begun := map[int]bool{}
		for _, r := range runs[id] {
			kept := r.Attempt >= j.Attempt-5 // a job has its last five errors
			if begun[r.Attempt] || r.Attempt != j.Attempt && kept && !lost[r.Attempt] {
				t.Errorf("job %s ran %+v, and ended at attempt %d after the errors %+v", id, runs[id], j.Attempt, j.Errors)
			}
			begun[r.Attempt] = true
		}
		if len(runs[id]) == 0 {
			t.Errorf("job %s is complete and did not run", id)
		}
		again += len(runs[id]) - 1
	}
	if e.again && again == 0 {
		t.Error("no job ran again")
	}
	if e.strict && again > 0 {
		t.Errorf("%d runs again", again)
	}
	t.Logf("%d jobs, %d runs again after a lost lease", jobs, again)
}
