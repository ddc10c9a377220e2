package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// manager is a real manager process.
type manager struct {
	t          testing.TB
	api, admin string // URLs
	kill       func()
}

// startManager starts a manager with tokens.
func startManager(t testing.TB, flags ...string) *manager {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(operatorToken+" operator\n"+adminToken+" admin\n"+peerToken+" peer\nsubmitter-token-of-the-tests submitter\nworker-token-of-the-tests worker:mail.send\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startOpen(t, append([]string{"--auth-token-file", tokens}, flags...)...)
}

// startOpen starts a manager that asks for nothing.
func startOpen(t testing.TB, flags ...string) *manager {
	t.Helper()
	dir := t.TempDir()
	addresses := filepath.Join(dir, "addresses")
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(top(t), "build", "oncegate"), append([]string{"serve", "--store", "wal", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--addr-file", addresses}, flags...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; make build first", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	m := &manager{t: t, kill: sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
	})}
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("manager: %s", log.String())
		}
	})
	for m.admin == "" {
		b, _ := os.ReadFile(addresses)
		for line := range strings.Lines(string(b)) {
			switch name, addr, _ := strings.Cut(strings.TrimSpace(line), " "); name {
			case "api":
				m.api = "http://" + addr
			case "admin":
				m.admin = "http://" + addr
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the manager ended: %v: %s", err, log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return m
}

// call makes a POST of the API and decodes the answer.
func (m *manager) call(path string, body map[string]any) map[string]any {
	m.t.Helper()
	return m.do("POST", path, body)
}

func (m *manager) do(method, path string, body map[string]any) map[string]any {
	m.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		m.t.Fatal(err)
	}
	req, err := http.NewRequest(method, m.api+path, bytes.NewReader(b))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 && resp.StatusCode != http.StatusUnprocessableEntity { // which is a mismatch
		m.t.Fatalf("%s %s %s: status %d %s, %v", method, path, b, resp.StatusCode, answer, err)
	}
	out := map[string]any{}
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &out); err != nil {
			m.t.Fatal(err)
		}
	}
	return out
}

// seeds are what seed made.
type seeds struct{ queued, dead, tried, running, sent string }

// What strangers may send, and what is as long as it can be.
const (
	hostileText = "<img src=x onerror=alert(1)> \u202egnp.tpircs\u202c \u05e9\u05dc\u05d5\u05dd \U0001f4b3\U0001f6ab could not be sent"
	hostileKey  = `"><script>alert(document.domain)</script><b>`
	longScope   = "hmac-sha256:api.shop.example.com/v2/tenants/acme-europe/payments:9b3f0f6f2a1c4d0e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f"
)

var longKey = strings.Repeat("acme-europe.checkout:", 11) + "0123456789abcdef01234567"

// seed fills a manager with what there is to look at.
func (m *manager) seed() (s seeds) {
	m.t.Helper()
	for i := range 70 {
		j := m.call("/v1/jobs", map[string]any{"function": "mail.send", "key": fmt.Sprintf("order-%d/confirmation", 1000+i), "payload": map[string]any{"to": "ann@example.org", "order": 1000 + i}})
		s.queued = j["id"].(string)
	}
	for i := range 4 {
		m.call("/v1/jobs", map[string]any{"function": "report.build", "payload": i, "delay_ms": 3600000})
	}
	m.call("/v1/functions/report.build/pause", map[string]any{})
	claimed := m.call("/v1/jobs/claim", map[string]any{"worker": "worker-7", "functions": []string{"mail.send"}, "limit": 9, "lease_ms": 3600000})["jobs"].([]any)
	for i, c := range claimed {
		j := c.(map[string]any)
		end := map[string]any{"lease_token": j["lease"].(map[string]any)["token"], "status": "complete", "result": map[string]any{"message": "250 ok"}}
		if i >= 4 {
			end["status"], end["error"] = "failed", "554 5.7.1 <ann@example.org>: relay access denied by mx1.example.org, the mailbox is unavailable"
			delete(end, "result")
			s.dead = j["id"].(string)
		}
		s.running = j["id"].(string) // the last two stay so
		if i < 7 {
			m.call("/v1/jobs/"+j["id"].(string)+"/finish", end)
		}
	}
	for i := range 101 { // more than a list shows
		m.call("/v1/ledger/reserve", map[string]any{"key": fmt.Sprintf("refund-%d", 7000+i), "scope": "shop", "token": "t"})
	}
	for i := range 12 {
		key, token := fmt.Sprintf("payment-%d", 4200+i), fmt.Sprintf("%032d", i)
		m.call("/v1/ledger/reserve", map[string]any{"key": key, "token": token, "fingerprint": strings.Repeat("ab", 32)})
		if i > 3 {
			m.call("/v1/ledger/commit", map[string]any{"key": key, "token": token, "fingerprint": strings.Repeat("ab", 32), "result": map[string]any{
				"status": 201, "headers": [][]string{{"content-type", "application/json"}}, "body": "eyJpZCI6InBheV80MiJ9"}})
		}
	}
	m.call("/v1/ledger/reserve", map[string]any{"key": "payment-4205", "token": "another", "fingerprint": strings.Repeat("cd", 32)})
	m.life("payment-4206")
	for i, key := range []string{longKey, hostileKey} {
		m.call("/v1/ledger/reserve", map[string]any{"key": key, "scope": longScope, "token": fmt.Sprintf("long-%d", i), "fingerprint": strings.Repeat("12", 32)})
		m.call("/v1/ledger/reserve", map[string]any{"key": key, "scope": longScope, "token": fmt.Sprintf("other-%d", i), "fingerprint": strings.Repeat("34", 32)})
	}
	s.tried = m.call("/v1/jobs", map[string]any{"function": "invoice.render", "key": longKey, "max_attempts": 4, "payload": map[string]any{"invoice": 77}})["id"].(string)
	for i, trouble := range []string{
		"dial tcp 10.0.3.7:443: connect: connection refused", hostileText,
		"render: page 3: " + strings.Repeat("font DejaVuSans-BoldOblique has no glyph for U+1F4B3; ", 40), "exit status 137: out of memory",
	} {
		m.attempt(s.tried, fmt.Sprintf("render-%d.dc1.example.com", 7+i), trouble, i == 3)
	}
	longName := strings.Repeat("acme-europe.", 10) + "count"
	m.do("PUT", "/v1/schedules/report.nightly", map[string]any{"cron": "0 3 * * *", "time_zone": "Europe/Vienna", "function": "report.build"})
	m.do("PUT", "/v1/schedules/"+longName, map[string]any{"cron": "0,15,30,45 8-18 * * 1-5", "time_zone": "America/Argentina/ComodRivadavia", "function": longName, "overlap": "skip", "expires_in_ms": 60000, "timeout_ms": 1000})
	m.call("/v1/schedules/"+longName+"/pause", map[string]any{})
	m.do("PUT", "/v1/functions/report.build", map[string]any{"max_running": 5, "max_running_per_key": 1, "rate": map[string]any{"count": 100, "per_ms": 60000}})
	m.do("PUT", "/v1/events/order.paid/subscriptions/mail.send", map[string]any{})
	m.do("PUT", "/v1/events/"+longName+"/subscriptions/"+longName, map[string]any{})
	s.sent = m.call("/v1/events/"+longName, map[string]any{"payload": 1})["jobs"].([]any)[0].(map[string]any)["id"].(string)
	m.call("/v1/jobs", map[string]any{"function": longName, "concurrency_key": longKey, "expires_in_ms": 86400000, "timeout_ms": 60000})
	m.call("/v1/ledger/unknown", map[string]any{"key": "payment-4200", "token": fmt.Sprintf("%032d", 0), "fingerprint": strings.Repeat("ab", 32)})
	return s
}

// life lets much happen to a key.
func (m *manager) life(key string) {
	m.t.Helper()
	call := func(path, token string, more map[string]any) {
		body := map[string]any{"key": key, "scope": longScope, "token": token}
		if path == "reserve" || path == "commit" {
			body["fingerprint"] = strings.Repeat("ef", 32)
		}
		for name, value := range more {
			body[name] = value
		}
		m.call("/v1/ledger/"+path, body)
	}
	call("reserve", "gone", nil)
	call("release", "gone", nil)
	call("reserve", "first", nil)
	for range 6 {
		call("renew", "first", nil)
		call("reserve", "impatient", nil)
	}
	call("commit", "first", map[string]any{"result": map[string]any{"status": 201, "headers": [][]string{{"content-type", "application/json"}}, "body": "eyJpZCI6InBheV80MiJ9"}})
	for i := range 23 {
		call("reserve", fmt.Sprintf("retry-%d", i), nil)
	}
	call("reserve", "mistaken", map[string]any{"fingerprint": strings.Repeat("09", 32)})
}

// attempt lets a worker try a job, which fails: for good, or to be tried again at once.
func (m *manager) attempt(id, worker, trouble string, last bool) {
	m.t.Helper()
	for {
		claimed := m.call("/v1/jobs/claim", map[string]any{"worker": worker, "functions": []string{"invoice.render"}, "wait_ms": 60000})["jobs"].([]any)
		if len(claimed) == 0 {
			continue // on a machine that stood still
		}
		token := claimed[0].(map[string]any)["lease"].(map[string]any)["token"]
		if last {
			m.call("/v1/jobs/"+id+"/finish", map[string]any{"lease_token": token, "status": "failed", "error": trouble})
		} else {
			m.call("/v1/jobs/"+id+"/retry", map[string]any{"lease_token": token, "delay_ms": 1, "error": trouble})
		}
		return
	}
}
