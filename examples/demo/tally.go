package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// tally counts what the clients did and saw. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	observed
	settled int               // clients that have their answer
	answers map[string][]byte // by key, the first client's
}

// observed is what the clients saw.
type observed struct {
	submissions int // by clients that have begun
	requests    int
	cuts        int
	lost        int // requests without an answer that were not cut by us
	replays     int
	statuses    map[int]int
	faults      []string
}

// maxFaults bounds how many faults the report keeps; the first ones say most.
const maxFaults = 20

func newTally() *tally {
	return &tally{observed: observed{statuses: make(map[int]int)}, answers: make(map[string][]byte)}
}

func (t *tally) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.submissions++
}

func (t *tally) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled++
}

// request counts the outcome of one attempt.
func (t *tally) request(a answer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	switch {
	case err == errCut:
		t.cuts++
	case err != nil:
		t.lost++
	default:
		t.statuses[a.status]++
		if a.replayed {
			t.replays++
		}
	}
}

// answered records a client's final answer. It is a fault if another client of the same key got another body.
func (t *tally) answered(key string, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, ok := t.answers[key]
	if !ok {
		t.answers[key] = body
		return
	}
	if !bytes.Equal(first, body) {
		t.fault("key %s: one client got %.100q, another %.100q", key, first, body)
	}
}

func (t *tally) addFault(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault(format, args...)
}

func (t *tally) fault(format string, args ...any) {
	if len(t.faults) < maxFaults {
		t.faults = append(t.faults, fmt.Sprintf(format, args...))
	}
}

// progress returns one line on the progress of the storm.
func (t *tally) progress(clients int, elapsed time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%5.1fs  %d of %d clients answered, %d requests, %d cut, %d replays, 409: %d, 503: %d",
		elapsed.Seconds(), t.settled, clients, t.requests, t.cuts, t.replays, t.statuses[409], t.statuses[503])
}

// report is the storm's result.
type report struct {
	observed
	keys                  int
	dropBefore, dropAfter int // of the keys
	executions            int64
	ranTwice              int // keys
	held                  int // keys that ran and have no answer, as they should
	elapsed               time.Duration
}

// report computes the result from what the clients saw and what the upstream executed.
func (s *storm) report(counts executionCounts) report {
	t := s.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	r := report{keys: s.keys, executions: counts.Total}
	for key := range s.keys {
		name, kind := keyName(key), s.kindOf(key)
		_, answered := t.answers[name]
		switch n := counts.Keys[name]; {
		case n > 1:
			r.ranTwice++
			t.fault("key %s was executed %d times", name, n)
		case n < 1:
			t.fault("key %s was not executed", name)
		}
		switch kind {
		case dropBefore:
			r.dropBefore++
		case dropAfter:
			r.dropAfter++
			if !answered {
				r.held++
			}
		}
		if !answered && kind != dropAfter {
			t.fault("key %s never got an answer", name)
		}
	}
	if counts.Total != int64(s.keys) {
		t.fault("%d executions for %d keys", counts.Total, s.keys)
	}
	r.observed = t.observed // no client is left that counts
	return r
}

// ok reports whether every key ran exactly once and every client got what it should.
func (r report) ok() bool { return len(r.faults) == 0 }

// write prints the report as a table, and the faults below it.
func (r report) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what string, n any, remark string) { fmt.Fprintf(tw, "%s\t%v\t\t%s\n", what, n, remark) }
	row("keys", r.keys, "")
	row("submissions", r.submissions, "clients, each wanting one answer")
	row("retries", r.requests-r.submissions, "")
	row("cut", r.cuts, "connections closed by the client")
	row("dropped", r.dropBefore+r.dropAfter, fmt.Sprintf("keys whose upstream closed the connection: %d before the work, %d after it",
		r.dropBefore, r.dropAfter))
	row("executions", r.executions, "")
	row("ran twice", r.ranTwice, "")
	row("replays", r.replays, "")
	row("held", r.held, "keys whose outcome is unknown: 409, not run again")
	for _, status := range []int{409, 503} {
		row(fmt.Sprint(status), r.statuses[status], "")
	}
	others := maps.Clone(r.statuses)
	delete(others, 409)
	delete(others, 503)
	for _, status := range slices.Sorted(maps.Keys(others)) {
		row(fmt.Sprint(status), others[status], "")
	}
	if r.lost > 0 {
		row("no answer", r.lost, "connections closed by the proxy")
	}
	row("seconds", fmt.Sprintf("%.1f", r.elapsed.Seconds()), "")
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, f := range r.faults {
		fmt.Fprintln(w, "FAULT:", f)
	}
	return nil
}
