package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// movingManager sends each request to one of the managers, wherever they run
// now, as a name in DNS would.
type movingManager struct {
	next  *http.Transport
	addrs []atomic.Pointer[string]
}

func (m *movingManager) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = *m.addrs[rand.IntN(len(m.addrs))].Load()
	return m.next.RoundTrip(r)
}

// TestJobsSurviveCrashes kills the real program again and again while 64
// submitters share each key, and workers work. Every
// key must lead to one job, every caller must get the same one, and every
// job must be done, with its result, when the dust has settled. The function has limits, and the jobs have concurrency
// keys: afterwards exactly as many jobs may run as the limits say. On the shared
// engines there are three managers, and in every other round their server
// is killed as well.
func TestJobsSurviveCrashes(t *testing.T) {
	t.Parallel()
	each(t, deep.Keys(t, crashSetups), func(t *testing.T, name string) {
		c := crashSetups[name]
		srv, store := c.store(t)
		testJobsSurviveCrashes(t, (crashRounds(t, 5, 10)+c.slower-1)/c.slower, c.managers, srv, store...)
	})
}

// crashSetups are the engines of TestJobsSurviveCrashes. slower divides the number of rounds.
var crashSetups = map[string]struct {
	slower, managers int
	store            func(t *testing.T) (*servers.Server, []string)
}{
	"wal": {2, 1, func(t *testing.T) (*servers.Server, []string) {
		return nil, []string{"--data-dir", t.TempDir(), "--cache-bytes", "1048576"}
	}},
	"sqlite": {5, 1, func(t *testing.T) (*servers.Server, []string) {
		return nil, []string{"--store", "sqlite", "--data-dir", t.TempDir()}
	}},
	"redis": {3, 3, func(t *testing.T) (*servers.Server, []string) {
		srv := servers.Redis(t)
		return srv, []string{"--store", "redis", "--store-dsn", srv.URL}
	}},
	"postgres": {3, 3, func(t *testing.T) (*servers.Server, []string) {
		srv := servers.Postgres(t)
		return srv, []string{"--store", "postgres", "--store-dsn", srv.URL}
	}},
	"etcd": {5, 3, func(t *testing.T) (*servers.Server, []string) {
		srv := servers.Etcd(t)
		return srv, []string{"--store", "etcd", "--store-dsn", srv.URL}
	}},
}

func testJobsSurviveCrashes(t *testing.T, rounds, managers int, srv *servers.Server, store ...string) {
	const submitters, keysPerRound = 64, 6
	m := &movingManager{next: &http.Transport{MaxIdleConnsPerHost: 256}, addrs: make([]atomic.Pointer[string], managers)}
	running := make([]*process, managers)
	starts := 0
	start := func(i int) {
		starts++ // all are encrypted, each start under another key
		running[i] = startManager(t, append(append(rotation(t, starts), "--job-lease-seconds", "60", "--committed-ttl-seconds", "3600",
			"--job-backoff-seconds", "0.001"), store...)...)
		addr := running[i].addr["api"]
		m.addrs[i].Store(&addr)
	}
	defer m.next.CloseIdleConnections()
	newClient := func() *client.Client {
		c, err := client.New(client.Options{
			URL: "http://manager", HTTP: &http.Client{Transport: m}, Timeout: patience, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	for i := range managers {
		start(i)
	}

	if err := admin.New(newClient()).SetLimits(ctx, "submitted", crashLimits); err != nil {
		t.Fatal(err)
	}
	var runs sync.Map // job id -> *atomic.Int64
	handler := func(_ context.Context, j *client.Job) (any, error) {
		n, _ := runs.LoadOrStore(j.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		return j.Payload, nil
	}
	workCtx, stopWorkers := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stopWorkers()
	for range 3 {
		w, err := newClient().NewWorker(client.WorkerOptions{
			Handlers:    map[string]client.Handler{"submitted": handler},
			Concurrency: 8, Lease: 2 * time.Second, Wait: time.Second, StopTimeout: time.Second, StopGrace: patience,
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), // it complains of every crash
		})
		if err != nil {
			t.Fatal(err)
		}
		workers.Go(func() {
			if err := w.Run(workCtx); err != nil {
				t.Error(err)
			}
		})
	}

	type answer struct{ key, id string }
	answers := make(chan answer, rounds*keysPerRound*submitters)
	payloads := map[string]string{}
	for round := range rounds {
		var callers sync.WaitGroup
		var answered atomic.Int64
		for k := range keysPerRound {
			key := fmt.Sprintf("r%d-k%d", round, k)
			payload := map[string]any{"key": key, "text": fmt.Sprintf("%0*d", 1+rand.IntN(900), 7)}
			encoded, err := json.Marshal(payload)
			if err != nil {
				t.Fatal(err)
			}
			payloads[key] = string(encoded)
			for i := range submitters {
				callers.Go(func() {
					j, err := newClient().SubmitIdempotent(ctx, client.Submission{
						IdempotencyKey: key, Function: "submitted", ConcurrencyKey: fmt.Sprint("tenant-", k%crashTenants), ID: fmt.Sprintf("%s-by%d", key, i), Payload: payload,
					})
					if err != nil {
						t.Errorf("key %s: %v", key, err)
						return
					}
					answered.Add(1)
					answers <- answer{key, j.ID}
				})
			}
		}
		// In the middle of it.
		kill := rand.Int64N(keysPerRound * submitters)
		waitFor(t, "some submissions are answered", func() bool { return answered.Load() >= kill || t.Failed() })
		running[round%managers].kill()
		if srv != nil && round%2 == 1 {
			srv.Kill()
			if err := srv.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
		start(round % managers)
		callers.Wait()
		if t.Failed() {
			return
		}
	}
	close(answers)
	ids := map[string]string{}
	for a := range answers {
		if first, ok := ids[a.key]; ok && first != a.id {
			t.Errorf("key %s: one caller got job %s, another of %s", a.key, first, a.id)
		}
		ids[a.key] = a.id
	}
	c := newClient()
	for key, id := range ids {
		j, err := c.Wait(ctx, id)
		if err != nil {
			t.Fatalf("job %s: %v", id, err)
		}
		if j.State != "complete" || string(j.Result) != payloads[key] || string(j.Payload) != payloads[key] {
			t.Errorf("key %s: job %+v", key, j)
		}
		if _, ran := runs.Load(id); !ran {
			t.Errorf("job %s is complete, but nobody ran it", id)
		}
	}
	total := 0
	for cursor := ""; ; {
		page, err := admin.New(c).List(ctx, admin.ListQuery{Limit: 1000, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		total += len(page.Jobs)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if want := rounds * keysPerRound; total != want || len(ids) != want {
		t.Errorf("%d jobs for %d keys, want %d", total, len(ids), want)
	}
	again := 0
	runs.Range(func(_, n any) bool {
		if n.(*atomic.Int64).Load() > 1 {
			again++
		}
		return true
	})
	t.Logf("%d jobs, %d of them delivered more than once", total, again)
	stopWorkers()
	workers.Wait()
	limitsHold(t, ctx, c)
}

const crashTenants = 3

var crashLimits = admin.Limits{MaxRunning: 13, MaxRunningPerKey: 5, Rate: &admin.Rate{Count: 1_000_000, Per: time.Second}}

// limitsHold fails the test unless as many jobs may run as the limits say, after all jobs have ended.
func limitsHold(t *testing.T, ctx context.Context, c *client.Client) {
	t.Helper()
	var all []client.Submission
	for i := range crashTenants * 2 * crashLimits.MaxRunningPerKey {
		all = append(all, client.Submission{Function: "submitted", ConcurrencyKey: fmt.Sprint("tenant-", i%crashTenants)})
	}
	if _, err := c.SubmitBatch(ctx, all); err != nil {
		t.Fatal(err)
	}
	perTenant, got := map[string]int{}, 0
	claim := func(wait time.Duration) int {
		claimed, err := c.Claim(ctx, client.ClaimRequest{Worker: "w", Functions: []string{"submitted"}, Limit: 100, Lease: time.Hour, Wait: wait})
		if err != nil {
			t.Logf("claim: %v", err)
		}
		for _, j := range claimed {
			perTenant[j.ConcurrencyKey]++
		}
		return len(claimed)
	}
	waitFor(t, "as many jobs are claimed as may run", func() bool {
		got += claim(time.Millisecond)
		return got >= crashLimits.MaxRunning
	})
	if got += claim(2 * time.Second); got != crashLimits.MaxRunning {
		t.Errorf("%d jobs run, at most %d may", got, crashLimits.MaxRunning)
	}
	for tenant, n := range perTenant {
		if n > crashLimits.MaxRunningPerKey {
			t.Errorf("%d jobs of %s run", n, tenant)
		}
	}
}
