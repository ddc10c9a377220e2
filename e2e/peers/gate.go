package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// gatePrograms are those whose CPU time counts.
var gatePrograms = []string{"Envoy", "manager", "ext_proc", "store"}

// gateCases are the rows, each a load (none, new or replay) on a setup. Rows with the same setup share it.
var gateCases = []struct{ name, setup, kind string }{
	{"no filter", "plain", "none"},
	{"no-op Wasm", "noop", "none"},
	{"gate, no key", "body", "none"},
	{"gate, new key", "body", "new"},
	{"gate, new key, direct route", "direct", "new"},
	{"gate, new key, client_abort cancel", "cancel", "new"},
	{"gate, new key, headers mode", "headers", "new"},
	{"gate, new key, on Postgres", "on postgres", "new"},
	{"gate, new key, on Redis", "on redis", "new"},
	{"gate, new key, on etcd", "on etcd", "new"},
	{"gate, replay", "body", "replay"},
	{"gate, replay, headers mode", "headers", "replay"},
	{"ext_proc + Redis, plain, no key", "plain ext_proc", "none"},
	{"ext_proc + Redis, plain, new key", "plain ext_proc", "new"},
	{"ext_proc + Redis, plain, replay", "plain ext_proc", "replay"},
	{"ext_proc + Redis, tuned, no key", "tuned ext_proc", "none"},
	{"ext_proc + Redis, tuned, new key", "tuned ext_proc", "new"},
	{"ext_proc + Redis, tuned, replay", "tuned ext_proc", "replay"},
}

// replayedKeys is how many keys the replays of one measurement take in turn.
const replayedKeys = 100

// gateBench is all that runs for the comparison.
type gateBench struct {
	*table
	envoy    envoybin.Binary
	upstream *httptest.Server
	executed atomic.Int64 // requests that upstream has had
	setups   map[string]*setup
}

// compareGates measures what a request costs in Envoy: without a filter, with the
// gate, and with an external processor and Redis.
func compareGates(ctx context.Context, s settings) error {
	binary, err := envoybin.Find(ctx, filepath.Join(s.build, "toolchain"))
	if err != nil {
		return err
	}
	t, err := s.newTable("gate", "requests/s", gatePrograms...)
	if err != nil {
		return err
	}
	t.notes = fmt.Sprintf("Envoy %s with one worker; %s", binary.Version, version(ctx, "redis-server", "--version"))
	b := &gateBench{table: t, envoy: binary, setups: map[string]*setup{}}
	defer b.stop()
	b.columns = []column{{name: "64 connections", callers: 64}, {name: "1 connection", callers: 1}}
	b.upstream = httptest.NewServer(http.HandlerFunc(b.serve))
	b.onStop(b.upstream.Close)
	for _, c := range gateCases {
		if !b.wants(c.name) {
			continue
		}
		on := b.setups[c.setup]
		if on == nil {
			if on, err = b.start(ctx, c.setup); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			b.setups[c.setup] = on
		}
		b.add(&row{name: c.name, cpu: on.cpu, load: func(to column) *load { return b.requests(on, c.kind, to.callers) }})
	}
	return b.measure(ctx)
}

// upstreamAnswer is what upstream answers every request with.
var upstreamAnswer = bytes.Repeat([]byte("x"), 256)

func (b *gateBench) serve(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err == nil && r.URL.Path == "/payments" {
		b.executed.Add(1)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(upstreamAnswer)
}

// requests sends requests and checks that every new key ran once and no replay did.
func (b *gateBench) requests(on *setup, kind string, connections int) *load {
	run, took := runName(), make([][]time.Duration, connections)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	known := keysOf(run, 0, 0, replayedKeys)
	l := &load{run: func(ctx context.Context) (int, error) {
		defer client.CloseIdleConnections()
		before := b.executed.Load()
		n, err := timedCalls(ctx, b.duration, connections, func(ctx context.Context, caller, n int) error {
			key := ""
			switch kind {
			case "new":
				key = keysOf(run, caller, n, 1)[0]
			case "replay":
				key = known[n%replayedKeys]
			}
			start := time.Now()
			err := post(ctx, client, on.addr, key, kind == "replay")
			took[caller] = append(took[caller], time.Since(start))
			return err
		})
		if err != nil {
			return n, fmt.Errorf("%w\nEnvoy: %s", err, on.envoy.Printed())
		}
		expected := int64(n)
		if kind == "replay" {
			expected = 0
		}
		if executed := b.executed.Load() - before; executed != expected {
			return n, fmt.Errorf("upstream ran %d requests of %d, want %d", executed, n, expected)
		}
		return n, nil
	}, median: func() time.Duration {
		all := slices.Sorted(slices.Values(slices.Concat(took...)))
		return all[len(all)/2]
	}}
	if kind == "replay" {
		l.prepare = func(ctx context.Context) (err error) {
			for _, key := range known {
				err = errors.Join(err, post(ctx, client, on.addr, key, false))
			}
			return err
		}
	}
	return l
}

var requestBody = `{"amount":100,"currency":"eur","note":"` + strings.Repeat("x", 14) + `"}`

// post sends one request with a key, if it is not empty, and checks the answer, and whether it is a replay.
func post(ctx context.Context, client *http.Client, addr, key string, replay bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/payments", strings.NewReader(requestBody))
	if err != nil {
		return err
	}
	req.Host = "payments.test"
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer load")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	replayed := resp.Header.Get("Idempotent-Replayed") == "true"
	if resp.StatusCode != 200 || replayed != replay || !bytes.Equal(got, upstreamAnswer) || resp.Header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("key %s: answer %d %v %q; replayed should be %v", key, resp.StatusCode, resp.Header, got, replay)
	}
	return nil
}
