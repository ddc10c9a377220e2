package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestUnreadableQuarantine: a manager that cannot read what a restore left does not start, and one that runs takes
// no new key.
func TestUnreadableQuarantine(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"wal", "sqlite"} {
		dir := t.TempDir()
		p := startManager(t, "--store", engine, "--data-dir", dir)
		commitKey(t, p.addr["api"], "early")
		p.kill()
		file := filepath.Join(dir, quarantine.File)
		for _, text := range []string{"", `{"remaining_ms":1`, `{"remaining_ms":1,"logs_ms":"x"}`, `{"remaining_ms":0,"logs_ms":-1}`} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"quarantine", "status"}, {"quarantine", "end"}, {"quarantine", "begin", "--for", "1h"}} {
				if code, out := oncegate(t, append(args, "--store", engine, "--data-dir", dir)...); code != 1 || !strings.Contains(out, file) {
					t.Errorf("%s, %v with %q: exit code %d, %s", engine, args, text, code, out)
				}
			}
		}
	}

	s := servers.Redis(t)
	at := []string{"--store", "redis", "--store-dsn", s.URL}
	q := &quarantineCommand{t, at}
	p := startManager(t, at...)
	q.run("begin", "--for", "1h")
	damage := func(key string) {
		t.Helper()
		st, err := redis.Open(t.Context(), redis.Options{URL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if err := st.Update(t.Context(), func(tx store.Tx) error { return tx.Put(quarantine.Collection, key, []byte(`{"version":2}`)) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"left", "restore"} {
		damage(key)
		for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"quarantine", "status"}, {"quarantine", "end"}} {
			if code, out := oncegate(t, append(args, at...)...); code != 1 || !strings.Contains(out, "quarantine") || !strings.Contains(out, key) {
				t.Errorf("%v with a damaged record %q: exit code %d, %s", args, key, code, out)
			}
		}
		if status, _, answer := do(t, "POST", "http://"+p.addr["api"]+"/v1/ledger/reserve", `{"key":"new","token":"t"}`); !strings.Contains(answer, map[string]string{"left": "record-unreadable", "restore": `"code":"quarantine"`}[key]) {
			t.Errorf("a new key with a damaged record %q: %d %s", key, status, answer)
		}
		q.run("begin", "--for", "1h") // makes new ones
		wantQuarantine(t, "POST", "http://"+p.addr["api"]+"/v1/ledger/reserve", `{"key":"new","token":"t"}`)
	}
}

// TestDamagedCopyInQuarantine: what cannot be read is named, and nothing is guessed: neither that an id is new, nor that it
// is known.
func TestDamagedCopyInQuarantine(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"wal", "sqlite"} {
		h, dir := &history{t: t}, t.TempDir()
		at := []string{"--store", engine, "--data-dir", dir}
		p := startManager(t, at...)
		h.early(p)
		mustAnswer(t, 201, "PUT", h.at(p, "/v1/logs/other"), `{}`)
		mustAnswer(t, 201, "POST", h.at(p, "/v1/logs/other/entries"), entryJSON("early"))
		if code := p.stop(t); code != 0 {
			t.Fatalf("exit code %d: %s", code, p.stderr)
		}
		q := &quarantineCommand{t, at}
		q.run("begin", "--for", "1h")
		damageLog(t, engine, dir, "events")
		if engine == "wal" {
			if code, out := oncegate(t, "wal", "verify", "--data-dir", dir); code != 3 || !strings.Contains(out, `unreadable: log_heads "events"`) {
				t.Errorf("wal verify: exit code %d, %s", code, out)
			}
		}
		p = startManager(t, at...)
		for _, id := range []string{"early", "late"} {
			for _, call := range [][3]string{{"POST", "/v1/logs/events/entries", entryJSON(id)}, {"GET", "/v1/logs/events/entries/by-id/" + id, ""}} {
				if status, _, answer := do(t, call[0], h.at(p, call[1]), call[2]); status < 500 || strings.Contains(answer, `"quarantine"`) {
					t.Errorf("%s: %v of a damaged log: %d %s", engine, call, status, answer)
				}
			}
		}
		if list := mustAnswer(t, 200, "GET", h.at(p, "/v1/logs"), ""); !strings.Contains(list, "log_heads") {
			t.Errorf("%s: the list does not say what is damaged: %s", engine, list)
		}
		mustAnswer(t, 200, "POST", h.at(p, "/v1/logs/other/entries"), entryJSON("early"))
		wantQuarantine(t, "POST", h.at(p, "/v1/logs/other/entries"), entryJSON("late"))
		wantQuarantine(t, "POST", h.at(p, "/v1/ledger/reserve"), `{"key":"late","token":"again"}`)
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr)
		}
		if engine != "wal" {
			continue
		}
		name := damageFile(t, filepath.Join(dir, "*.wal"), "early")
		// The quarantine does not depend on the ledger; the manager refuses to start whatever the quarantine is.
		for _, args := range [][]string{{"begin", "--for", "1h"}, {"end"}} {
			q.run(args...)
			if code, out := oncegate(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, at...)...); code != 1 || !strings.Contains(out, name) {
				t.Errorf("serve with a damaged ledger after quarantine %v: exit code %d, %s", args, code, out)
			}
		}
	}
}

// damageLog makes the head of a log unreadable.
func damageLog(t *testing.T, engine, dir, name string) {
	t.Helper()
	var st store.Store
	var err error
	if engine == "wal" {
		st, err = mem.Open(t.Context(), dir, mem.Options{})
	} else {
		st, err = sqlite.Open(t.Context(), filepath.Join(dir, "oncegate.db"), sqlite.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	err = st.Update(t.Context(), func(tx store.Tx) error {
		return tx.Put("log_heads", name, []byte("{}"), store.Entry{Index: "log", SortKey: name})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// damageFile changes a bit of the text in one of the files, and returns that file's name.
func damageFile(t *testing.T, pattern, text string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(b, []byte(text)); i >= 0 {
			b[i] ^= 1
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return filepath.Base(file)
		}
	}
	t.Fatalf("%q is in none of %v", text, files)
	return ""
}
