package soak

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// pluginConfig has the gate and the manager forget soon, so that the load comes to a
// steady state, in which as much is forgotten as is learned; but not so soon that a
// retry on a busy machine could come too late.
var pluginConfig = map[string]any{"committed_ttl_seconds": 60, "max_entries": 8000}

const (
	clients = 8
	samples = 9 // the first third fills up, the rest must not grow
)

// soakTime is how long the load runs; make soak asks for an hour.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	const name = "STACK_SOAK"
	v := os.Getenv(name)
	if v == "" {
		return 9 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 9*time.Second {
		t.Fatalf("%s=%q: must be a duration of at least 9s", name, v)
	}
	return d
}

// onEtcd reports whether the managers share etcd; make soak STORE=etcd asks for that. The members keep the history of ten
// minutes, so their memory is steady after the first third of an hour, and of no less, if the load is steady.
func onEtcd(t *testing.T) bool {
	t.Helper()
	const name = "STACK_STORE"
	v := os.Getenv(name)
	if v != "" && v != "etcd" {
		t.Fatalf("%s=%q: must be etcd or empty", name, v)
	}
	return v == "etcd"
}

// TestSoak: every client pays again and again under new keys, and sends most payments
// once or twice more. Each key is executed once, each retry gets the first answer, and
// after the first third of the time nothing grows: neither the memory of the managers, of the
// proxy and of etcd, nor their open files, nor a manager's goroutines, nor what is on disk.
func TestSoak(t *testing.T) {
	deep.Only(t)
	duration := soakTime(t)
	t.Setenv("GOGC", "100") // else the manager's first garbage gathers for longer than a third of the time
	cfg := stack.Config{BinDir: filepath.Join("..", "..", "build"), Dir: t.TempDir(), Plugin: pluginConfig, Etcd: onEtcd(t)}
	var err error
	if cfg.Proxy, err = stack.ChooseProxy(t.Context(), cmp.Or(os.Getenv("STACK_PROXY"), "envoy"), cfg.BinDir); err != nil {
		t.Fatal(err)
	}
	t.Log("proxy:", cfg.Proxy)
	st, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Stop(); err != nil {
			t.Error(err)
		}
	}()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	var keys, retries, refused atomic.Int64
	for id := range clients {
		group.Go(func() {
			c := &client{url: st.ProxyURL() + "/payments", http: &http.Client{Transport: &http.Transport{}}, refused: &refused}
			defer c.http.CloseIdleConnections()
			for i := 0; ctx.Err() == nil; i++ {
				n, err := c.pay(fmt.Sprintf("client-%d:%d", id, i), i%3)
				keys.Add(1)
				retries.Add(int64(n))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}

	var most [2]measured // of the first third, of the rest
	tick := time.NewTicker(duration / samples)
	defer tick.Stop()
	for i := range samples {
		select {
		case <-tick.C:
		case err := <-st.Failed():
			t.Fatal(err)
		}
		m := measure(t, st, cfg.Dir)
		t.Logf("%d keys, %d retries, %d refused: %v", keys.Load(), retries.Load(), refused.Load(), m)
		part := min(i/(samples/3), 1)
		most[part] = most[part].max(m)
	}
	stop()
	group.Wait()

	first, rest := most[0], most[1]
	for name := range rest.resident {
		// The collector's timing is no growth.
		if limit := first.resident[name]*5/4 + 32<<20; rest.resident[name] > limit {
			t.Errorf("the %s grew to %d MiB after %d MiB", name, rest.resident[name]>>20, first.resident[name]>>20)
		}
		if limit := first.files[name] + clients; rest.files[name] > limit {
			t.Errorf("the %s has %d files open after %d", name, rest.files[name], first.files[name])
		}
	}
	for name := range rest.disk {
		// A log keeps a segment, and a state some tables, more at one time than at another.
		if limit := first.disk[name]*5/4 + 64<<20; rest.disk[name] > limit {
			t.Errorf("%s grew to %d MiB on disk after %d MiB", name, rest.disk[name]>>20, first.disk[name]>>20)
		}
	}
	if limit := first.goroutines + 4*clients; rest.goroutines > limit {
		t.Errorf("the manager has %d goroutines after %d", rest.goroutines, first.goroutines)
	}
	var executed struct{ Total int64 }
	if err := json.Unmarshal(get(t, st.PaymentsURL()+"/executions?key=none"), &executed); err != nil {
		t.Fatal(err)
	}
	if executed.Total != keys.Load() {
		t.Errorf("%d executions for %d keys", executed.Total, keys.Load())
	}
	// The members of etcd may lose their leader to a busy machine. A manager with its own log has no such excuse.
	if n := refused.Load(); n > 0 && !cfg.Etcd {
		t.Errorf("%d requests were refused", n)
	}
	if retries.Load() == 0 {
		t.Error("nothing was retried")
	}
}

type client struct {
	url     string
	http    *http.Client
	refused *atomic.Int64 // requests that were answered 503
}

// pay sends one payment, and then as many retries as asked for; it returns how many.
func (c *client) pay(key string, retries int) (sent int, err error) {
	body := fmt.Sprintf(`{"amount": 100, "reference": %q}`, key)
	first, replayed, err := c.post(key, body)
	if err != nil {
		return 0, err
	}
	if replayed {
		return 0, fmt.Errorf("%s: the first request got a replay", key)
	}
	for ; sent < retries; sent++ {
		again, replayed, err := c.post(key, body)
		if err != nil {
			return sent, err
		}
		if !replayed || !bytes.Equal(again, first) {
			return sent, fmt.Errorf("%s: a retry got %q (replayed: %v), the first answer is %q", key, again, replayed, first)
		}
	}
	return sent, nil
}

// refusalPause is what a client waits after 503. It is short, so that the load continues.
const refusalPause = 100 * time.Millisecond

// post sends a request, and sends it again while it is refused with 503. It is not tied to the end of the load: a payment
// that was begun is finished.
func (c *client) post(key, body string) (answer []byte, replayed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		resp, answer, err := c.send(ctx, key, body)
		if err != nil {
			return nil, false, err
		}
		switch {
		case resp.StatusCode == http.StatusCreated:
			return answer, resp.Header.Get("Idempotent-Replayed") == "true", nil
		case resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || ctx.Err() != nil:
			return nil, false, fmt.Errorf("%s: %s %q", key, resp.Status, answer)
		}
		c.refused.Add(1)
		select {
		case <-time.After(refusalPause):
		case <-ctx.Done():
		}
	}
}

func (c *client) send(ctx context.Context, key, body string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp, answer, err
}

// measured is what the processes take.
type measured struct {
	resident   map[string]int64 // bytes, by process
	files      map[string]int64 // open ones, by process
	disk       map[string]int64 // bytes, by folder
	goroutines int64            // of the manager
}

func (m measured) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.resident)) {
		fmt.Fprintf(&b, "%s %d MiB, %d files; ", name, m.resident[name]>>20, m.files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.disk)) {
		fmt.Fprintf(&b, "%s %d MiB on disk; ", name, m.disk[name]>>20)
	}
	fmt.Fprintf(&b, "%d goroutines", m.goroutines)
	return b.String()
}

func (m measured) max(o measured) measured {
	most := measured{resident: map[string]int64{}, files: map[string]int64{}, disk: map[string]int64{}, goroutines: max(m.goroutines, o.goroutines)}
	for name := range o.resident {
		most.resident[name] = max(m.resident[name], o.resident[name])
		most.files[name] = max(m.files[name], o.files[name])
	}
	for name := range o.disk {
		most.disk[name] = max(m.disk[name], o.disk[name])
	}
	return most
}

func measure(t *testing.T, st *stack.Stack, dir string) measured {
	t.Helper()
	m := measured{resident: map[string]int64{}, files: map[string]int64{}, disk: map[string]int64{}}
	for name, pid := range st.PIDs() {
		if name == "payments" {
			continue // it counts by key, so it must grow
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			t.Fatal(err)
		}
		m.resident[name] = 1024 * number(t, string(status), "VmRSS:")
		files, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		m.files[name] = int64(len(files))
	}
	folders := []string{"data"}
	if onEtcd(t) {
		// The records are in the folder snap. The log beside it grows to five files of 64 MB, however small the records are.
		folders = []string{"etcd-1/member/snap", "etcd-2/member/snap", "etcd-3/member/snap"}
	}
	for _, name := range folders {
		if m.disk[name] = diskUse(filepath.Join(dir, name)); m.disk[name] == 0 {
			t.Fatalf("there is nothing in %s", name)
		}
	}
	m.goroutines = number(t, string(get(t, st.ManagerAdminURL()+"/metrics")), "go_goroutines ")
	return m
}

// diskUse is the size of the files in a folder. Files come and go meanwhile.
func diskUse(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// number reads the number after the line's beginning.
func number(t *testing.T, text, beginning string) int64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, beginning); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("there is no line %q", beginning)
	return 0
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return b
}
