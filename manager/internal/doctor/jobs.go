package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
)

const (
	checkRoom   = "jobs: room"
	checkDead   = "jobs: dead letters"
	checkPaused = "jobs: paused functions"
	checkWaits  = "jobs: waiting jobs"
)

const (
	// waitsLong is for how long a job may wait before its function is worth a word, as in the alert OncegateJobsWait.
	waitsLong = 15 * time.Minute
	// functionPages bounds the pages of functionsPerPage functions that are read, and namedFunctions those that a finding
	// names.
	functionPages, functionsPerPage = 10, 1000
	namedFunctions                  = 5
)

// jobs looks at the queue. The token may read statistics.
func (t Target) jobs(ctx context.Context, r *report) {
	var s schema.JobStats
	if !t.read(ctx, r, checkRoom, "/v1/jobs/stats", &s) {
		return
	}
	jobRoom(r, &s)
	var all []schema.Function
	cursor := ""
	for range functionPages {
		var page schema.FunctionPage
		if !t.read(ctx, r, checkWaits, fmt.Sprintf("/v1/functions?limit=%d&cursor=%s", functionsPerPage, url.QueryEscape(cursor)), &page) {
			return
		}
		all = append(all, page.Functions...)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	deadLetters(r, all)
	pausedFunctions(r, all)
	waitingJobs(r, all)
}

// read reads a JSON answer of the manager. It says so if there is none.
func (t Target) read(ctx context.Context, r *report, check, path string, into any) bool {
	a, err := t.get(ctx, t.Manager+path, t.Token)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", a.status, a.body)
	}
	if err == nil {
		err = schema.Unmarshal(a.body, into)
	}
	if err != nil {
		r.warn(check, oneLine(err.Error()), "run the command again, and see the manager's log")
	}
	return err == nil
}

func jobRoom(r *report, s *schema.JobStats) {
	full := float64(s.Bytes) / float64(max(s.MaxBytes, 1))
	found := fmt.Sprintf("%.0f %% of %d MiB, finished jobs and dead letters %.0f %%", 100*full, s.MaxBytes>>20, 100*float64(s.RetainedBytes)/float64(max(s.MaxBytes, 1)))
	const do = "start more workers, or raise --job-max-bytes if its disk (engine memory: its memory) has room"
	refused, share := s.Calls["full"], s.Calls["over_share"]
	switch {
	case full >= fullAt:
		r.warn(checkRoom, found+": new jobs will get 503 queue-full", do)
	case refused > 0:
		r.warn(checkRoom, fmt.Sprintf("%s; %s refused since the start", found, plural(refused, "1 new job was", "%d new jobs were")), do)
	case share > 0:
		r.warn(checkRoom, fmt.Sprintf("%s; %s refused since the start, because their submitter had its share", found, plural(share, "1 new job was", "%d new jobs were")),
			"look at what that submitter sends, or raise --job-submitter-share")
	default:
		r.ok(checkRoom, "%s", found)
	}
}

// those joins the texts that say returns for functions; it leaves out functions with an empty text.
func those(all []schema.Function, say func(*schema.Function) string) string {
	var said []string
	more := 0
	for i := range all {
		switch text := say(&all[i]); {
		case text == "":
		case len(said) < namedFunctions:
			said = append(said, oneLine(all[i].Name)+": "+text)
		default:
			more++
		}
	}
	if more > 0 {
		said = append(said, fmt.Sprintf("and %d more functions", more))
	}
	return strings.Join(said, "; ")
}

// counted is a number of a function's jobs.
func counted(f *schema.Function, n int) string {
	text := plural(int64(n), "1 job", "%d jobs")
	if f.AtLeast {
		text = "at least " + text
	}
	return text
}

func since(t time.Time) string { return lasts(time.Since(t)) }

func lasts(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

func deadLetters(r *report, all []schema.Function) {
	if found := those(all, func(f *schema.Function) string {
		if f.Dead == 0 {
			return ""
		}
		return fmt.Sprintf("%s failed for good, the last %s ago", counted(f, f.Dead), since(f.LastDeadAt))
	}); found != "" {
		r.warn(checkDead, found, "oncegate jobs dead-letters FUNCTION shows why; repair the cause, then oncegate jobs replay")
		return
	}
	r.ok(checkDead, "none")
}

func pausedFunctions(r *report, all []schema.Function) {
	idle := 0
	found := those(all, func(f *schema.Function) string {
		if !f.Paused {
			return ""
		}
		if f.Queued == 0 {
			idle++
			return ""
		}
		return fmt.Sprintf("paused for %s, and %s queued", since(f.PausedAt), counted(f, f.Queued))
	})
	switch {
	case found != "":
		r.warn(checkPaused, found, "oncegate jobs resume FUNCTION, once the reason for the pause is gone")
	case idle > 0:
		r.ok(checkPaused, "%s paused and without queued jobs", plural(int64(idle), "1 function is", "%d functions are"))
	default:
		r.ok(checkPaused, "none")
	}
}

func waitingJobs(r *report, all []schema.Function) {
	waits := func(f *schema.Function) bool { return !f.Paused && f.OldestQueued > waitsLong }
	nobody := func(f *schema.Function) bool { return f.Active == 0 && f.LastMinute.Claimed == 0 }
	waiting := func(f *schema.Function) string {
		return fmt.Sprintf("%s queued, the oldest for %s", counted(f, f.Queued), lasts(f.OldestQueued))
	}
	idle := those(all, func(f *schema.Function) string {
		if !waits(f) || !nobody(f) {
			return ""
		}
		return waiting(f) + ", and no worker claims them"
	})
	slow := those(all, func(f *schema.Function) string {
		if !waits(f) || nobody(f) {
			return ""
		}
		return fmt.Sprintf("%s; %d run, and in the last minute this manager took %d and gave %d to workers", waiting(f), f.Active, f.LastMinute.Enqueued, f.LastMinute.Claimed)
	})
	if idle != "" {
		r.warn(checkWaits, idle, "start workers that claim this function, and look at their tokens and logs")
	}
	if slow != "" {
		r.warn(checkWaits, slow, "start more workers; if they keep up, jobs of a higher priority go first")
	}
	if idle == "" && slow == "" {
		r.ok(checkWaits, "none waits for longer than %s", lasts(waitsLong))
	}
}
