package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

var shipBucket = objecttest.BucketURL("managers/one")

// newBucket starts a server of object storage. Managers find it by env.
func newBucket(t *testing.T) (srv *objecttest.Server, bucket object.Store, env environ) {
	srv = objecttest.NewServer(t)
	return srv, srv.Open(t, "managers/one"), srv.Environ()
}

func commitKey(t *testing.T, addr, key string) {
	t.Helper()
	if status, body := post(t, addr, "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"t"}`, key)); status != 201 {
		t.Fatalf("reserve %s: %d %s", key, status, body)
	}
	if status, body := post(t, addr, "/v1/ledger/commit", fmt.Sprintf(`{"key":%q,"token":"t","result":{"status":201}}`, key)); status != 200 {
		t.Fatalf("commit %s: %d %s", key, status, body)
	}
}

// shippedSince waits until the bucket has a point in time after t0.
func shippedSince(t *testing.T, bucket object.Store, t0 time.Time) *ship.Status {
	t.Helper()
	var st *ship.Status
	waitFor(t, "it is shipped", func() bool {
		var err error
		st, err = ship.ReadStatus(t.Context(), bucket)
		return err == nil && st.Newest.After(t0)
	})
	return st
}

// nextMillisecond waits until the clock shows another millisecond, the unit of a point in time, and returns its time.
func nextMillisecond(t *testing.T) time.Time {
	t.Helper()
	from := time.Now().UnixMilli()
	waitFor(t, "the next millisecond", func() bool { return time.Now().UnixMilli() > from+1 })
	return time.Now()
}

// earlierKeys is how many keys of earlier rounds are looked for after each kill.
const earlierKeys = 200

// TestShippedStateSurvivesCrashes kills a real manager under load, again and again, while the object
// store has every kind of fault. After each kill the ledger is restored from the store
// alone. It must have every key that was acknowledged before the last point in time that
// was shipped, and its records must be a prefix of those of the manager's own directory.
func TestShippedStateSurvivesCrashes(t *testing.T) {
	t.Parallel()
	rounds := 3
	if os.Getenv("MANAGER_CRASH_ROUNDS") != "" {
		rounds = crashRounds(t, 4, 10)
	}
	srv, bucket, env := newBucket(t)
	srv.Default()
	dir := t.TempDir()
	var mu sync.Mutex
	acked := make(map[string]time.Time)
	var worst time.Duration
	for round := range rounds {
		args := []string{"--data-dir", dir, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05", "--committed-ttl-seconds", "86400"}
		if round%2 == 1 {
			args = append(args, "--cache-bytes", "1048576")
		}
		p := env.startManager(t, args...)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		var n atomic.Int64
		for id := range 8 {
			clients.Go(func() {
				transport := &http.Transport{}
				client := &http.Client{Transport: transport, Timeout: patience}
				defer transport.CloseIdleConnections()
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					key := fmt.Sprintf("r%d-c%d-%d", round, id, i)
					ok := true
					for _, call := range []string{"reserve", "commit"} {
						body := fmt.Sprintf(`{"key":%q,"token":"t"}`, key)
						if call == "commit" {
							body = fmt.Sprintf(`{"key":%q,"token":"t","result":{"status":201,"body":%q}}`, key, strings.Repeat("QUJD", 200))
						}
						resp, err := client.Post("http://"+p.addr["api"]+"/v1/ledger/"+call, "application/json", strings.NewReader(body))
						if ok = err == nil && resp.StatusCode < 300; err == nil {
							resp.Body.Close()
						}
						if !ok {
							break
						}
					}
					if ok {
						mu.Lock()
						acked[key] = time.Now()
						mu.Unlock()
						n.Add(1)
					}
				}
			})
		}
		waitFor(t, "the load is answered", func() bool { return n.Load() >= 300 })
		shippedSince(t, bucket, time.Now())
		p.kill()
		killed := time.Now()
		close(stop)
		clients.Wait()

		st, err := ship.ReadStatus(t.Context(), bucket)
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, killed.Sub(st.Newest))
		restored := filepath.Join(t.TempDir(), "restored")
		if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", restored, "--quarantine", "0s"); code != 0 {
			t.Fatalf("restore: %d %s", code, out)
		}
		isPrefix(t, restored, dir)
		q := env.startManager(t, "--data-dir", restored)
		missing, looked := 0, 0
		for key, at := range acked {
			// Of earlier rounds some are looked at, in any order, and all of them at the end: a round takes as long as the one before.
			ofRound := strings.HasPrefix(key, fmt.Sprintf("r%d-", round))
			if at.After(st.Newest) || !ofRound && round < rounds-1 && looked >= earlierKeys {
				continue
			}
			if !ofRound {
				looked++
			}
			resp, err := http.Get("http://" + q.addr["api"] + "/v1/ledger/entries/" + key)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("round %d: %d of %d keys that were acknowledged before the last point in time are gone", round, missing, len(acked))
		}
		q.kill()
		if t.Failed() {
			t.Log(p.stderr)
			return
		}
		if err := os.RemoveAll(restored); err != nil { // all of them together take too much of the disk
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d keys, %d faults of %d requests; the last point in time was at most %v before a kill", rounds, len(acked), srv.Injected.Load(), srv.Requests.Load(), worst)
}

// isPrefix checks that each record of a restored directory is the one of the original
// with the same sequence number, and that it does not go further.
func isPrefix(t *testing.T, restored, original string) {
	t.Helper()
	read := func(dir string) (map[uint64][]byte, uint64) {
		records, last := make(map[uint64][]byte), uint64(0)
		r, err := wal.Verify(t.Context(), dir, wal.InspectOptions{Check: func(e wal.Entry) error {
			if e.Segment != 0 {
				records[e.Sequence], last = bytes.Clone(e.Body), e.Sequence
			}
			return nil
		}})
		if err != nil || r.Damaged() {
			t.Fatal(err, r)
		}
		return records, last
	}
	got, gotLast := read(restored)
	want, wantLast := read(original)
	if gotLast > wantLast {
		t.Errorf("the restored log ends with %d, the original with %d", gotLast, wantLast)
	}
	both := 0
	for seq, body := range got {
		if w, ok := want[seq]; ok {
			both++
			if !bytes.Equal(body, w) {
				t.Errorf("record %d differs", seq)
			}
		}
	}
	if both == 0 && len(got) > 0 && len(want) > 0 {
		t.Errorf("no record of the restored log, which ends with %d, is one of the original, which ends with %d", gotLast, wantLast)
	}
}

func TestRestoreQuarantinesUnknownKeys(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	p := env.startManager(t, "--data-dir", t.TempDir(), "--ship-to", shipBucket, "--ship-interval-seconds", "0.05", "--committed-ttl-seconds", "3600")
	commitKey(t, p.addr["api"], "early")
	since := nextMillisecond(t)
	commitKey(t, p.addr["api"], "marker") // so that a point follows which has all of "early"
	at := shippedSince(t, bucket, since).Newest
	nextMillisecond(t)
	// The route that asked for a longer time than the manager's own has no key before the point.
	if status, body := post(t, p.addr["api"], "/v1/ledger/reserve", `{"key":"late","token":"t"}`); status != 201 {
		t.Fatalf("reserve: %d %s", status, body)
	}
	if status, body := post(t, p.addr["api"], "/v1/ledger/commit", `{"key":"late","token":"t","ttl_ms":86400000,"result":{"status":201}}`); status != 200 {
		t.Fatalf("commit: %d %s", status, body)
	}
	if code := p.stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}

	now := filepath.Join(t.TempDir(), "now")
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", now, "--quarantine", "0s"); code != 0 || !strings.Contains(out, "warning: --quarantine 0s is shorter than 24h0m0s") {
		t.Fatalf("restore: %d %s", code, out)
	}
	q := env.startManager(t, "--data-dir", now)
	for _, key := range []string{"early", "late"} {
		if status, body := post(t, q.addr["api"], "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"u"}`, key)); status != 200 {
			t.Errorf("%s is not known in the newest state: %d %s", key, status, body)
		}
	}
	commitKey(t, q.addr["api"], "new") // there is no quarantine

	then := filepath.Join(t.TempDir(), "then")
	code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", then, "--at", at.UTC().Format(time.RFC3339Nano))
	if code != 0 || !strings.Contains(out, "first 24h0m0s") {
		t.Fatalf("restore: %d %s", code, out)
	}
	for range 2 { // it outlives restarts
		q = env.startManager(t, "--data-dir", then)
		if status, body := post(t, q.addr["api"], "/v1/ledger/reserve", `{"key":"early","token":"u"}`); status != 200 {
			t.Errorf("a known key: %d %s", status, body)
		}
		resp, err := http.Post("http://"+q.addr["api"]+"/v1/ledger/reserve", "application/json", strings.NewReader(`{"key":"late","token":"u"}`))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		_, _ = b.ReadFrom(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 503 || !strings.Contains(b.String(), "quarantine") || resp.Header.Get("Retry-After") == "" {
			t.Errorf("a key that was forgotten: %d %s, Retry-After %q", resp.StatusCode, b.String(), resp.Header.Get("Retry-After"))
		}
		if code := q.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, q.stderr)
		}
	}
}

// TestTwoManagersShipToOnePlace: the manager of a copied directory does not ship, and runs no key that the copies of the other
// one's log have.
func TestTwoManagersShipToOnePlace(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	dir := t.TempDir()
	begun := env.startManager(t, "--data-dir", dir)
	if code := begun.stop(t); code != 0 {
		t.Fatal(begun.stderr)
	}
	copied := copyFiles(t, dir)
	first := env.startManager(t, "--data-dir", dir, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
	before := nextMillisecond(t)
	commitKey(t, first.addr["api"], "k")
	shippedSince(t, bucket, before)
	second := env.startManager(t, "--data-dir", copied, "--ship-to", shipBucket, "--admin", "127.0.0.1:0")
	waitFor(t, "the second says that it has no lease", func() bool { return strings.Contains(second.stderr.String(), "lease") })
	wantQuarantine(t, "POST", "http://"+second.addr["api"]+"/v1/ledger/reserve", `{"key":"k","token":"again"}`)
	if code := second.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, second.stderr)
	}
	code, out := env.oncegate(t, "ship", "status", "--from", shipBucket)
	if code != 0 || gjson.Get(out, "lease.term").Int() != 1 || gjson.Get(out, "sequence").Int() < 1 {
		t.Errorf("status: %d %s", code, out)
	}
}

func TestRestoreExitCodes(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	p := env.startManager(t, "--data-dir", t.TempDir(), "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
	commitKey(t, p.addr["api"], "k")
	shippedSince(t, bucket, time.Now().Add(-time.Hour))
	if code := p.stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := func() string { return filepath.Join(t.TempDir(), "new") }
	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{2, "absent or empty", []string{"restore", "--from", shipBucket, "--data-dir", used}},
		{2, "--from", []string{"restore", "--data-dir", fresh()}},
		{2, "--data-dir", []string{"restore", "--from", shipBucket}},
		{2, "azblob", []string{"restore", "--from", "azblob://b/p", "--data-dir", fresh()}},
		{2, "--at", []string{"restore", "--from", shipBucket, "--data-dir", fresh(), "--at", "yesterday"}},
		{2, "--quarantine", []string{"restore", "--from", shipBucket, "--data-dir", fresh(), "--quarantine", "-1s"}},
		{1, "nothing to restore", []string{"restore", "--from", shipBucket + "/else", "--data-dir", fresh()}},
		{1, "as old as", []string{"restore", "--from", shipBucket, "--data-dir", fresh(), "--at", "2001-01-01T00:00:00Z"}},
		{2, "must be status or verify", []string{"ship"}},
		{2, "only the engine wal", []string{"serve", "--store", "memory", "--ship-to", shipBucket}},
		{2, "--ship-to", []string{"serve", "--data-dir", fresh(), "--ship-to", "ftp://x"}},
		{0, "usage", []string{"restore", "--help"}},
		{0, "can be restored to sequence", []string{"ship", "verify", "--from", shipBucket}},
		{1, "as old as", []string{"ship", "verify", "--from", shipBucket, "--at", "2001-01-01T00:00:00Z"}},
		{1, "nothing to restore", []string{"ship", "verify", "--from", shipBucket + "/else"}},
		{0, `"restorable"`, []string{"ship", "status", "--from", shipBucket}},
		{2, "must be status or verify", []string{"ship", "look"}},
	} {
		if code, out := env.oncegate(t, c.args...); code != c.code || !strings.Contains(out, c.text) || c.code != 0 && strings.Count(out, "\n") != 1 {
			t.Errorf("%q: exit code %d, want %d; %s", c.args, code, c.code, out)
		}
	}
	var damaged string
	if err := object.All(t.Context(), bucket, "ledger/0", func(o object.Info) error {
		if damaged != "" || !strings.Contains(o.Name, "/t") {
			return nil // the manifest names the first run already
		}
		b, v, err := bucket.Get(t.Context(), o.Name)
		if err == nil {
			b[len(b)-1] ^= 1
			damaged = o.Name
			_, err = bucket.Replace(t.Context(), o.Name, b, v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	dir := fresh()
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", dir); code != 1 || !strings.Contains(out, damaged) {
		t.Errorf("a damaged object: exit code %d; %s", code, out)
	}
	for _, command := range []string{"verify", "status"} {
		if code, out := env.oncegate(t, "ship", command, "--from", shipBucket); code != 1 || !strings.Contains(out, damaged) {
			t.Errorf("ship %s of a prefix that cannot be restored: exit code %d; %s", command, code, out)
		}
	}
	// A restore that was cut off leaves this directory, and a manager must not begin a
	// ledger beside it.
	if err := os.MkdirAll(filepath.Join(dir, ship.PartialDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if code, out := env.oncegate(t, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0"); code != 2 || !strings.Contains(out, "restore") {
		t.Errorf("serve on what a restore left: exit code %d; %s", code, out)
	}
}
