package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/doctor"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/managertest/servers"
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

// history is what a manager was asked before the point of a restore, and after it.
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
	mustAnswer(h.t, 202, "POST", h.at(p, "/v1/jobs"), `{"function":"f","id":"early"}`)
	mustAnswer(h.t, 201, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("early"))
	h.openWriter(p)
}

// late is what it lacks.
func (h *history) late(p *process) {
	h.t.Helper()
	commitKey(h.t, p.addr["api"], "late")
	mustAnswer(h.t, 202, "POST", h.at(p, "/v1/jobs"), `{"function":"f","id":"late"}`)
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
	mustAnswer(h.t, 409, "POST", h.at(p, "/v1/jobs"), `{"function":"f","id":"early"}`)
	mustAnswer(h.t, 202, "POST", h.at(p, "/v1/jobs"), `{"function":"f"}`)
	wantQuarantine(h.t, "POST", h.at(p, "/v1/jobs"), `{"function":"f","id":"late"}`)
	wantQuarantine(h.t, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("late"))
	wantQuarantine(h.t, "GET", h.at(p, "/v1/logs/events/entries/by-id/late"), "")
	mustAnswer(h.t, 409, "POST", h.at(p, "/v1/logs/events/entries"), fmt.Sprintf(`{"payload":%q,"writer":"w","epoch":%d}`, payload("w"), h.forgotten))
	if epoch := h.openWriter(p); epoch <= h.highest || epoch >= 1<<53 {
		h.t.Errorf("the writer gets epoch %d, it had %d before the restore", epoch, h.highest)
	} else {
		h.highest = epoch
	}
}

// quarantineState is what the command prints, without the time when it began.
type quarantineState struct {
	Store            string  `json:"store"`
	RemainingSeconds float64 `json:"remaining_seconds"`
	EpochFloor       uint64  `json:"epoch_floor"`
}

// quarantineCommand is "oncegate quarantine" for a store.
type quarantineCommand struct {
	t     *testing.T
	store []string
}

func (c *quarantineCommand) run(args ...string) (s quarantineState) {
	c.t.Helper()
	code, out := oncegate(c.t, slices.Concat([]string{"quarantine"}, args, c.store)...)
	if code != 0 {
		c.t.Fatalf("quarantine %v: exit code %d, %s", args, code, out)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		c.t.Fatalf("%s: %v", out, err)
	}
	return s
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

// TestCopiedDirectoryIsQuarantined: a manager continues from a copy of its files that an operator took before.
func TestCopiedDirectoryIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"wal", "sqlite"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
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
			q := &quarantineCommand{t, []string{"--store", engine, "--data-dir", older}}
			floor := q.run("begin", "--for", "1h").EpochFloor
			for range 2 { // and it outlives restarts
				p = start(older)
				h.quarantined(p)
				if code, out := oncegate(t, append([]string{"quarantine", "end"}, q.store...)...); code != 1 {
					t.Errorf("end while a manager runs: exit code %d, %s", code, out)
				}
				p.kill()
			}
			// The same copy once more, and a clock that was set back meanwhile would make no difference.
			if again := q.run("begin", "--for", "1m"); again.EpochFloor <= floor+1<<32 || again.RemainingSeconds < 3000 {
				t.Errorf("a second begin: %+v, the floor was %d", again, floor)
			}
			if ended := q.run("end"); ended.RemainingSeconds != 0 || ended.EpochFloor <= floor+1<<32 || q.run("status") != ended {
				t.Errorf("end: %+v, status: %+v", ended, q.run("status"))
			}
			p = start(older)
			mustAnswer(t, 201, "POST", h.at(p, "/v1/logs/events/entries"), entryJSON("late"))
			commitKey(t, p.addr["api"], "late")
			if epoch := h.openWriter(p); epoch <= h.highest {
				t.Errorf("the writer gets epoch %d after %d", epoch, h.highest)
			}
		})
	}
}

// TestQuarantineLeavesTheStoreAlone: begin, status and end change no file of a store whose manager was killed. A log that
// the command opened would delete segments that are still to be shipped.
func TestQuarantineLeavesTheStoreAlone(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"wal", "sqlite"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := startManager(t, "--store", engine, "--data-dir", dir)
			(&history{t: t}).early(p)
			p.kill()
			files := func() map[string]string {
				t.Helper()
				content := make(map[string]string)
				err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
					if err != nil || d.IsDir() || d.Name() == "lock" || strings.HasSuffix(name, ".lock") || name == quarantine.File {
						return err
					}
					b, err := os.ReadFile(filepath.Join(dir, name))
					content[name] = fmt.Sprintf("%x", sha256.Sum256(b))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return content
			}
			before := files()
			q := &quarantineCommand{t, []string{"--store", engine, "--data-dir", dir}}
			for _, args := range [][]string{{"begin", "--for", "1h"}, {"status"}, {"end"}} {
				q.run(args...)
				if after := files(); !maps.Equal(after, before) || len(before) == 0 {
					t.Errorf("%s changed the files from %v to %v", args[0], before, after)
				}
			}
			none := t.TempDir()
			for _, args := range [][]string{{"begin", "--for", "1h"}, {"status"}, {"end"}} {
				if code, out := oncegate(t, slices.Concat([]string{"quarantine"}, args, []string{"--store", engine, "--data-dir", none})...); code != 2 || !strings.Contains(out, "must be the directory of a manager") {
					t.Errorf("%s of an empty directory: exit code %d, %s", args[0], code, out)
				}
			}
			if left, err := os.ReadDir(none); err != nil || len(left) > 0 {
				t.Errorf("the empty directory has %v, %v", left, err)
			}
		})
	}
}

// sharedServers start the servers of the engines that managers share.
var sharedServers = map[string]func(testing.TB, ...string) *servers.Server{
	"redis": servers.Redis, "postgres": servers.Postgres, "etcd": servers.Etcd,
}

// TestSharedStoreIsQuarantined: the server's own files are put back from a copy, and two managers continue with it. They are
// killed in the middle of the quarantine.
func TestSharedStoreIsQuarantined(t *testing.T) {
	t.Parallel()
	for engine, server := range sharedServers {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := server(t)
			q := &quarantineCommand{t, []string{"--store", engine, "--store-dsn", s.URL}}
			for _, args := range [][]string{{"begin", "--for", "1h"}, {"status"}, {"end"}, {"status"}} { // the last shows that none of them used it
				if code, out := oncegate(t, slices.Concat([]string{"quarantine"}, args, q.store)...); code != 2 || !strings.Contains(out, "no manager has used") || strings.Count(out, "\n") != 1 {
					t.Errorf("%s of a store that nobody used: exit code %d, %s", args[0], code, out)
				}
			}
			start := func() *process { return startManager(t, append([]string{"--admin", "127.0.0.1:0"}, q.store...)...) }
			files := func(from, to string) {
				t.Helper()
				s.Kill()
				for _, args := range [][]string{{"rm", "-rf", to}, {"cp", "-a", from, to}} {
					if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
				if err := s.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			data, backup := filepath.Join(s.Dir(), map[string]string{"redis": "appendonlydir"}[engine]), filepath.Join(t.TempDir(), "backup")
			if engine != "redis" {
				data = filepath.Join(s.Dir(), "data")
			}
			h := &history{t: t}
			a := start()
			h.early(a)
			a.kill()
			files(data, backup)
			a, b := start(), start()
			h.late(a)
			commitKey(t, b.addr["api"], "late-too")
			a.kill()
			b.kill()
			files(backup, data)

			begun := q.run("begin", "--for", "1h")
			if begun.RemainingSeconds != 3600 || begun.EpochFloor == 0 {
				t.Errorf("begin: %+v", begun)
			}
			a, b = start(), start()
			h.quarantined(a)
			h.quarantined(b)
			wantQuarantine(t, "POST", h.at(b, "/v1/ledger/reserve"), `{"key":"late-too","token":"again"}`)
			a.kill()
			h.quarantined(b)
			waitFor(t, "the quarantine is counted down", func() bool { return q.run("status").RemainingSeconds < 3600 })
			b.kill()
			if first, second := q.run("status"), q.run("status"); first != second || first.EpochFloor != begun.EpochFloor {
				t.Errorf("while no manager runs: %+v, then %+v", first, second)
			}
			a, b = start(), start()
			h.quarantined(a)
			for _, p := range []*process{a, b} {
				stats := mustAnswer(t, 200, "GET", h.at(p, "/v1/ledger/stats"), "")
				if left := gjson.Get(stats, "quarantine_ms").Int(); left <= 0 || left > 3600_000 {
					t.Errorf("the statistics say %s", stats)
				}
				metrics := mustAnswer(t, 200, "GET", "http://"+p.addr["admin"]+"/metrics", "")
				if !strings.Contains(metrics, "oncegate_quarantine_remaining_seconds 3") {
					t.Error("the metrics do not show it")
				}
				code, found, _ := examine(t, "--manager", "http://"+p.addr["api"], "--metrics", "http://"+p.addr["admin"])
				if code != 1 || !has(found, doctor.Fail, "manager: quarantine", "new ones get 503") || !has(found, doctor.Fail, "manager: alarms", "oncegate_quarantine_remaining_seconds") {
					t.Errorf("the doctor: exit code %d, %+v", code, found)
				}
			}

			// Managers that run obey the next call: it ends and begins for both at once.
			commit := func(p *process, key string) { commitKey(t, p.addr["api"], key) }
			q.run("end")
			commit(a, "between-a")
			commit(b, "between-b")
			var begins atomic.Bool
			stop := make(chan struct{})
			var callers sync.WaitGroup
			for i, p := range []*process{a, b} {
				callers.Go(func() { noNewKeyAfter(t, p, i, &begins, stop) })
			}
			again := q.run("begin", "--for", "1h")
			begins.Store(true)
			if again.EpochFloor <= begun.EpochFloor+1<<32 {
				t.Errorf("the floor was %d, and is %d after another begin", begun.EpochFloor, again.EpochFloor)
			}
			h.quarantined(a)
			h.quarantined(b)
			close(stop)
			callers.Wait()
			q.run("end")
			q.run("begin", "--for", "2s")
			for i, p := range []*process{a, b} {
				waitFor(t, "it is over", func() bool {
					status, _, _ := do(t, "POST", h.at(p, "/v1/ledger/reserve"), fmt.Sprintf(`{"key":"over-%d","token":"t"}`, i))
					return status == 201
				})
			}
			if now := q.run("status"); now.RemainingSeconds != 0 || now.EpochFloor <= again.EpochFloor {
				t.Errorf("after it: %+v", now)
			}
			mustAnswer(t, 201, "POST", h.at(a, "/v1/logs/events/entries"), entryJSON("late"))
		})
	}
}

// noNewKeyAfter reserves new keys. None may succeed that is asked for once the quarantine has begun.
func noNewKeyAfter(t *testing.T, p *process, caller int, begun *atomic.Bool, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		over := begun.Load()
		resp, err := http.Post("http://"+p.addr["api"]+"/v1/ledger/reserve", "application/json", strings.NewReader(fmt.Sprintf(`{"key":"caller-%d-%d","token":"t"}`, caller, i)))
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode == 201 && over {
			t.Errorf("a new key was reserved after the quarantine had begun, by manager %d", caller)
		}
	}
}
