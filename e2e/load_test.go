package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

const (
	loadRounds  = 20 // the first third fills up, the rest must not grow
	loadClients = 16
	loadAnswer  = 10_000   // bytes
	cacheBytes  = 64 << 20 // the default of max_bytes
)

// loadRequests is how many go through the gate in all; make test-long asks for a million.
func loadRequests(t *testing.T) int {
	const name, least = "E2E_LOAD_REQUESTS", loadRounds * loadClients * 25
	text := os.Getenv(name)
	if text == "" {
		return least
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		t.Fatalf("%s is %q; want a number from %d on", name, text, least)
	}
	return n
}

// New keys, retries, and requests without a key, all with answers of 10 kB: each key is executed
// once, and the Envoy's memory does not grow. An Envoy without the gate gets the same in
// turns. The test measures what the gate adds to the latency of requests without a key; it judges
// no times.
func TestLoad(t *testing.T) {
	deep.Only(t)
	total := loadRequests(t)
	for _, c := range cells(t, "body") {
		t.Run(c.target.Name(), func(t *testing.T) { runLoad(t, c.target, total) }) // not parallel: it is measured
	}
}

func runLoad(t *testing.T, target envoyTarget, total int) {
	var executed atomic.Int64 // requests with a key
	body := bytes.Repeat([]byte("0123456789"), loadAnswer/10)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		if r.Header.Get("Idempotency-Key") != "" {
			executed.Add(1)
		}
		w.Header().Set("Content-Length", strconv.Itoa(loadAnswer))
		_, _ = w.Write(body)
	}))
	t.Cleanup(upstream.Close)
	s := &stack{dir: t.TempDir(), target: target, mode: "body", paymentsAddr: upstream.Listener.Addr().String(),
		plugin: map[string]any{"committed_ttl_seconds": 30}} // the manager has to forget as much as it learns
	s.stopAtEnd(t)
	s.startManager(t)
	gate := s.startProxy(t)
	s.edit = withoutGate
	plain := s.startProxy(t)

	var best [2]map[string]time.Duration // of the gate, of the plain Envoy: the least of all rounds
	var most [2]int                      // bytes of memory: in the first third, in the rest
	keys := int64(0)
	began := time.Now()
	for round := range loadRounds {
		for i := range 2 {
			which := (i + round) % 2
			p := []*proxy{gate, plain}[which]
			before, each := executed.Load(), total/loadRounds/loadClients
			took := map[string]time.Duration{}
			l := &load{proxy: p, name: strconv.Itoa(round), mixed: true}
			l.run(t, each*4/5, "among others", took)
			if p == gate {
				keys += l.keys.Load()
				if n := executed.Load() - before; n != l.keys.Load() {
					t.Errorf("%d executions for %d keys", n, l.keys.Load())
				}
			}
			l = &load{proxy: p}
			l.run(t, each/5, "by themselves", took)
			if best[which] == nil {
				best[which] = took
			}
			for name, d := range took {
				best[which][name] = min(best[which][name], d)
			}
		}
		memory := gate.resident(t)
		part := min(round/(loadRounds/3), 1)
		most[part] = max(most[part], memory)
		t.Logf("%v: %d keys, %d MiB", time.Since(began).Round(time.Second), keys, memory>>20)
	}
	// Of a short run, the cache has not learned all that it keeps in the first third.
	learned := func(keys int64) int { return int(min(keys*loadAnswer, cacheBytes)) }
	if limit := most[0]*9/8 + 16<<20 + learned(keys) - learned(keys*(loadRounds/3)/loadRounds); most[1] > limit {
		t.Errorf("Envoy grew to %d MiB after %d MiB", most[1]>>20, most[0]>>20)
	}
	for name, with := range best[0] {
		without := best[1][name]
		t.Logf("requests without a key, %s: %v, without the gate %v: x %.2f", name, with, without, float64(with)/float64(without))
	}
}

// load is what the clients send in a round.
type load struct {
	*proxy
	name  string // unique, for the keys
	mixed bool   // a fifth has new keys and two fifths repeat them, else none has a key
	keys  atomic.Int64
}

// run sends so many requests on each of the connections, and sets in took how long those without
// a key took.
func (l *load) run(t *testing.T, each int, name string, took map[string]time.Duration) {
	t.Helper()
	type result struct {
		keyless []time.Duration
		err     error
	}
	results := make(chan result, loadClients)
	for id := range loadClients {
		go func() {
			keyless, err := l.connection(id, each)
			results <- result{keyless, err}
		}()
	}
	var all []time.Duration
	var err error
	for range loadClients {
		r := <-results
		all = append(all, r.keyless...)
		if err == nil {
			err = r.err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	took[name+", p99.9"] = all[len(all)*999/1000]
	took[name+", p50"] = all[len(all)/2]
}

func (l *load) connection(id, requests int) (keyless []time.Duration, err error) {
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for i := range requests {
		key, kind := "", i%5
		if l.mixed && kind < 3 {
			key = fmt.Sprintf("Idempotency-Key: load-%s-%d-%d\r\n", l.name, id, i/5)
			if kind == 0 {
				l.keys.Add(1)
			}
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		began := time.Now()
		if _, err := fmt.Fprintf(c, "POST /load HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 15\r\n\r\n{\"amount\": 100}", host, key); err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil {
			return nil, err
		}
		if key == "" {
			keyless = append(keyless, time.Since(began))
		}
		if resp.StatusCode != http.StatusOK || n != loadAnswer {
			return nil, fmt.Errorf("%q: status %d, %d bytes, %v", key, resp.StatusCode, n, resp.Header)
		}
	}
	return keyless, nil
}
