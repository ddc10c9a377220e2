package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed load.lua
var loadLua []byte

// replayedKeys is how many keys the replays of one measurement take in turn.
const replayedKeys = 100

// measurement is one row's load in one round.
type measurement struct {
	rate     float64 // requests/s
	p50, p99 time.Duration
	cpu      []time.Duration // per request, of each process that counts
	rss      []int64         // bytes, of each
}

func (m measurement) total() (sum time.Duration) {
	for _, d := range m.cpu {
		sum += d
	}
	return sum
}

func (m measurement) String() string {
	return fmt.Sprintf("%.0f requests/s, p50 %v, p99 %v, %v of %v us CPU", m.rate, m.p50, m.p99, micros(m.total()), m.cpu)
}

func micros(d time.Duration) int64 { return d.Round(time.Microsecond).Microseconds() }

// best is what all rounds together say: the highest rate and the least of everything
// else. The parts of a CPU time are of the same round as their least sum.
type best struct {
	measurement
	rounds int
}

func (b *best) add(m measurement) {
	if b.rounds++; b.rounds == 1 {
		b.measurement = m
		return
	}
	b.rate, b.p50, b.p99 = max(b.rate, m.rate), min(b.p50, m.p50), min(b.p99, m.p99)
	if m.total() < b.total() {
		b.cpu = m.cpu
	}
	for i := range b.rss { // memory only grows
		b.rss[i] = max(b.rss[i], m.rss[i])
	}
}

// gateResult is a row while it is measured.
type gateResult struct {
	gateCase
	on    *setup
	loads []best // by connections
}

// measure loads a setup once and checks with upstream's own count that every new key
// ran once and no replay did.
func (b *gateBench) measure(ctx context.Context, r *gateResult, connections int, duration time.Duration) (m measurement, err error) {
	b.prefixes++
	prefix := fmt.Sprintf("bench-%d-%d-", os.Getpid(), b.prefixes)
	if r.kind == "replay" {
		for n := range replayedKeys {
			if err := b.post(ctx, r.on.addr, prefix+strconv.Itoa(n), false); err != nil {
				return m, err
			}
		}
	}
	executedBefore, err := b.quietUpstream(ctx)
	if err != nil {
		return m, err
	}
	var before []time.Duration
	for _, p := range r.on.counted {
		d, err := p.cpu()
		if err != nil {
			return m, err
		}
		before = append(before, d)
	}
	requests, m, err := b.load(ctx, r, prefix, connections, duration)
	if err != nil {
		return m, err
	}
	for i, p := range r.on.counted {
		d, err := p.cpu()
		if err != nil {
			return m, err
		}
		rss, err := p.rss()
		if err != nil {
			return m, err
		}
		m.cpu = append(m.cpu, (d-before[i])/time.Duration(requests))
		m.rss = append(m.rss, rss)
	}
	executed, err := b.quietUpstream(ctx)
	if err != nil {
		return m, err
	}
	// wrk cuts off what is under way at its end.
	executed -= executedBefore
	if r.kind == "replay" && executed != 0 {
		return m, fmt.Errorf("%d of %d replays were executed", executed, requests)
	}
	if r.kind != "replay" && (executed < requests || executed > requests+int64(connections)) {
		return m, fmt.Errorf("upstream ran %d requests, clients got %d answers", executed, requests)
	}
	if r.kind == "none" {
		return m, nil
	}
	return m, b.post(ctx, r.on.addr, prefix+"10", true) // wrk asks its script for some requests that it never sends
}

var wrkResult = regexp.MustCompile(`RESULT ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)`)

// load runs wrk, with one thread: its own CPU time does not count.
func (b *gateBench) load(ctx context.Context, r *gateResult, prefix string, connections int, duration time.Duration) (requests int64, m measurement, err error) {
	script := filepath.Join(b.dir, "load.lua")
	out, err := tool(ctx, "wrk", "-t", "1", "-c", strconv.Itoa(connections), "-d", duration.String(), "--timeout", "20s", "-s", script,
		"http://"+r.on.addr, "--", r.kind, prefix, strconv.Itoa(replayedKeys))
	if err != nil {
		return 0, m, err
	}
	found := wrkResult.FindStringSubmatch(out)
	if found == nil {
		return 0, m, fmt.Errorf("wrk printed:\n%s", out)
	}
	var n [5]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(found[i+1], 10, 64); err != nil {
			return 0, m, err
		}
	}
	if n[0] == 0 || n[4] != 0 {
		return 0, m, fmt.Errorf("%d answers, %d errors:\n%s\n%s", n[0], n[4], out, r.on.logs())
	}
	m.rate = float64(n[0]) / (float64(n[1]) / 1e6)
	m.p50, m.p99 = time.Duration(n[2])*time.Microsecond, time.Duration(n[3])*time.Microsecond
	return n[0], m, nil
}

// post sends one request with a key and checks the answer, and whether it is a replay.
func (b *gateBench) post(ctx context.Context, addr, key string, replay bool) error {
	body := `{"amount":100,"currency":"eur","note":"` + strings.Repeat("x", 14) + `"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/payments", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Host = "payments.test"
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer load")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
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

var statusRequests = regexp.MustCompile(`server accepts handled requests\s+[0-9]+ [0-9]+ ([0-9]+)`)

// quietUpstream waits until nothing more comes to upstream and returns how many
// requests it had, those of this function left out.
func (b *gateBench) quietUpstream(ctx context.Context) (int64, error) {
	var last int64 = -1
	deadline := time.Now().Add(readyTimeout)
	for time.Now().Before(deadline) {
		resp, err := http.Get("http://" + b.upstream.addr + "/status")
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return 0, err
		}
		found := statusRequests.FindSubmatch(text)
		if found == nil {
			return 0, fmt.Errorf("upstream's status: %q", text)
		}
		n, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			return 0, err
		}
		b.statusReads++
		if n -= b.statusReads; n == last {
			return n, nil
		}
		last = n
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 0, errors.New("upstream does not come to rest")
}
