package languages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/managertest"
)

// world is what a case has.
type world struct {
	t       *testing.T
	manager *managertest.Manager
	wire    *wire
	driver  *driver
	judge   *client.Client // talks to the manager itself
	values  map[string]string
}

// startWorld starts a manager with a clock, nil for the real one, a wire before it, and a driver that calls it through the wire.
func startWorld(t *testing.T, l *language, clock func() time.Time) *world {
	t.Helper()
	return worldOf(t, l.start(t), clock)
}

// worldOf is startWorld for a driver that runs already.
func worldOf(t *testing.T, d *driver, clock func() time.Time) *world {
	t.Helper()
	m := managertest.Start(t, managertest.Options{Clock: clock, BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	c, err := client.New(client.Options{URL: m.URL})
	if err != nil {
		t.Fatal(err)
	}
	d.t = t
	w := &world{t: t, manager: m, wire: startWire(t, m.URL), judge: c, driver: d}
	w.values = map[string]string{
		"wire": w.wire.url(), "manager": m.URL, "dir": t.TempDir(), "large": strings.Repeat("x", 1<<20), "umlauts": strings.Repeat("ü", 1<<18), "deep": strings.Repeat("[", 99) + strings.Repeat("]", 99),
	}
	t.Cleanup(func() { // while there is a manager that takes its reports
		select {
		case <-d.begin("stop", "", 0):
		case <-d.ended:
		case <-time.After(patience):
			t.Error("the worker does not stop")
		}
	})
	d.open(w.wire.url(), "")
	return w
}

// fill puts values in place of their names.
func (w *world) fill(text string) string {
	return reference.ReplaceAllStringFunc(text, func(name string) string {
		v, ok := w.values[strings.Trim(name, "${}")]
		if !ok {
			w.t.Fatalf("%s: no value %s", text, name)
		}
		return v
	})
}

var reference = regexp.MustCompile(`\$\{[a-z_]+\}`)

// job reads a job from the manager.
func (w *world) job(id string) *client.Job {
	w.t.Helper()
	j, err := w.judge.Get(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

// submit makes a job at the manager itself.
func (w *world) submit(s client.Submission) string {
	w.t.Helper()
	if s.Function == "" {
		s.Function = "f"
	}
	j, err := w.judge.SubmitIdempotent(w.t.Context(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	return j.ID
}

// over waits for a job's end.
func (w *world) over(id string) *client.Job {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	j, err := w.judge.Wait(ctx, id)
	if err != nil {
		w.t.Fatalf("job %s: %v; the driver's standard error:\n%s", id, err, w.driver.errors)
	}
	return j
}

// all returns all jobs of the manager.
func (w *world) all() []client.Job {
	w.t.Helper()
	page, err := admin.New(w.judge).List(w.t.Context(), admin.ListQuery{Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	return page.Jobs
}

// step is a command and its answer.
type step struct {
	faults []fault // from here on, in place of the earlier ones
	do     func(w *world)
	op     string // none if empty
	args   string // with ${name} for a value
	within time.Duration
	want   string            // pattern of the answer
	keep   map[string]string // values: name to path in the answer
}

// call is a case of TestCalls.
type call struct {
	name  string
	steps []step
	jobs  int            // in the manager afterwards
	seen  map[string]int // requests on the wire by the end of method and path, where the number matters
	check func(w *world)
}

// TestCalls runs the table of calls with each client.
func TestCalls(t *testing.T) {
	each(t, func(t *testing.T, l *language) {
		d := l.start(t) // one for all: some take long to start
		for _, c := range calls {
			t.Run(c.name, func(t *testing.T) { c.run(t, worldOf(t, d, nil)) })
		}
	})
}

func (c *call) run(t *testing.T, w *world) {
	for i, s := range c.steps {
		if s.faults != nil {
			w.wire.set(s.faults...)
		}
		if s.do != nil {
			s.do(w)
		}
		if s.op == "" {
			continue
		}
		a := w.driver.call(s.op, w.fill(s.args), s.within)
		if d := match(w.fill(s.want), a.text); d != "" {
			t.Fatalf("step %d, %s %s: %s\nanswer %.2000s", i, s.op, s.args, d, a.text)
		}
		for name, path := range s.keep {
			w.values[name] = find(t, a.text, path)
		}
	}
	if got := len(w.all()); got != c.jobs {
		t.Errorf("the manager has %d jobs, want %d", got, c.jobs)
	}
	for path, want := range c.seen {
		if got := len(w.wire.requests(path)); got != want {
			t.Errorf("%d requests %s, want %d", got, path, want)
		}
	}
	if c.check != nil {
		c.check(w)
	}
}

var structuredKey = regexp.MustCompile(`^([!-~]+):([0-9]+):([0-9a-f]{16})$`)

// oneKey checks that all submissions came with the same key, which the client drew.
func oneKey(w *world) {
	w.t.Helper()
	for i, r := range w.wire.requests("POST /v1/jobs") {
		if i == 0 {
			w.values["key"] = r.key
		}
		if r.key != w.values["key"] || !structuredKey.MatchString(r.key) {
			w.t.Errorf("request %d has the key %q, the first one %q", i, r.key, w.values["key"])
		}
	}
}

// lost are n faults of one path.
func lost(does, path string, n int) []fault { return []fault{{path: path, does: does, times: n}} }

func problem(status int, code string, header map[string]string) fault {
	h := map[string]string{"Content-Type": "application/problem+json"}
	for name, value := range header {
		h[name] = value
	}
	return fault{
		path: "/v1/jobs", does: answered, status: status, header: h,
		body: fmt.Sprintf(`{"type":"urn:oncegate:problem:%s","title":"The title","status":%d,"code":%q,"detail":"the detail"}`, code, status, code),
	}
}

// notOfAManager are bodies of a success that no manager sends.
var notOfAManager = []string{`{}`, `null`, `[]`, `"text"`, `{"status":"ok"}`, `no JSON`, ``, `{"id":"","state":"queued"}`}

var calls = concat(submissions, answers, jobCalls, operatorCalls, otherCalls)

func concat(all ...[]call) (out []call) {
	for _, c := range all {
		out = append(out, c...)
	}
	return out
}

// writeFile makes a file in the case's folder.
func writeFile(name, text string) func(w *world) {
	return func(w *world) {
		if err := os.WriteFile(filepath.Join(w.values["dir"], name), []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}
