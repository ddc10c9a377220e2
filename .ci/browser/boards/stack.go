package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// stack is Envoy with the gate, a manager, a service after the gate, and a Prometheus that scrapes the former two.
type stack struct {
	manager, proxy, prometheus string // URLs
	started                    []*exec.Cmd
	client                     http.Client
}

func startStack(ctx context.Context, top, dir string) (_ *stack, err error) {
	s := &stack{client: http.Client{Timeout: patience}}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	var at [7]string
	for i := range at { // the stack's programs take ports that were free a moment ago
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		at[i] = ln.Addr().String()
		if err := ln.Close(); err != nil {
			return nil, err
		}
	}
	port := func(i int) string { _, p, _ := net.SplitHostPort(at[i]); return p }
	s.manager, s.proxy, s.prometheus = "http://"+at[0], "http://"+at[2], "http://"+at[5]
	if err := s.start(top, "build/examples/run", "--dir", filepath.Join(dir, "run"), "--manager-port", port(0), "--manager-admin-port", port(1),
		"--proxy-port", port(2), "--proxy-admin-port", port(3), "--payments-port", port(4)); err != nil {
		return nil, err
	}
	rules := filepath.Join(top, "charts", "oncegate", "files", "prometheus")
	config := fmt.Sprintf(`global: {scrape_interval: %[1]s, scrape_timeout: 1s, evaluation_interval: %[1]s}
rule_files: [%[2]s/recording.yaml]
scrape_configs:
- {job_name: oncegate, static_configs: [{targets: ["%[3]s"]}]}
- {job_name: envoy, metrics_path: /stats/prometheus, static_configs: [{targets: ["%[4]s"]}]}
`, scrapeEvery, rules, at[1], at[3])
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	if err := s.start(dir, "prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "prometheus"), "--web.listen-address", at[5], "--log.level", "warn"); err != nil {
		return nil, err
	}
	for _, ready := range []string{"http://" + at[1] + "/readyz", "http://" + at[3] + "/ready", s.prometheus + "/-/ready"} {
		if err := s.wait(ctx, ready); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *stack) start(dir, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Dir, c.Stderr = dir, os.Stderr
	if !filepath.IsAbs(name) && filepath.Base(name) != name {
		c.Path = filepath.Join(dir, name)
	}
	if err := c.Start(); err != nil {
		return err
	}
	s.started = append(s.started, c)
	return nil
}

// stop ends the programs, each of which ends what it has started.
func (s *stack) stop() {
	for _, c := range s.started {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	}
}

func (s *stack) wait(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, "GET", address, nil)
		if err != nil {
			return err
		}
		if resp, err := s.client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer 200: %w", address, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// load makes payments, retries, duplicates at the same time, keys used twice, and jobs. Their rate rises and falls.
func (s *stack) load(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var lanes sync.WaitGroup
	errs := make(chan error, 12)
	for lane := range 8 {
		lanes.Go(func() { errs <- s.pay(ctx, lane) })
	}
	for range 3 {
		lanes.Go(func() { errs <- s.submit(ctx) })
	}
	lanes.Go(func() { errs <- s.work(ctx) })
	lanes.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

// pause lasts longest at the beginning and the end of a wave of a minute and a half.
func pause(ctx context.Context, shortest time.Duration) {
	wave := 1.2 - math.Abs(math.Sin(float64(time.Now().UnixMilli())/90_000*math.Pi))
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(float64(shortest) * (1 + 6*wave) * (0.5 + rand.Float64()))):
	}
}

func (s *stack) pay(ctx context.Context, lane int) error {
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("payment-%d-%d-%d", lane, i, time.Now().UnixNano())
		var together sync.WaitGroup
		if i%15 == 0 {
			together.Go(func() { _, _ = s.post(ctx, s.proxy+"/payments", key, `{"amount": 5}`) }) // a duplicate at the same time
		}
		if _, err := s.post(ctx, s.proxy+"/payments", key, `{"amount": 5}`); err != nil && ctx.Err() == nil {
			return err
		}
		together.Wait()
		if i%3 == 0 {
			_, _ = s.post(ctx, s.proxy+"/payments", key, `{"amount": 5}`) // a retry
		}
		if i%40 == 0 {
			_, _ = s.post(ctx, s.proxy+"/payments", key, `{"amount": 999}`) // another request with the key
		}
		pause(ctx, 15*time.Millisecond)
	}
	return nil
}

func (s *stack) submit(ctx context.Context) error {
	for ctx.Err() == nil {
		function := []string{"mail.send", "mail.send", "report.build"}[rand.IntN(3)]
		if _, err := s.post(ctx, s.manager+"/v1/jobs", "", fmt.Sprintf(`{"function": %q, "payload": 1}`, function)); err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, 40*time.Millisecond)
	}
	return nil
}

// work is a worker, in whose hands some jobs fail.
func (s *stack) work(ctx context.Context) error {
	for ctx.Err() == nil {
		answer, err := s.post(ctx, s.manager+"/v1/jobs/claim", "", `{"worker": "w", "functions": ["mail.send", "report.build"], "limit": 10, "wait_ms": 1000}`)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var claimed struct {
			Jobs []struct {
				ID    string
				Lease struct{ Token string }
			}
		}
		if err := json.Unmarshal(answer, &claimed); err != nil {
			return fmt.Errorf("%s: %w", answer, err)
		}
		for _, j := range claimed.Jobs {
			path, end := "/finish", map[string]any{"lease_token": j.Lease.Token, "status": "complete"}
			switch n := rand.IntN(40); {
			case n == 0:
				end["status"], end["error"] = "failed", "the mailbox is unavailable"
			case n < 4:
				path, end = "/retry", map[string]any{"lease_token": j.Lease.Token, "delay_ms": 2000, "error": "connection refused"}
			}
			body, err := json.Marshal(end)
			if err != nil {
				return err
			}
			if _, err := s.post(ctx, s.manager+"/v1/jobs/"+j.ID+path, "", string(body)); err != nil && ctx.Err() == nil {
				return err
			}
		}
		pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func (s *stack) post(ctx context.Context, address, key, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", address, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer shop")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}
