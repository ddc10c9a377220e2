package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestDowntimeDoesNotCount takes the manager away for longer than a reservation
// and a job's lease last. What was alive when it went must still be its owner's
// when it is back: nobody else gets the key or the job, and the owner can end
// both. What has no owner any more still runs out.
func TestDowntimeDoesNotCount(t *testing.T) {
	t.Parallel()
	names := make([]string, 0, len(downtimes)*len(waysAway))
	for engine := range downtimes {
		for way := range waysAway {
			names = append(names, engine+" "+way)
		}
	}
	slices.Sort(names)
	each(t, deep.Cells(t, names), func(t *testing.T, name string) {
		engine, way, _ := strings.Cut(name, " ")
		d := downtimes[engine]
		args := d.args(t)
		p := startManager(t, args...)
		w := leaseOut(t, p.addr["api"], d.lease)
		p = waysAway[way](t, p, d.away, args)
		w.check(t, p.addr["api"])
		p.kill()
	})
}

// downtimes are the engines of TestDowntimeDoesNotCount. lease is what reservations and jobs get, away is longer. On a shared
// store others might have served meanwhile: only a longer silence is downtime. On etcd no manager's clock counts while all are
// away, only etcd itself.
var downtimes = map[string]struct {
	args        func(t *testing.T) []string
	lease, away time.Duration
}{
	"wal": {func(t *testing.T) []string { return []string{"--data-dir", t.TempDir()} }, 8 * time.Second, 9 * time.Second},
	"sqlite": {func(t *testing.T) []string {
		return []string{"--store", "sqlite", "--data-dir", t.TempDir()}
	}, 8 * time.Second, 9 * time.Second},
	"redis": {func(t *testing.T) []string {
		return []string{"--store", "redis", "--store-dsn", servers.Redis(t).URL}
	}, 12 * time.Second, 15 * time.Second},
	"etcd": {func(t *testing.T) []string {
		return []string{"--store", "etcd", "--store-dsn", servers.Etcd(t).URL}
	}, 12 * time.Second, 15 * time.Second},
}

// waysAway take a manager away for a time, and return the one that serves then.
var waysAway = map[string]func(t *testing.T, p *process, d time.Duration, args []string) *process{
	"killed": func(t *testing.T, p *process, d time.Duration, args []string) *process {
		p.kill()
		time.Sleep(d)
		return startManager(t, args...)
	},
	"killed as it starts": func(t *testing.T, p *process, d time.Duration, args []string) *process {
		p.kill()
		for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
			startAndKill(t, time.Duration(i*7%120)*time.Millisecond, args)
		}
		return startManager(t, args...)
	},
	"stopped": func(t *testing.T, p *process, d time.Duration, _ []string) *process {
		p.standStill(t, d)
		return p
	},
}

// startAndKill kills a manager a moment after it was started, ready or not.
func startAndKill(t *testing.T, after time.Duration, args []string) {
	t.Helper()
	cmd := environ(nil).command(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// leased is work that is out: each of two keys and two jobs. The owners of the
// first continue, those of the second are dead.
type leased struct{ ids, tokens [2]string }

func leaseOut(t *testing.T, addr string, lease time.Duration) leased {
	t.Helper()
	var w leased
	for i := range 2 {
		status, body := post(t, addr, "/v1/ledger/reserve", fmt.Sprintf(`{"key":"k%d","token":"owner","pending_ttl_ms":%d}`, i, lease.Milliseconds()))
		if status != 201 {
			t.Fatalf("reserve: %d %s", status, body)
		}
		if status, body = post(t, addr, "/v1/jobs", `{"function":"f","payload":{}}`); status != 202 {
			t.Fatalf("submit: %d %s", status, body)
		}
	}
	jobs := claim(t, addr, fmt.Sprintf(`{"worker":"w","limit":2,"lease_ms":%d}`, lease.Milliseconds()))
	if len(jobs) != 2 {
		t.Fatalf("claimed %d jobs", len(jobs))
	}
	for i, j := range jobs {
		w.ids[i], w.tokens[i] = j.ID, j.Lease.Token
	}
	return w
}

type claimedJob struct {
	ID      string
	Attempt int
	Lease   struct{ Token string }
}

func claim(t *testing.T, addr, request string) []claimedJob {
	t.Helper()
	status, body := post(t, addr, "/v1/jobs/claim", request)
	var answer struct{ Jobs []claimedJob }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
		t.Fatalf("claim: %d %s", status, body)
	}
	return answer.Jobs
}

func (w leased) check(t *testing.T, addr string) {
	t.Helper()
	for i := range 2 {
		reserve := fmt.Sprintf(`{"key":"k%d","token":"retry"}`, i)
		if status, body := post(t, addr, "/v1/ledger/reserve", reserve); status != 202 {
			t.Errorf("the retry of key %d: %d %s", i, status, body)
		}
	}
	if jobs := claim(t, addr, `{"worker":"other","limit":2}`); len(jobs) != 0 {
		t.Errorf("jobs that a worker has were delivered again: %+v", jobs)
	}
	if status, body := post(t, addr, "/v1/ledger/commit", `{"key":"k0","token":"owner","result":{"status":201}}`); status != 200 {
		t.Errorf("the owner's commit: %d %s", status, body)
	}
	finish := fmt.Sprintf(`{"lease_token":%q,"status":"complete"}`, w.tokens[0])
	if status, body := post(t, addr, "/v1/jobs/"+w.ids[0]+"/finish", finish); status != 200 {
		t.Errorf("the worker's finish: %d %s", status, body)
	}
	waitFor(t, "the reservation that nobody ends runs out", func() bool {
		status, _ := post(t, addr, "/v1/ledger/reserve", `{"key":"k1","token":"retry"}`)
		return status != 202
	})
	if jobs := claim(t, addr, `{"worker":"other","limit":2,"wait_ms":60000}`); len(jobs) != 1 || jobs[0].ID != w.ids[1] || jobs[0].Attempt != 2 {
		t.Errorf("claimed %+v when the lease was over", jobs)
	}
	status, body := post(t, addr, "/v1/ledger/reserve", `{"key":"k0","token":"retry"}`)
	if status != 200 || !strings.Contains(body, "committed") {
		t.Errorf("the retry of a committed key: %d %s", status, body)
	}
}
