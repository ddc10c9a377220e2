package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// opened are the engines with their stores, which a test may change while no manager runs.
var opened = map[string]func(t *testing.T) (args []string, open func() (store.Store, error)){
	"wal": func(t *testing.T) ([]string, func() (store.Store, error)) {
		dir := t.TempDir()
		return []string{"--data-dir", dir}, func() (store.Store, error) { return mem.Open(t.Context(), dir, mem.Options{}) }
	},
	"sqlite": func(t *testing.T) ([]string, func() (store.Store, error)) {
		dir := t.TempDir()
		return []string{"--store", "sqlite", "--data-dir", dir}, func() (store.Store, error) {
			return sqlite.Open(t.Context(), filepath.Join(dir, "oncegate.db"), sqlite.Options{})
		}
	},
	"redis": func(t *testing.T) ([]string, func() (store.Store, error)) {
		url := servers.Redis(t).URL
		return []string{"--store", "redis", "--store-dsn", url}, func() (store.Store, error) { return redis.Open(t.Context(), redis.Options{URL: url}) }
	},
	"postgres": func(t *testing.T) ([]string, func() (store.Store, error)) {
		url := servers.Postgres(t).URL
		return []string{"--store", "postgres", "--store-dsn", url}, func() (store.Store, error) {
			return postgres.Open(t.Context(), postgres.Options{DSN: url})
		}
	},
	"etcd": func(t *testing.T) ([]string, func() (store.Store, error)) {
		url := servers.Etcd(t).URL
		return []string{"--store", "etcd", "--store-dsn", url}, func() (store.Store, error) { return etcd.Open(t.Context(), etcd.Options{DSN: url}) }
	},
}

// TestMovedAndCutValues: on every engine, an encrypted value that was copied to another key, scope or job, or was cut, is
// an error for its own key and nothing else.
func TestMovedAndCutValues(t *testing.T) {
	t.Parallel()
	each(t, deep.Keys(t, opened), func(t *testing.T, name string) {
		args, open := opened[name](t)
		args = append(args, "--encryption-key-file", keyFile(t, "k1"), "--committed-ttl-seconds", "3600")
		p := startManager(t, args...)
		useSecrets(t, p.addr["api"])
		for _, key := range []string{`"key":"moved"`, `"key":"pay","scope":"other"`, `"key":"cut"`} {
			url := "http://" + p.addr["api"] + "/v1/ledger/"
			mustAnswer(t, 201, "POST", url+"reserve", `{`+key+`,"token":"t"}`)
			mustAnswer(t, 200, "POST", url+"commit", `{`+key+`,"token":"t","result":{"status":201,"body":"aGk="}}`)
		}
		for _, id := range []string{"moved", "cut"} {
			mustAnswer(t, 202, "POST", "http://"+p.addr["api"]+"/v1/jobs", fmt.Sprintf(`{"function":"f","id":%q,"payload":%s}`, id, large("other")))
		}
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr)
		}

		st, err := open()
		if err != nil {
			t.Fatal(err)
		}
		replace(t, st, "ledger", "0:moved", func(get func(string) []byte) []byte { return get("0:pay") }, "committed")
		replace(t, st, "ledger", "5:otherpay", func(get func(string) []byte) []byte { return get("0:pay") }, "committed")
		replace(t, st, "ledger", "0:cut", func(get func(string) []byte) []byte { v := get("0:cut"); return v[:len(v)-1] }, "committed")
		replace(t, st, "jobs", "moved", func(get func(string) []byte) []byte { return get("batched") }, "queued", "function")
		replace(t, st, "job_blobs", "cut/p", func(get func(string) []byte) []byte { return get("large/p") }, "sealed")
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}

		p = startManager(t, args...)
		url := "http://" + p.addr["api"]
		for _, call := range []string{
			`POST /v1/ledger/reserve {"key":"moved","token":"u"}`, `POST /v1/ledger/reserve {"key":"pay","scope":"other","token":"u"}`,
			`POST /v1/ledger/reserve {"key":"cut","token":"u"}`, "GET /v1/ledger/entries/moved", "GET /v1/jobs/moved", "GET /v1/jobs/cut",
		} {
			method, rest, _ := strings.Cut(call, " ")
			path, body, _ := strings.Cut(rest, " ")
			if answer := mustAnswer(t, 500, method, url+path, body); !strings.Contains(answer, "record-unreadable") || !strings.Contains(answer, "does not open") || strings.Contains(answer, "4242-") {
				t.Errorf("%s: %s", call, answer)
			}
		}
		if answer := mustAnswer(t, 200, "POST", url+"/v1/jobs/claim", `{"worker":"w","functions":["f"],"limit":10}`); answer != `{"jobs":[]}` {
			t.Errorf("claimed: %s", answer)
		}
		checkSecrets(t, p.addr["api"])
		p.kill()
		wrong := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(wrong, []byte("k1:"+testKey("other")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		refusedStart(t, `its key "k1" is not the one`, append(args, "--encryption-key-file", wrong)...)
	})
}

// replace gives a record another value, which may be that of another record, and leaves its index entries.
func replace(t *testing.T, st store.Store, c store.Collection, key string, with func(get func(string) []byte) []byte, indexes ...string) {
	t.Helper()
	err := st.Update(t.Context(), func(tx store.Tx) error {
		var failed error
		value := with(func(key string) []byte {
			v, err := tx.Get(c, key)
			if err != nil {
				failed = fmt.Errorf("%s %q: %w", c, key, err)
				return []byte{0}
			}
			return bytes.Clone(v)
		})
		if failed != nil {
			return failed
		}
		entries, err := entriesOf(tx, c, key, indexes...)
		if err != nil {
			return err
		}
		return tx.Put(c, key, value, entries...)
	})
	if err != nil {
		t.Fatal(err)
	}
}
