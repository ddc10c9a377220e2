package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// shardLoad are clients that pay through a few proxies, which can be replaced while they do.
type shardLoad struct {
	fail  func(format string, args ...any)
	stop  func() // ends all clients
	slots []*loadSlot

	requests, refusals, done atomic.Int64

	clients sync.RWMutex // held by each while it pays

	mu     sync.Mutex
	active []string // keys that are paid again
	paid   map[string]answer
	keys   []string // all that ever were
}

// loadSlot is a proxy as clients know it.
type loadSlot struct {
	mu  sync.Mutex
	now *slotProxy
}

type slotProxy struct {
	*proxy
	busy sync.WaitGroup
}

// Clients send in bursts, all of them at the same time: requests for one key overlap, and the machine has time for what is done
// to the processes meanwhile.
const (
	burstSize   = 3 // requests of a client
	burstPeriod = 50 * time.Millisecond
)

// load starts clients before so many proxies.
func (f *fleet) load(t *testing.T, proxies int, start func() *proxy) *shardLoad {
	t.Helper()
	l := &shardLoad{paid: map[string]answer{}, fail: t.Errorf}
	for range proxies {
		l.slots = append(l.slots, &loadSlot{now: &slotProxy{proxy: start()}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	l.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(l.stop)
	for i := range 6 {
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				for range burstSize {
					l.one(rnd)
				}
				<-time.After(time.Until(time.Now().Truncate(burstPeriod).Add(burstPeriod)))
			}
		})
	}
	return l
}

// one sends one request: for a new key, or for a key that another client has paid or is paying.
func (l *shardLoad) one(rnd *rand.Rand) {
	l.clients.RLock()
	defer l.clients.RUnlock()
	l.mu.Lock()
	var key string
	if len(l.active) == 0 || rnd.IntN(8) == 0 {
		key = newKey()
		l.active, l.keys = append(l.active, key), append(l.keys, key)
	} else if recent := len(l.active) - 20; recent > 0 && rnd.IntN(2) == 0 {
		key = l.active[recent+rnd.IntN(20)]
	} else {
		key = l.active[rnd.IntN(len(l.active))]
	}
	l.mu.Unlock()
	_ = l.pay(l.slots[rnd.IntN(len(l.slots))], key) // what matters is noted
}

// pay sends a request for a key. The error says why the key was not paid.
func (l *shardLoad) pay(slot *loadSlot, key string) error {
	slot.mu.Lock()
	p := slot.now
	p.busy.Add(1)
	slot.mu.Unlock()
	defer p.busy.Done()
	l.requests.Add(1)
	a, err := do(context.Background(), p.proxy, pay(key))
	switch {
	case err != nil:
		l.fail("%s: a lost answer: %v", key, err)
		return err
	case a.status == http.StatusServiceUnavailable && a.headers.Get("Retry-After") != "", a.status == http.StatusConflict && a.headers.Get("Idempotency-Status") == "request-pending":
		l.refusals.Add(1)
		time.Sleep(5 * time.Millisecond) // as a client does before it tries again
		return fmt.Errorf("%s: %v", key, a)
	case a.status != http.StatusCreated:
		l.fail("%s: %v", key, a)
		return fmt.Errorf("%s: %v", key, a)
	}
	l.done.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, ok := l.paid[key]; !ok {
		l.paid[key] = a
	} else if err := a.sameAs(first); err != nil {
		l.fail("%s: %v", key, err)
	}
	return nil
}

// more waits until so many further requests were paid for.
func (l *shardLoad) more(t *testing.T, n int64) {
	t.Helper()
	want := l.done.Load() + n
	eventually(t, "clients pay", func() error {
		if got := l.done.Load(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// settle waits until every key that a client began to pay is paid.
func (l *shardLoad) settle(t *testing.T) {
	t.Helper()
	var open []string
	l.mu.Lock()
	for _, key := range l.active {
		if _, ok := l.paid[key]; !ok {
			open = append(open, key)
		}
	}
	l.mu.Unlock()
	for i, key := range open {
		eventually(t, "a key is paid", func() error { return l.pay(l.slots[i%len(l.slots)], key) })
	}
}

// retire settles while no other client pays. The keys up to now are not paid again.
func (l *shardLoad) retire(t *testing.T) {
	t.Helper()
	l.clients.Lock()
	defer l.clients.Unlock()
	l.settle(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active = nil
}

// replace starts another proxy instead of one, and stops that one when it has answered everything.
func (l *shardLoad) replace(t *testing.T, i int, with *proxy) {
	t.Helper()
	slot := l.slots[i]
	slot.mu.Lock()
	old := slot.now
	slot.now = &slotProxy{proxy: with}
	slot.mu.Unlock()
	old.busy.Wait()
	if err := old.proxy.stop(); err != nil {
		t.Error(err)
	}
}

// all are the keys that were ever paid.
func (l *shardLoad) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.keys)
}
