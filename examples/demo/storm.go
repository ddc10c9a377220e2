package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// kind is what happens to a key at the upstream.
type kind int

const (
	// plain: the upstream answers.
	plain kind = iota
	// dropBefore: the upstream closes the connection before the work. Only the upstream knows that, so the gate holds the
	// key until its reservation has run out. On the path of these keys a retry runs it then.
	dropBefore
	// dropAfter: the upstream closes the connection after the work. The gate holds the key as well. These keys use a
	// path on which unknown outcomes are remembered, which is the default.
	dropAfter
)

// path is where the requests of a key go; pluginConfig gives each its TTL.
func (k kind) path() string {
	if k == dropAfter {
		return "/payments/held"
	}
	return "/payments"
}

// drop is the x-demo-drop header of a key's first requests.
func (k kind) drop() string {
	return map[kind]string{dropBefore: "before", dropAfter: "after"}[k]
}

// parallelKeys is how many plain keys are in the storm at the same time.
const parallelKeys = 8

// storm is one run of the demo.
type storm struct {
	proxy    string // URL
	payments string // URL of the upstream itself
	keys     int
	clients  int // per key
	seed     uint64
	// crash kills the manager and returns when it is back. It is called once, when half of the plain keys are done.
	crash func(context.Context) error

	client   *http.Client // to the proxy
	observer *http.Client // to payments
	tally    *tally
	start    time.Time
	printing sync.Mutex // one line at a time
}

// kindOf spreads the kinds: of 100 keys, 8 dropBefore and 7 dropAfter, the rest plain. Those two come first, because they
// take longest.
func (s *storm) kindOf(key int) kind {
	before, after := s.keys*8/100, s.keys*7/100
	switch {
	case key < before:
		return dropBefore
	case key < before+after:
		return dropAfter
	}
	return plain
}

// run lets the storm rage until every client has its answer or ctx ends, and returns what happened. After an error the
// result is not known.
func (s *storm) run(ctx context.Context) (report, error) {
	s.client = newHTTPClient()
	s.observer = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: s.keys}}
	defer s.observer.CloseIdleConnections()

	plainKeys := 0
	for key := range s.keys {
		if s.kindOf(key) == plain {
			plainKeys++
		}
	}

	var (
		wg       sync.WaitGroup
		slots    = make(chan struct{}, parallelKeys)
		crashed  = make(chan error, 1)
		doneKeys = make(chan struct{}, s.keys)
	)
	wg.Go(func() {
		for range plainKeys / 2 {
			select {
			case <-doneKeys:
			case <-ctx.Done():
				crashed <- ctx.Err()
				return
			}
		}
		crashed <- s.crash(ctx)
	})
	for key := range s.keys {
		kind := s.kindOf(key)
		if kind == plain {
			slots <- struct{}{} // becomes free: every key ends with ctx at the latest
		}
		wg.Go(func() {
			s.key(ctx, key, kind)
			if kind == plain {
				doneKeys <- struct{}{}
				<-slots
			}
		})
	}
	wg.Wait()
	if err := <-crashed; err != nil && ctx.Err() == nil {
		return report{}, fmt.Errorf("killing and restarting the manager: %w", err)
	}

	// The storm's time may be over; asking for the result needs one more request.
	counts, err := s.executions(context.WithoutCancel(ctx), "")
	if err != nil {
		return report{}, fmt.Errorf("asking payments what it executed: %w", err)
	}
	r := s.report(counts)
	r.elapsed = time.Since(s.start)
	return r, nil
}

// key sends one key's clients and returns when all of them are done.
func (s *storm) key(ctx context.Context, key int, kind kind) {
	var wg sync.WaitGroup
	executed := make(chan struct{})
	wg.Go(func() {
		if s.waitExecuted(ctx, keyName(key)) {
			close(executed)
		}
	})
	for n := range s.clients {
		c := submitter{
			storm: s,
			rand:  rand.New(rand.NewPCG(s.seed, uint64(key)<<32|uint64(n))),
			kind:  kind,
			// A quarter of the clients arrive when the work has begun, and know that they are duplicates.
			duplicate: n >= s.clients-s.clients/4,
			attempt: attempt{
				url:  s.proxy + kind.path(),
				key:  keyName(key),
				body: fmt.Appendf(nil, `{"amount": %d, "currency": "EUR"}`, key+1),
				// Long enough for duplicates to arrive during the work.
				delay: time.Duration(20+key%80) * time.Millisecond,
			},
		}
		wg.Go(func() {
			s.tally.begin()
			if c.duplicate {
				select {
				case <-executed:
				case <-ctx.Done():
				}
			}
			if c.submit(ctx) {
				s.tally.settle()
			} else {
				s.tally.addFault("key %s: the time was up before a client had its answer", c.attempt.key)
			}
		})
	}
	wg.Wait()
}

// waitExecuted waits until the upstream has begun the key's work. It returns false when ctx ended first.
func (s *storm) waitExecuted(ctx context.Context, key string) bool {
	for {
		counts, err := s.executions(ctx, key)
		if err == nil && counts.Keys[key] > 0 {
			return true
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return false
		}
	}
}

// executionCounts is what payments answers on GET /executions.
type executionCounts struct {
	Total     int64            `json:"total"`
	Keys      map[string]int64 `json:"keys"`
	Untracked int64            `json:"untracked"`
}

// executions asks payments what it executed, for one key or for all ("").
func (s *storm) executions(ctx context.Context, key string) (executionCounts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	target := s.payments + "/executions"
	if key != "" {
		target += "?key=" + url.QueryEscape(key)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return executionCounts{}, err
	}
	resp, err := s.observer.Do(req)
	if err != nil {
		return executionCounts{}, err
	}
	defer resp.Body.Close()
	var counts executionCounts
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&counts); err != nil {
		return executionCounts{}, fmt.Errorf("%s: %w", target, err)
	}
	return counts, nil
}

func keyName(key int) string { return fmt.Sprintf("storm-%03d", key) }

// sleep waits for d. It returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func newStorm(proxy, payments string, opts options) *storm {
	return &storm{
		proxy: proxy, payments: payments,
		keys: opts.keys, clients: opts.clients, seed: opts.seed,
		tally: newTally(), start: time.Now(),
	}
}

// progress prints the progress of the storm and what has just happened.
func (s *storm) progress(w io.Writer, what string) {
	line := s.tally.progress(s.keys*s.clients, time.Since(s.start))
	if what != "" {
		line += "  <- " + what
	}
	// The crash and the progress are printed by different goroutines.
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Fprintln(w, line)
}
