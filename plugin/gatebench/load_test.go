package gatebench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// load is a mix of everything that clients, upstreams and managers do to a gate: new
// keys, retries of recent ones, duplicates at the same moment, other requests under a
// known key, refusals, answers that ask to be retried, small and large and oversize
// answers, clients that leave, bad keys, no keys, and times without a manager. The
// virtual clock advances by step in each window, so entries expire, waits end and the
// sweep runs.
// The same seed gives the same load.
type load struct {
	rig    *rig
	clock  *hostsim.VirtualClock
	rand   *rand.Rand
	sent   int
	keys   int      // made so far
	recent []string // a ring of keys that retries are made of
	open   []*exchange
	large  []byte
}

const (
	step        = 50 * time.Millisecond
	loadWorkers = 2
	recentKeys  = 4096
	// oversize is more than the loads' max_response_body_bytes. Both are small to keep
	// the VMs' memory small, so that leaks show in it. TestLargeAnswersStayInMemory has large answers.
	oversize    = 6 << 10
	maxResponse = 4 << 10
)

func newLoad(tb testing.TB, config string) *load {
	clock := hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	return &load{
		rig: start(tb, hostsim.Config{
			Guest: module(tb, gateModule), Workers: loadWorkers, PluginConfig: []byte(config), Clock: clock, Seed: 1,
		}),
		clock: clock,
		rand:  rand.New(rand.NewPCG(1, 2)),
		large: bytes.Repeat([]byte("0123456789abcdef"), oversize/16),
	}
}

func (l *load) newKey() string {
	l.keys++
	return fmt.Sprintf("5b2f6e0d-%04x-4c1a-8f00-%012d", l.rand.IntN(1<<16), l.keys)
}

// remember makes retries of a key possible.
func (l *load) remember(key string) {
	if len(l.recent) < recentKeys {
		l.recent = append(l.recent, key)
		return
	}
	l.recent[l.rand.IntN(recentKeys)] = key
}

// next returns the next request, or two for duplicates at the same moment.
func (l *load) next() []request {
	known := func() string {
		if len(l.recent) == 0 {
			return l.newKey()
		}
		return l.recent[l.rand.IntN(len(l.recent))]
	}
	fresh := request{body: requestBody}
	switch p := l.rand.IntN(1000); {
	case p < 480: // a retry
		return []request{{key: known(), body: requestBody}}
	case p < 740: // a new key
		fresh.key = l.newKey()
		switch size := l.rand.IntN(100); {
		case size < 5:
			fresh.answer = l.large[:1+l.rand.IntN(maxResponse)]
		case size == 5:
			fresh.answer = l.large
		}
		l.remember(fresh.key)
		return []request{fresh}
	case p < 770: // duplicates at the same moment
		fresh.key = l.newKey()
		return []request{fresh, fresh}
	case p < 820: // another request under a known key
		return []request{{key: known(), body: []byte(`{"amount": 999}`)}}
	case p < 860: // rejected
		fresh.key, fresh.status = l.newKey(), 422
		l.remember(fresh.key)
		return []request{fresh}
	case p < 880: // released
		fresh.key, fresh.status = l.newKey(), 429
		return []request{fresh}
	case p < 900:
		fresh.key, fresh.status = l.newKey(), 500
		return []request{fresh}
	case p < 903: // outcome unknown, and a retry that waits for it
		fresh.key, fresh.leave = l.newKey(), true
		return []request{fresh, {key: fresh.key, body: requestBody}}
	case p < 930: // not a key
		return []request{{key: string(bytes.Repeat([]byte("k"), 256)), body: requestBody}}
	default: // not for the gate
		return []request{{body: requestBody}}
	}
}

// run sends requests until n have been sent since the start.
func (l *load) run(n int) {
	for l.sent < n {
		// One window in fifty finds no manager.
		l.rig.ledger.outage.Store(allAnswered)
		if l.sent/window%50 == 49 {
			l.rig.ledger.outage.Store(allFail)
		}
		for end := min(l.sent+window, n); l.sent < end; {
			for _, q := range l.next() {
				x, err := l.rig.send(l.sent%loadWorkers, q)
				l.rig.must(err)
				l.open = append(l.open, x)
				l.sent++
			}
		}
		l.clock.Advance(step)
		l.forget()
	}
}

// forget drops the streams that are over.
func (l *load) forget() {
	open := l.open[:0]
	for _, x := range l.open {
		select {
		case <-x.stream.Done():
		default:
			open = append(open, x)
		}
	}
	clear(l.open[len(open):])
	l.open = open
}

// memory is the size of the workers' linear memories.
func (l *load) memory() (bytes uint64) {
	for w := range loadWorkers {
		bytes += l.rig.host.GuestMemory(w)
	}
	return bytes
}

// finish advances the clock until nothing waits any more.
func (l *load) finish() {
	l.rig.ledger.outage.Store(allAnswered)
	for range 61 { // longer than any reservation and any wait
		l.clock.Advance(time.Second)
	}
	l.forget()
	if len(l.open) > 0 {
		l.rig.tb.Errorf("%d streams never ended", len(l.open))
	}
}
