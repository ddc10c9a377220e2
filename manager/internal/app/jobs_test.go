package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// TestJobsThatLostTheirWorkersAreLogged: a line names job, function and worker. A machine that goes with all of its jobs
// makes a bounded number of lines, and a later one counts the others. Each dead letter has its line.
func TestJobsThatLostTheirWorkersAreLogged(t *testing.T) {
	var out bytes.Buffer
	a := &app{log: slog.New(slog.NewTextHandler(&out, nil))}
	j := jobs.Job{ID: "j1", Function: "mail.send", Attempt: 2, State: jobs.Queued}
	for range lostLines + 3 {
		a.jobLost(j, "host:1")
	}
	if first, _, _ := strings.Cut(out.String(), "\n"); !strings.HasSuffix(first, `msg="a job lost its worker" job=j1 function=mail.send worker=host:1 attempt=2 state=queued`) {
		t.Errorf("the first line is %s", first)
	}
	if n := strings.Count(out.String(), "\n"); n != lostLines {
		t.Errorf("%d lines, want %d", n, lostLines)
	}
	a.lost.until = time.Time{}
	a.jobLost(j, "host:1")
	if !strings.HasSuffix(out.String(), "state=queued not_logged_before=3\n") {
		t.Error("the next line does not count those that were not logged")
	}
	out.Reset()
	for i := range lostLines + 3 {
		a.jobDied(jobs.Job{ID: fmt.Sprint("d", i), Function: "f", Attempt: 25, Error: "no route to host\nat line 7", State: jobs.Failed})
	}
	if first, _, _ := strings.Cut(out.String(), "\n"); !strings.HasSuffix(first, `msg="a job became a dead letter" job=d0 function=f attempts=25 error="no route to host"`) {
		t.Errorf("the first line is %s", first)
	}
	if n := strings.Count(out.String(), "\n"); n != lostLines+3 {
		t.Errorf("%d lines for %d dead letters", n, lostLines+3)
	}
	if got := clipError(strings.Repeat("ü", 1000)); len(got) > maxErrorLine+10 {
		t.Errorf("an error has %d bytes", len(got))
	}
}
