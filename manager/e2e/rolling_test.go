package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestRollingEncryption restarts two managers of one store one after the other, from plain to encrypted and on to another
// key, while callers reserve, commit and retry, submit, claim and finish jobs, and write and read a log
// at both. Every answer is the right one.
func TestRollingEncryption(t *testing.T) {
	t.Parallel()
	shared := map[string]func(testing.TB) string{
		"redis":    func(t testing.TB) string { return servers.Redis(t).URL },
		"postgres": func(t testing.TB) string { return servers.Postgres(t).URL },
		"etcd":     func(t testing.TB) string { return servers.Etcd(t).URL },
	}
	each(t, deep.Keys(t, shared), func(t *testing.T, name string) {
		store := []string{"--store", name, "--store-dsn", shared[name](t), "--committed-ttl-seconds", "3600", "--admin", "127.0.0.1:0"}
		start := func(args ...string) *process { return startManager(t, append(args, store...)...) }
		var managers [2]atomic.Pointer[process]
		managers[0].Store(start())
		managers[1].Store(start())
		mustAnswer(t, 201, "PUT", "http://"+managers[0].Load().addr["api"]+"/v1/logs/rolling", `{}`)

		stop := make(chan struct{})
		const callers = 4
		var running sync.WaitGroup
		var rounds atomic.Int64
		for c := range callers {
			running.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if err := roundAtBoth(&managers, c, i); err != nil {
						t.Error(err)
						return
					}
					rounds.Add(1)
				}
			})
		}
		defer running.Wait()
		defer sync.OnceFunc(func() { close(stop) })()
		some := func() {
			t.Helper()
			n := rounds.Load() + 8
			waitFor(t, "callers continue", func() bool { return t.Failed() || rounds.Load() >= n })
		}
		some()
		for _, args := range [][]string{
			{"--encryption-key-file", keyFile(t, "k1"), "--encryption-decrypt-only"},
			{"--encryption-key-file", keyFile(t, "k1")},
			{"--encryption-key-file", keyFile(t, "k2", "k1")},
			{"--encryption-key-file", keyFile(t, "k1", "k2")},
		} {
			for m := range managers {
				managers[m].Load().kill()
				managers[m].Store(start(args...))
				some()
			}
		}
		for m := range managers { // each looks through the store after its start
			waitFor(t, "all values are under the newest key", func() bool {
				return strings.Contains(managers[m].Load().stderr.String(), `"msg":"all values are under the current key","key":"k2"`)
			})
			for c := range callers { // their first rounds were in plain
				err := askFor(func(method, path, body string, _ ...int) (string, error) {
					_, answer, err := callOnce(method, "http://"+managers[m].Load().addr["api"]+path, body)
					return answer, err
				}, fmt.Sprintf("c%d-0", c))
				if err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// roundAtBoth reserves and commits a key, submits a job and appends to a log at one manager, and asks for all of it at
// the other. It tries again where a manager is away, with the same token, id or key, so that it is the same call.
func roundAtBoth(managers *[2]atomic.Pointer[process], caller, round int) error {
	key, at := fmt.Sprintf("c%d-%d", caller, round), round%2
	api := func(m int) string { return "http://" + managers[m].Load().addr["api"] }
	// until makes a call until the answer has one of the statuses, and says what the last answer was.
	until := func(m int, method, path, body string, statuses ...int) (answer string, status int, err error) {
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			status, answer, err = callOnce(method, api(m)+path, body)
			switch {
			case err == nil && slices.Contains(statuses, status):
				return answer, status, nil
			case err == nil && status != http.StatusServiceUnavailable, time.Now().After(deadline):
				return "", 0, fmt.Errorf("%s %s %s: %d %s %w", method, path, body, status, answer, err)
			}
		}
	}
	want := base64.StdEncoding.EncodeToString([]byte("answer of " + key))
	if _, _, err := until(at, "POST", "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"t"}`, key), 201); err != nil {
		return err
	}
	if _, _, err := until(at, "POST", "/v1/ledger/commit", fmt.Sprintf(`{"key":%q,"token":"t","result":{"status":201,"body":%q}}`, key, want), 200); err != nil {
		return err
	}
	item := fmt.Sprintf(`{"items":[{"function":"f%d","id":%q,"payload":%q,"max_attempts":100,"idempotency_key":%q}]}`, caller, key, "payload of "+key, key)
	if answer, _, err := until(at, "POST", "/v1/jobs/batch", item, 200); err != nil || !strings.Contains(answer, `"status":202`) {
		return fmt.Errorf("%s: %s %w", item, answer, err)
	}
	for done := false; !done; {
		// A claim whose answer was lost comes back when its lease ends.
		answer, _, err := until(1-at, "POST", "/v1/jobs/claim", fmt.Sprintf(`{"functions":["f%d"],"worker":"w","lease_ms":10000,"wait_ms":1000}`, caller), 200)
		var claimed struct {
			Jobs []struct {
				claimedJob
				Payload string
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(answer), &claimed)
		}
		if err != nil {
			return err
		}
		for _, j := range claimed.Jobs {
			if j.ID != key || j.Payload != "payload of "+key {
				return fmt.Errorf("claimed %s for %s", answer, key)
			}
			_, status, err := until(at, "POST", "/v1/jobs/"+key+"/finish", fmt.Sprintf(`{"lease_token":%q,"status":"complete","result":%q}`, j.Lease.Token, "result of "+key), 200, 409)
			if err != nil {
				return err
			}
			done = status == 200
		}
	}
	entry := fmt.Sprintf(`{"id":%q,"payload":%q}`, key, want)
	if _, _, err := until(at, "POST", "/v1/logs/rolling/entries", entry, 200, 201); err != nil {
		return err
	}
	return askFor(func(method, path, body string, statuses ...int) (string, error) {
		answer, _, err := until(1-at, method, path, body, statuses...)
		return answer, err
	}, key)
}

// askFor fails unless a manager has what a round left.
func askFor(call func(method, path, body string, statuses ...int) (string, error), key string) error {
	want := base64.StdEncoding.EncodeToString([]byte("answer of " + key))
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"retry"}`, key), `"body":"` + want + `"`},
		{"GET", "/v1/jobs/" + key, "", `"result":"result of ` + key + `"`},
		{"GET", "/v1/logs/rolling/entries/by-id/" + key, "", `"payload":"` + want + `"`},
	} {
		answer, err := call(c.method, c.path, c.body, 200)
		if err != nil || !strings.Contains(answer, c.want) {
			return fmt.Errorf("%s of %s: %s, want %s: %w", c.path, key, answer, c.want, err)
		}
	}
	return nil
}

func callOnce(method, url, body string) (status int, answer string, err error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}
