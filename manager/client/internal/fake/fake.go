// Package fake is a manager of a few lines for the examples of the client. It keeps jobs and logs in memory, without
// leases that end, limits or durability. A test of the repository runs the same examples with a real manager.
package fake

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

// URLEnv names a real manager that takes the place of the fake.
const URLEnv = "ONCEGATE_EXAMPLES_URL"

// Start starts a manager that runs until the program ends, and returns its URL.
func Start() string {
	if url := os.Getenv(URLEnv); url != "" {
		return url
	}
	m := &manager{
		changed: make(chan struct{}), answers: map[string][]byte{}, paused: map[string]bool{}, logs: map[string][]client.LogEntry{},
	}
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(*http.Request, []byte) (int, any){
		"POST /v1/jobs": m.submit, "POST /v1/jobs/batch": m.submitBatch, "GET /v1/jobs": m.list, "GET /v1/jobs/{id}": m.get,
		"POST /v1/jobs/claim": m.claim, "POST /v1/jobs/finish": m.finishMany, "POST /v1/jobs/{id}/finish": m.finish,
		"POST /v1/jobs/{id}/retry": m.retry, "POST /v1/jobs/bulk": m.bulk,
		"GET /v1/functions": m.functions, "POST /v1/functions/{function}/pause": m.pause, "POST /v1/functions/{function}/resume": m.resume,
		"GET /v1/functions/{function}/dead-letters": m.deadLetters, "POST /v1/functions/{function}/dead-letters/{id}/replay": m.replay,
		"PUT /v1/logs/{log}": m.createLog, "POST /v1/logs/{log}/entries": m.appendLog, "GET /v1/logs/{log}/entries": m.readLog,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			status, out := handle(r, b)
			if p, ok := out.(api.Problem); ok {
				p.Status = status
				w.Header().Set("Content-Type", api.ContentTypeProblem)
				w.WriteHeader(status)
				_, _ = w.Write(p.AppendJSON(nil))
				return
			}
			if again, ok := out.(replayed); ok {
				w.Header().Set(api.HeaderReplayed, "true")
				out = json.RawMessage(again)
			}
			raw, ok := out.([]byte)
			if !ok {
				raw, _ = json.Marshal(out)
			}
			w.WriteHeader(status)
			_, _ = w.Write(raw)
		})
	}
	return httptest.NewServer(mux).URL
}

// manager is what the handlers share. They run one at a time.
type manager struct {
	mu      sync.Mutex
	changed chan struct{} // closed at each change of a job
	jobs    []*client.Job
	answers map[string][]byte // by idempotency key
	paused  map[string]bool
	logs    map[string][]client.LogEntry
}

// replayed is an answer that was recorded.
type replayed []byte

func (m *manager) change() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// wait waits for a condition until the request's wait is over.
func (m *manager) wait(r *http.Request, ms int64, cond func() bool) {
	over := time.After(time.Duration(ms) * time.Millisecond)
	for !cond() {
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
			m.mu.Lock()
			continue
		case <-over:
		case <-r.Context().Done():
		}
		m.mu.Lock()
		return
	}
}

func (m *manager) find(id string) *client.Job {
	for _, j := range m.jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

func (m *manager) add(s *submission) *client.Job {
	j := &client.Job{
		ID: s.ID, Function: s.Function, Payload: s.Payload, Key: s.Key, State: client.StateQueued, MaxAttempts: max(s.MaxAttempts, 1), Traceparent: s.Traceparent,
	}
	if j.ID == "" {
		j.ID = "job-" + strconv.Itoa(len(m.jobs)+1)
	}
	if s.DelayMS > 0 {
		j.State = client.StateScheduled
	}
	m.jobs = append(m.jobs, j)
	m.change()
	return j
}

type submission struct {
	ID             string          `json:"id"`
	Function       string          `json:"function"`
	Payload        json.RawMessage `json:"payload"`
	Key            string          `json:"key"`
	MaxAttempts    int             `json:"max_attempts"`
	Traceparent    string          `json:"traceparent"`
	DelayMS        int64           `json:"delay_ms"`
	IdempotencyKey string          `json:"idempotency_key"`
}

func (m *manager) submit(r *http.Request, b []byte) (int, any) {
	key := r.Header.Get(api.HeaderIdempotencyKey)
	if was, ok := m.answers[key]; ok {
		return 200, replayed(was)
	}
	var s submission
	if err := json.Unmarshal(b, &s); err != nil {
		return 400, api.Problem{Code: api.CodeInvalidRequest, Title: "Invalid request", Detail: err.Error()}
	}
	for _, j := range m.jobs {
		if s.Key != "" && j.Key == s.Key && !j.Terminal() {
			return 409, api.Problem{Code: api.CodeDuplicateKey, Title: "Duplicate key", Detail: "a live job has the key"}
		}
	}
	j := m.add(&s)
	m.answers[key], _ = json.Marshal(j)
	return 202, j
}

func (m *manager) submitBatch(_ *http.Request, b []byte) (int, any) {
	var in struct{ Items []submission }
	_ = json.Unmarshal(b, &in)
	var results []any
	for i := range in.Items {
		key := in.Items[i].IdempotencyKey
		was, again := m.answers[key]
		if !again {
			was, _ = json.Marshal(m.add(&in.Items[i]))
			m.answers[key] = was
		}
		result := map[string]any{}
		_ = json.Unmarshal(was, &result)
		result["status"], result["replayed"] = 202, again
		results = append(results, result)
	}
	return 200, map[string]any{"results": results}
}

func (m *manager) get(r *http.Request, _ []byte) (int, any) {
	j := m.find(r.PathValue("id"))
	if j == nil {
		return 404, api.Problem{Code: api.CodeNotFound, Title: "Not found", Detail: "no such job"}
	}
	ms, _ := strconv.ParseInt(r.FormValue("wait_ms"), 10, 64)
	m.wait(r, ms, j.Terminal)
	return 200, j
}

func (m *manager) list(r *http.Request, _ []byte) (int, any) {
	return 200, map[string]any{"jobs": m.selected(r.FormValue("function"), client.State(r.FormValue("state"))), "cursor": ""}
}

func (m *manager) selected(function string, state client.State) []*client.Job {
	out := []*client.Job{}
	for _, j := range m.jobs {
		if (function == "" || j.Function == function) && (state == "" || j.State == state) {
			out = append(out, j)
		}
	}
	return out
}

func (m *manager) claim(r *http.Request, b []byte) (int, any) {
	var in struct {
		Worker    string
		Functions []string
		Limit     int
		WaitMS    int64 `json:"wait_ms"`
	}
	_ = json.Unmarshal(b, &in)
	got := []*client.Job{}
	m.wait(r, in.WaitMS, func() bool {
		for _, j := range m.selected("", client.StateQueued) {
			if (len(in.Functions) == 0 || slices.Contains(in.Functions, j.Function)) && !m.paused[j.Function] && len(got) < max(in.Limit, 1) {
				j.State, j.Attempt = client.StateActive, j.Attempt+1
				j.Lease = &client.Lease{Worker: in.Worker, Token: fmt.Sprint(j.ID, "-", j.Attempt), ExpiresIn: time.Hour}
				got = append(got, j)
			}
		}
		return len(got) > 0
	})
	return 200, map[string]any{"jobs": got}
}

func (m *manager) finish(r *http.Request, b []byte) (int, any) {
	f := client.FinishRequest{}
	_ = json.Unmarshal(b, &f)
	return m.end(r.PathValue("id"), &f)
}

func (m *manager) end(id string, f *client.FinishRequest) (int, any) {
	j := m.find(id)
	if j == nil || j.Lease == nil || j.Lease.Token != f.LeaseToken {
		return 409, api.Problem{Code: api.CodeFenced, Title: "Fenced", Detail: "another worker has the job"}
	}
	j.State, j.Result, j.Error, j.Lease = f.Status, f.Result, f.Error, nil
	m.change()
	answer := *j
	answer.Payload, answer.Result = nil, nil
	return 200, &answer
}

func (m *manager) finishMany(_ *http.Request, b []byte) (int, any) {
	var in struct{ Finishes []client.FinishRequest }
	_ = json.Unmarshal(b, &in)
	var results []any
	for i := range in.Finishes {
		_, out := m.end(in.Finishes[i].ID, &in.Finishes[i])
		results = append(results, out)
	}
	return 200, map[string]any{"results": results}
}

func (m *manager) retry(r *http.Request, b []byte) (int, any) {
	f := client.FinishRequest{}
	_ = json.Unmarshal(b, &f)
	f.Status = client.StateQueued
	return m.end(r.PathValue("id"), &f)
}

func (m *manager) bulk(_ *http.Request, b []byte) (int, any) {
	var in struct {
		Function string
		State    client.State
		DryRun   bool `json:"dry_run"`
	}
	_ = json.Unmarshal(b, &in)
	matched, done := m.selected(in.Function, in.State), 0
	for _, j := range matched {
		if !in.DryRun {
			j.State = client.StateCancelled
			done++
		}
	}
	return 200, map[string]any{"matched": len(matched), "done": done, "refused": []any{}, "cursor": ""}
}
