package gatebench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// loadRequests is how many requests a test sends; make test-long asks for a million.
func loadRequests(t *testing.T) int {
	t.Helper()
	const name = "GATE_LOAD_REQUESTS"
	v := os.Getenv(name)
	if v == "" {
		return 50_000
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 50_000 {
		t.Fatalf("%s=%q: must be a number of requests, at least 50000", name, v)
	}
	return n
}

// skipRace skips the test under the race detector, which sees nothing of the module's code. make test-deep runs it without.
func skipRace(t *testing.T) {
	t.Helper()
	if deep.Race {
		t.Skip("the module's code runs without the race detector")
	}
}

// TestGuestMemoryStays: a wasm memory never shrinks, so fragmentation shows as growth,
// sometimes only after hundreds of thousands of requests.
func TestGuestMemoryStays(t *testing.T) {
	deep.Only(t)
	skipRace(t)
	end := loadRequests(t)
	warm := min(end/5, 100_000)
	for _, c := range []struct{ name, config string }{
		{"headers", `{"mode": "headers", "max_response_body_bytes": 4096}`},
		{"body", `{"mode": "body", "max_response_body_bytes": 4096}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoad(t, c.config)
			l.run(warm)
			before := l.memory()
			if before == 0 {
				t.Fatal("the host does not know the size of the guests' memory")
			}
			for n := warm; n < end; {
				n += (end - warm) / 8
				l.run(n)
				t.Logf("after %7d requests %d kB in 2 VMs", l.sent, l.memory()>>10)
			}
			if after := l.memory(); after > before {
				t.Errorf("the VMs' memory grew from %d to %d bytes between request %d and %d", before, after, warm, end)
			}
			l.finish()
			l.accountedFor(t)
		})
	}
}

// accountedFor checks by the filter's own metrics that the load caused every kind of
// outcome.
func (l *load) accountedFor(t *testing.T) {
	values := map[string]int64{}
	for _, m := range l.rig.host.Process().Metrics() {
		values[m.Name] = int64(m.Value)
	}
	for _, name := range []string{
		"oncegate_gate_requests_hit_committed_total", "oncegate_gate_requests_hit_rejected_total", "oncegate_gate_requests_waited_total",
		"oncegate_gate_requests_miss_total", "oncegate_gate_requests_mismatch_total", "oncegate_gate_requests_conflict_total",
		"oncegate_gate_requests_not_recorded_total", "oncegate_gate_requests_invalid_total", "oncegate_gate_requests_manager_error_total",
		"oncegate_gate_outcomes_committed_total", "oncegate_gate_outcomes_rejected_total", "oncegate_gate_outcomes_released_total",
		"oncegate_gate_outcomes_unknown_total", "oncegate_gate_outcomes_oversize_total",
	} {
		if values[name] == 0 {
			t.Errorf("%s is 0 after %d requests: the load is not mixed", name, l.sent)
		}
	}
	if w := values["oncegate_gate_waiters"]; w != 0 {
		t.Errorf("%d duplicates are still counted as waiting", w)
	}
}

// TestVariablesAreRoots: the collector keeps what the module's variables point to.
func TestVariablesAreRoots(t *testing.T) {
	deep.Only(t)
	skipRace(t)
	start(t, hostsim.Config{Guest: module(t, "build/bench/roots.wasm")})
}

// TestSharedDataStays puts ten times as many distinct keys through the gate as it may
// remember. Shared data has no delete, so what is there at the end is all that was ever
// there: it must be within the bytes that the configuration allows, and the number of
// its keys must not depend on the number of requests.
func TestSharedDataStays(t *testing.T) {
	deep.Only(t)
	skipRace(t)
	entries := min(loadRequests(t)/25, 100_000)
	for _, c := range []struct {
		name       string
		entries    int
		bytes      int
		evictsMost bool // the bytes are the narrower bound
	}{
		{"entries", entries, 64 << 20, false},
		{"bytes", entries, 256 * entries, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoad(t, fmt.Sprintf(`{"max_entries": %d, "max_bytes": %d, "max_response_body_bytes": 4096, "committed_ttl_seconds": 86400}`, c.entries, c.bytes))
			keys := 10 * c.entries
			for made := 0; made < keys; {
				for range window {
					q := request{key: l.newKey(), body: requestBody}
					if made++; made%16 == 0 {
						q.answer = l.large[:1+made%maxResponse]
					}
					x, err := l.rig.send(made%2, q)
					l.rig.must(err)
					l.open = append(l.open, x)
				}
				l.clock.Advance(step)
				l.forget()
			}
			l.finish()
			size, values := 0, l.rig.host.SharedData()
			for _, e := range values {
				size += len(e.Value)
			}
			t.Logf("%d distinct keys: %d keys and %d bytes of values in shared data, %d bytes allowed", keys, len(values), size, c.bytes)
			if size > c.bytes {
				t.Errorf("%d bytes of values in shared data, the configuration allows %d", size, c.bytes)
			}
			// A record and eight values per bucket; a record per region, the scratch value, the
			// sweep's, the list of VMs and the mark of the manager's ledger.
			if most := (c.entries/8)*9 + c.entries/8192 + 5; len(values) > most {
				t.Errorf("%d keys in shared data for %d entries", len(values), c.entries)
			}
			if n := l.rig.reached.Load(); n != int64(l.keys) {
				t.Errorf("%d of %d distinct requests were executed", n, l.keys)
			}
			if size < c.bytes/2 && c.evictsMost || len(values) < c.entries/4 {
				t.Errorf("%d keys and %d bytes: the table is hardly used", len(values), size)
			}
		})
	}
}

// The memory that large answers take has a bound, whatever their number, with and without a manager. It is some times their
// size, because each block must be in one piece. It was four times as much when the collector read the module's constants:
// each word there that looked like an address kept a block of garbage.
func TestLargeAnswersStayInMemory(t *testing.T) {
	deep.Only(t)
	skipRace(t)
	const (
		most   = 400_000 // bytes
		atOnce = 4       // in each VM
		rounds = 40
		bound  = 32 << 20 // in each VM
	)
	l := newLoad(t, `{"mode": "body", "max_response_body_bytes": 400000}`)
	l.large = bytes.Repeat([]byte("0123456789abcdef"), most/16)
	for round := range rounds {
		if round%10 == 9 {
			// The reservations are made; the commits do not arrive and are kept.
			l.rig.ledger.outage.Store(finishesFail)
		}
		for range atOnce * loadWorkers {
			x, err := l.rig.send(l.keys%loadWorkers, request{key: l.newKey(), body: requestBody, answer: l.large})
			l.rig.must(err)
			l.open = append(l.open, x)
		}
		l.clock.Advance(step)
		l.finish()
	}
	t.Logf("%d kB in %d VMs", l.memory()>>10, loadWorkers)
	if size := l.memory(); size > bound*loadWorkers {
		t.Errorf("the VMs' memory grew to %d bytes", size)
	}
}
