package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestRollingEncryption restarts two managers of one store one after the other, from plain to encrypted and on to another
// key, while callers reserve, commit and retry at both. Every answer is the right one.
func TestRollingEncryption(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for name, dsn := range map[string]func(testing.TB) string{
		"redis":    func(t testing.TB) string { return servers.Redis(t).URL },
		"postgres": func(t testing.TB) string { return servers.Postgres(t).URL },
		"etcd":     func(t testing.TB) string { return servers.Etcd(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			store := []string{"--store", name, "--store-dsn", dsn(t), "--committed-ttl-seconds", "3600", "--admin", "127.0.0.1:0"}
			start := func(args ...string) *process { return startManager(t, append(args, store...)...) }
			var managers [2]atomic.Pointer[process]
			managers[0].Store(start())
			managers[1].Store(start())

			stop := make(chan struct{})
			var callers sync.WaitGroup
			var rounds atomic.Int64
			for c := range 4 {
				callers.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						if err := roundAtBoth(&managers, fmt.Sprintf("c%d-%d", c, i), i%2); err != nil {
							t.Error(err)
							return
						}
						rounds.Add(1)
					}
				})
			}
			defer callers.Wait()
			defer sync.OnceFunc(func() { close(stop) })()
			some := func() {
				t.Helper()
				n := rounds.Load() + 8
				waitFor(t, "callers go on", func() bool { return t.Failed() || rounds.Load() >= n })
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
					return strings.Contains(managers[m].Load().stderr.String(), `"msg":"values are under the present key","key":"k2"`)
				})
			}
		})
	}
}

// roundAtBoth reserves and commits a key at one manager and retries it at the other. It tries again where a manager is
// away, with the same token, so that it is the same call.
func roundAtBoth(managers *[2]atomic.Pointer[process], key string, at int) error {
	call := func(m int, path, body string) (int, string, error) {
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
			resp, err := http.Post("http://"+managers[m].Load().addr["api"]+path, "application/json", strings.NewReader(body))
			if err == nil {
				var b []byte
				b, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil {
					return resp.StatusCode, string(b), nil
				}
			}
			if time.Now().After(deadline) {
				return 0, "", err
			}
		}
	}
	want := base64.StdEncoding.EncodeToString([]byte("answer of " + key))
	if status, body, err := call(at, "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"t"}`, key)); status != 201 {
		return fmt.Errorf("reserve %s: %d %s %w", key, status, body, err)
	}
	if status, body, err := call(at, "/v1/ledger/commit", fmt.Sprintf(`{"key":%q,"token":"t","result":{"status":201,"body":%q}}`, key, want)); status != 200 {
		return fmt.Errorf("commit %s: %d %s %w", key, status, body, err)
	}
	status, body, err := call(1-at, "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"retry"}`, key))
	var answer struct{ Result struct{ Body string } }
	if status != 200 || json.Unmarshal([]byte(body), &answer) != nil || answer.Result.Body != want {
		return fmt.Errorf("retry of %s: %d %s %w", key, status, body, err)
	}
	return nil
}
