package e2e

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// soakTime is how long the load runs; make soak asks for an hour.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	const name = "MANAGER_SOAK"
	v := os.Getenv(name)
	if v == "" {
		return 6 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Second {
		t.Fatalf("%s=%q: must be a duration of at least 1s", name, v)
	}
	return d
}

// TestSoak puts a steady load with a small window on the real program: after
// the first third of the time, in which it fills up, neither its memory nor its
// disk may grow any more.
func TestSoak(t *testing.T) {
	duration := soakTime(t)
	dir := t.TempDir()
	t.Setenv("GOGC", "100") // above heapFloor, the first garbage gathers for longer than a third of the time
	p := startManager(t, "--data-dir", dir, "--max-entries", "5000", "--scope-share", "0", "--cache-bytes", "4194304", "--committed-ttl-seconds", "2",
		"--pending-ttl-seconds", "1", "--cleanup-interval-seconds", "0.2", "--max-waiters", "8")
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var calls atomic.Int64
	for id := range 16 {
		clients.Go(func() { soakClient(t, p.addr["api"], id, stop, &calls) })
	}
	sample := func() (rss, disk int64) { return residentBytes(t, p.cmd.Process.Pid), diskBytes(t, dir) }
	const samples = 9
	var maxRSS, maxDisk [2]int64 // of the first third, of the rest
	tick := time.NewTicker(duration / samples)
	for i := range samples {
		<-tick.C
		rss, disk := sample()
		part := 0
		if i >= samples/3 {
			part = 1
		}
		maxRSS[part], maxDisk[part] = max(maxRSS[part], rss), max(maxDisk[part], disk)
		t.Logf("%d calls, %d MiB resident, %d MiB on disk", calls.Load(), rss>>20, disk>>20)
	}
	tick.Stop()
	close(stop)
	clients.Wait()
	// The collector's timing and a segment more or less are no growth.
	if limit := maxRSS[0]*5/4 + 32<<20; maxRSS[1] > limit {
		t.Errorf("memory grew to %d MiB after %d MiB", maxRSS[1]>>20, maxRSS[0]>>20)
	}
	if limit := maxDisk[0] + 3*64<<20; maxDisk[1] > limit {
		t.Errorf("disk use grew to %d MiB after %d MiB", maxDisk[1]>>20, maxDisk[0]>>20)
	}
	if calls.Load() == 0 {
		t.Error("nothing was called")
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}

// soakClient mixes new submissions, replays, abandoned reservations and waits.
func soakClient(t *testing.T, addr string, id int, stop <-chan struct{}, calls *atomic.Int64) {
	transport := &http.Transport{}
	client := &http.Client{Transport: transport, Timeout: patience}
	defer transport.CloseIdleConnections()
	call := func(path string, body []byte) int {
		resp, err := client.Post("http://"+addr+path, api.ContentTypeRaw, bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		calls.Add(1)
		return resp.StatusCode
	}
	body := make([]byte, 1000)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		key := fmt.Sprintf("c%d-%d", id, i)
		reserve := api.ReserveRequest{Key: key, Token: "t"}
		if s := call(api.PathReserve, reserve.AppendRaw(nil)); s != 201 && s != 503 {
			t.Errorf("reserve: %d", s)
		}
		if i%10 == 0 {
			continue // abandoned, left to its TTL
		}
		commit := api.FinishRequest{Key: key, Token: "t", Result: api.Result{Status: 200, Body: body}}
		if s := call(api.PathCommit, commit.AppendRaw(nil)); s != 200 && s != 503 {
			t.Errorf("commit: %d", s)
		}
		if i%3 == 0 {
			call(api.PathReserve, (&api.ReserveRequest{Key: key, Token: "u"}).AppendRaw(nil))
		}
		if i%50 == 0 {
			// All clients meet on one key; most of them wait for a moment.
			call(api.PathReserve, (&api.ReserveRequest{Key: "shared", Token: fmt.Sprint(id), PendingTTL: 5 * time.Millisecond, Wait: 20 * time.Millisecond}).AppendRaw(nil))
		}
	}
}

// residentBytes is the memory that a process takes.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func diskBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var n int64
	// A segment or a table may be deleted while this looks.
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
