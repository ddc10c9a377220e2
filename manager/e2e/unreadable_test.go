package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// exitUnreadable is the exit code of wal verify for records that cannot be read.
const exitUnreadable = 3

// damage gives a record the version 99 and leaves its index entries as they are.
func damage(t *testing.T, st store.Store, c store.Collection, key string, indexes ...string) {
	t.Helper()
	err := st.Update(t.Context(), func(tx store.Tx) error {
		value, err := tx.Get(c, key)
		if err != nil {
			return fmt.Errorf("%s %q: %w", c, key, err)
		}
		entries, err := entriesOf(tx, c, key, indexes...)
		if err != nil {
			return err
		}
		value = bytes.Clone(value)
		value[0] = 99
		return tx.Put(c, key, value, entries...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// entriesOf returns the entries of a record in some indexes.
func entriesOf(tx store.Tx, c store.Collection, key string, indexes ...string) (entries []store.Entry, err error) {
	for _, index := range indexes {
		hits, err := tx.Scan(c, index, store.Range{Limit: 100})
		if err != nil {
			return nil, err
		}
		for _, h := range hits {
			if h.Key == key {
				entries = append(entries, store.Entry{Index: index, SortKey: h.SortKey})
			}
		}
	}
	return entries, nil
}

// TestOneUnreadableRecordCostsOneKey damages an entry and a job in the data of a real manager,
// which then does everything but what these two stand for.
func TestOneUnreadableRecordCostsOneKey(t *testing.T) {
	t.Parallel()
	for _, e := range []struct {
		name string
		data func(t *testing.T) (args []string, dir string, open func() (store.Store, error))
	}{
		{"wal", func(t *testing.T) ([]string, string, func() (store.Store, error)) {
			dir := t.TempDir()
			return []string{"--data-dir", dir}, dir, func() (store.Store, error) { return mem.Open(t.Context(), dir, mem.Options{}) }
		}},
		{"sqlite", func(t *testing.T) ([]string, string, func() (store.Store, error)) {
			dir := t.TempDir()
			return []string{"--store", "sqlite", "--data-dir", dir}, "", func() (store.Store, error) {
				return sqlite.Open(t.Context(), filepath.Join(dir, "oncegate.db"), sqlite.Options{})
			}
		}},
		{"redis", func(t *testing.T) ([]string, string, func() (store.Store, error)) {
			srv := servers.Redis(t)
			return []string{"--store", "redis", "--store-dsn", srv.URL}, "", func() (store.Store, error) {
				return redis.Open(t.Context(), redis.Options{URL: srv.URL})
			}
		}},
		{"etcd", func(t *testing.T) ([]string, string, func() (store.Store, error)) {
			srv := servers.Etcd(t)
			return []string{"--store", "etcd", "--store-dsn", srv.URL}, "", func() (store.Store, error) {
				return etcd.Open(t.Context(), etcd.Options{DSN: srv.URL})
			}
		}},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			args, log, open := e.data(t)
			testUnreadableRecords(t, args, log, open)
		})
	}
}

func testUnreadableRecords(t *testing.T, args []string, log string, open func() (store.Store, error)) {
	args = append([]string{"--admin", "127.0.0.1:0", "--cleanup-interval-seconds", "1"}, args...)
	p := startManager(t, args...)
	call := func(want int, path, body string) string {
		t.Helper()
		status, got := post(t, p.addr["api"], path, body)
		if status != want {
			t.Fatalf("%s %s: %d %s, want %d", path, body, status, got, want)
		}
		return got
	}
	get := func(listener, path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + p.addr[listener] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	const result = `"result":{"status":201,"headers":[],"body":"aGk="}`
	for _, key := range []string{"bad", "good"} {
		call(201, "/v1/ledger/reserve", `{"key":"`+key+`","token":"t"}`)
		call(200, "/v1/ledger/commit", `{"key":"`+key+`","token":"t",`+result+`}`)
		call(202, "/v1/jobs", `{"function":"f","payload":1,"id":"`+key+`"}`)
	}
	if code := p.stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}

	st, err := open()
	if err != nil {
		t.Fatal(err)
	}
	damage(t, st, "ledger", "0:bad", "committed")
	damage(t, st, "jobs", "bad", "queued", "function")
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	verify := func(want int, lines ...string) {
		t.Helper()
		if log == "" {
			return
		}
		code, out := oncegate(t, "wal", "verify", "--data-dir", log)
		if code != want {
			t.Errorf("wal verify: exit code %d: %s", code, out)
		}
		for _, line := range lines {
			if !strings.Contains(out, line) {
				t.Errorf("wal verify does not say %q: %s", line, out)
			}
		}
	}
	verify(exitUnreadable, `unreadable: ledger "0:bad": it has version 99`, `unreadable: jobs "bad": it has version 99`,
		"has records that cannot be read: 2; a manager starts on it")

	p = startManager(t, args...)
	for _, path := range []string{"/v1/ledger/reserve", "/v1/ledger/release"} {
		if got := call(500, path, `{"key":"bad","token":"t"}`); !strings.Contains(got, `"code":"record-unreadable"`) || !strings.Contains(got, `0:bad`) {
			t.Errorf("%s: %s", path, got)
		}
	}
	call(500, "/v1/ledger/commit", `{"key":"bad","token":"t",`+result+`}`)
	for _, path := range []string{"/v1/ledger/entries/bad", "/v1/jobs/bad"} {
		if status, got := get("api", path); status != 500 || !strings.Contains(got, "record-unreadable") {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	if got := call(200, "/v1/ledger/reserve", `{"key":"good","token":"t2"}`); !strings.Contains(got, `"body":"aGk="`) {
		t.Errorf("replay: %s", got)
	}
	for range 3 {
		call(200, "/v1/jobs/claim", `{"worker":"w","limit":5}`)
	}
	if _, got := get("api", "/v1/jobs/good"); !strings.Contains(got, `"state":"active"`) {
		t.Errorf("the other job was not claimed: %s", got)
	}
	for path, want := range map[string]string{"/v1/ledger/entries": `"key":"good"`, "/v1/jobs": `"id":"good"`} {
		if status, got := get("api", path); status != 200 || strings.Contains(got, "bad") || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	call(201, "/v1/ledger/reserve", `{"key":"short","token":"t"}`)
	call(200, "/v1/ledger/reject", `{"key":"short","token":"t","ttl_ms":1,`+result+`}`)
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, metrics := get("admin", "/metrics"); strings.Contains(metrics, `oncegate_ledger_removed_total{reason="expired"} 1`) {
			for _, line := range []string{
				`oncegate_unreadable_records{collection="ledger"} 1`, `oncegate_unreadable_records{collection="jobs"} 1`,
				`oncegate_ledger_sweep_errors_total 0`,
			} {
				if !strings.Contains(metrics, line) {
					t.Errorf("metrics lack %s", line)
				}
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the sweeper does nothing")
		}
	}

	cli := func(want int, args ...string) string {
		t.Helper()
		code, out := oncegate(t, append([]string{"unreadable", args[0], "--manager", "http://" + p.addr["api"]}, args[1:]...)...)
		if code != want {
			t.Errorf("%q: exit code %d: %s", args, code, out)
		}
		return out
	}
	list := func(want ...string) {
		t.Helper()
		got := cli(0, "list")
		if strings.Count(got, "\n") != 1+len(want) || strings.Contains(got, "good") {
			t.Errorf("list: %s", got)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("list lacks %q: %s", w, got)
			}
		}
	}
	list("0:bad", "YmFk")
	if got := cli(0, "delete", "jobs", "YmFk"); !strings.Contains(got, "deleted from jobs: bad") {
		t.Errorf("delete: %s", got)
	}
	for _, c := range []struct {
		code                     int
		collection, record, says string
	}{
		{1, "jobs", "YmFk", "no record"},
		{2, "nowhere", "YmFk", "collection"},
		{2, "jobs", "no id!", "RECORD"},
		{1, "ledger", "MDpnb29k", "can be read"}, // 0:good
	} {
		if got := cli(c.code, "delete", c.collection, c.record); !strings.Contains(got, c.says) {
			t.Errorf("delete %s %s: %s", c.collection, c.record, got)
		}
	}
	list("0:bad")
	if status, _ := get("api", "/v1/jobs/bad"); status != 404 {
		t.Errorf("the deleted job: %d", status)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	for _, key := range []string{`"collection":"ledger","key":"0:bad"`, `"collection":"jobs","key":"bad"`} {
		logged := 0
		for line := range strings.Lines(p.stderr.String()) {
			if strings.Contains(line, "a record cannot be read") && strings.Contains(line, key) {
				logged++
			}
		}
		if logged != 1 {
			t.Errorf("logged %d times of %s: %s", logged, key, p.stderr)
		}
	}
	if !strings.Contains(p.stderr.String(), `"msg":"unreadable record deleted by an administrator"`) {
		t.Errorf("the deletion is not audited: %s", p.stderr)
	}
	verify(exitUnreadable, `unreadable: ledger "0:bad"`, "has records that cannot be read: 1;")
}
