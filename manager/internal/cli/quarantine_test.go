package cli

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
)

// wantQuarantine makes a call that must be refused because of a restore.
func wantQuarantine(t *testing.T, method, url, body string) {
	t.Helper()
	status, header, answer := do(t, method, url, body)
	if status != 503 || gjson.Get(answer, "code").String() != "quarantine" || header.Get("Retry-After") == "" {
		t.Errorf("%s %s %s: %d %s, Retry-After %q", method, url, body, status, answer, header.Get("Retry-After"))
	}
}

func payload(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// history is what a manager was told before the point of a restore, and after it.
type history struct {
	t         *testing.T
	forgotten int64 // the writer's epoch that the restored state lacks
	highest   int64 // of its epochs
}

func (h *history) at(p *process, path string) string { return "http://" + p.addr["api"] + path }

func (h *history) openWriter(p *process) int64 {
	h.t.Helper()
	return gjson.Get(mustAnswer(h.t, 201, "POST", h.at(p, "/v1/logs/events/writers"), `{"writer":"w"}`), "epoch").Int()
}

// early is what the restored state has.
func (h *history) early(p *process) {
	h.t.Helper()
	mustAnswer(h.t, 201, "PUT", h.at(p, "/v1/logs/events"), `{}`)
	commitKey(h.t, p.addr["api"], "early")
	mustAnswer(h.t, 201, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("early"))
	h.openWriter(p)
}

// late is what it lacks.
func (h *history) late(p *process) {
	h.t.Helper()
	commitKey(h.t, p.addr["api"], "late")
	mustAnswer(h.t, 201, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("late"))
	h.forgotten = h.openWriter(p)
	h.highest = h.forgotten
	mustAnswer(h.t, 201, "POST", h.at(p, "/v1/logs/events/entries"), fmt.Sprintf(`{"id":"by-w","payload":%q,"writer":"w","epoch":%d}`, payload("w"), h.forgotten))
}

// quarantined checks that nothing of what is lacking is done again, and that all that is known is answered.
func (h *history) quarantined(p *process) {
	h.t.Helper()
	reserve := func(key string) string { return fmt.Sprintf(`{"key":%q,"token":"again"}`, key) }
	mustAnswer(h.t, 200, "POST", h.at(p, "/v1/ledger/reserve"), reserve("early"))
	mustAnswer(h.t, 200, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("early"))
	mustAnswer(h.t, 200, "GET", h.at(p, "/v1/logs/events/entries/by-id/early"), "")
	wantQuarantine(h.t, "POST", h.at(p, "/v1/ledger/reserve"), reserve("late"))
	wantQuarantine(h.t, "GET", h.at(p, "/v1/ledger/entries/late"), "")
	wantQuarantine(h.t, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("late"))
	wantQuarantine(h.t, "GET", h.at(p, "/v1/logs/events/entries/by-id/late"), "")
	mustAnswer(h.t, 409, "POST", h.at(p, "/v1/logs/events/entries"), fmt.Sprintf(`{"payload":%q,"writer":"w","epoch":%d}`, payload("w"), h.forgotten))
	if epoch := h.openWriter(p); epoch <= h.highest || epoch >= 1<<53 {
		h.t.Errorf("the writer gets epoch %d, it had %d before the restore", epoch, h.highest)
	} else {
		h.highest = epoch
	}
}

// copyFiles copies a directory of a manager that was stopped.
func copyFiles(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestCopiedDirectoryIsQuarantined: a manager goes on from a copy of its files that an operator took before.
func TestCopiedDirectoryIsQuarantined(t *testing.T) {
	for _, engine := range []string{"wal", "sqlite"} {
		t.Run(engine, func(t *testing.T) {
			defer http.DefaultClient.CloseIdleConnections()
			h, dir := &history{t: t}, t.TempDir()
			start := func(dir string) *process { return startManager(t, "--store", engine, "--data-dir", dir) }
			p := start(dir)
			h.early(p)
			if code := p.stop(t); code != 0 {
				t.Fatalf("exit code %d: %s", code, p.stderr)
			}
			older := copyFiles(t, dir)
			p = start(dir)
			h.late(p)
			p.kill()
			hour := time.Hour.Milliseconds()
			if err := quarantine.Write(older, quarantine.Record{Remaining: hour, Logs: map[string]int64{"events": hour}, EpochFloor: 1 << 40, RestoredTo: time.Now()}); err != nil {
				t.Fatal(err)
			}
			for range 2 { // and it outlives restarts
				p = start(older)
				h.quarantined(p)
				p.kill()
			}
		})
	}
}
