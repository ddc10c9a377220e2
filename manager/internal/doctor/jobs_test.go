package doctor

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// queueOf answers as a manager with these statistics and pages of functions; the cursor of each page is its number.
type queueOf struct {
	stats string
	pages []string
}

func (q queueOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/jobs/stats" {
		_, _ = w.Write([]byte(q.stats))
		return
	}
	page, next := 0, ""
	_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &page)
	if page+1 < len(q.pages) {
		next = fmt.Sprint(page + 1)
	}
	_, _ = fmt.Fprintf(w, `{"functions":[%s],"cursor":%q}`, q.pages[page], next)
}

func TestJobs(t *testing.T) {
	const calm = `{"jobs":{},"calls":{"full":0},"waiting":0,"bytes":1048576,"retained_bytes":0,"max_bytes":536870912}`
	well := []string{"ok jobs: room: 0 % of 512 MiB, finished jobs and dead letters 0 %", "ok jobs: dead letters: none", "ok jobs: paused functions: none",
		"ok jobs: waiting jobs: none waits for longer than 15m0s"}
	synctest.Test(t, func(t *testing.T) {
		ago := func(d time.Duration) string { return time.Now().Add(-d).Format(time.RFC3339) }
		idle := func(name string) string {
			return `{"name":"` + name + `","queued":1,"oldest_queued_ms":3600000,"last_minute":{}}`
		}
		for name, c := range map[string]struct {
			stats string
			pages []string
			want  map[int]string // the findings that are not as well
		}{
			"nothing":         {calm, []string{""}, nil},
			"ordinary":        {calm, []string{`{"name":"f","queued":7,"active":3,"oldest_queued_ms":899000,"last_minute":{"claimed":0}}`}, nil},
			"a pause at ease": {calm, []string{`{"name":"f","paused":true,"paused_at":"` + ago(time.Hour) + `"}`}, map[int]string{2: "ok jobs: paused functions: 1 function is paused and without queued jobs"}},
			"nearly full": {`{"calls":{},"bytes":75,"retained_bytes":25,"max_bytes":100}`, []string{""},
				map[int]string{0: "warn jobs: room: 75 % of 0 MiB, finished jobs and dead letters 25 %: new jobs will get 503 queue-full"}},
			"refused": {`{"calls":{"full":2,"over_share":1},"bytes":0,"max_bytes":1048576}`, []string{""},
				map[int]string{0: "warn jobs: room: 0 % of 1 MiB, finished jobs and dead letters 0 %; 2 new jobs were refused since the start"}},
			"a share is full": {`{"calls":{"over_share":1},"bytes":0,"max_bytes":1048576}`, []string{""},
				map[int]string{0: "warn jobs: room: 0 % of 1 MiB, finished jobs and dead letters 0 %; 1 new job was refused since the start, because their submitter had its share"}},
			"dead letters on two pages": {calm, []string{`{"name":"f","dead":1,"last_dead_at":"` + ago(time.Minute) + `"}`, `{"name":"g","dead":200000,"at_least":true,"last_dead_at":"` + ago(48*time.Hour) + `"}`},
				map[int]string{1: "warn jobs: dead letters: f: 1 job failed for good, the last 1m0s ago; g: at least 200000 jobs failed for good, the last 48h0m0s ago"}},
			// A paused function's jobs wait for that reason.
			"paused": {calm, []string{`{"name":"f","paused":true,"paused_at":"` + ago(2*time.Hour) + `","queued":12,"oldest_queued_ms":7200000}`},
				map[int]string{2: "warn jobs: paused functions: f: paused for 2h0m0s, and 12 jobs queued"}},
			"nobody claims": {calm, []string{idle("f")}, map[int]string{3: "warn jobs: waiting jobs: f: 1 job queued, the oldest for 1h0m0s, and no worker claims them"}},
			"too slow": {calm, []string{`{"name":"f","queued":99901,"active":4,"oldest_queued_ms":1000000,"last_minute":{"enqueued":90,"claimed":60}}`},
				map[int]string{3: "warn jobs: waiting jobs: f: 99901 jobs queued, the oldest for 16m40s; 4 run, and in the last minute this manager took 90 and gave 60 to workers"}},
			"many": {calm, []string{strings.Join([]string{idle("a"), idle("b"), idle("c"), idle("d"), idle("e"), idle("f"), idle("g")}, ",")},
				map[int]string{3: "and 2 more functions"}},
		} {
			n := &network{hosts: map[string]http.Handler{"manager": queueOf{c.stats, c.pages}}}
			var r report
			Target{Manager: "http://manager", Client: n.Client()}.jobs(t.Context(), &r)
			want := slices.Clone(well)
			for i, text := range c.want {
				want[i] = text
			}
			if len(r.findings) != len(want) {
				t.Fatalf("%s: %+v", name, r.findings)
			}
			for i, f := range r.findings {
				got := fmt.Sprintf("%s %s: %s", f.Level, f.Check, f.Found)
				if got != want[i] && !(name == "many" && strings.HasSuffix(got, want[i])) || f.Level == OK != (f.Do == "") {
					t.Errorf("%s: %s -> %q\nwant %s", name, got, f.Do, want[i])
				}
			}
		}
		n := &network{hosts: map[string]http.Handler{"manager": http.NotFoundHandler()}}
		var r report
		if (Target{Manager: "http://manager", Client: n.Client()}).jobs(t.Context(), &r); len(r.findings) != 1 || r.findings[0].Level != Warn {
			t.Errorf("without an answer: %+v", r.findings)
		}
	})
}
