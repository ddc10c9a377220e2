package server

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// Calls of one key keep their order, in one group and in several.
func TestStreamKeepsTheOrderOfAKey(t *testing.T) {
	s := newSite(t, siteOptions{})
	for name, together := range map[string]bool{"together": true, "one by one": false} {
		t.Run(name, func(t *testing.T) {
			g := s.gate(httpdtest.HTTP2(t))
			const rounds = 200
			for range rounds {
				// Each release ends the reservation before it. In another order the next reserve would be pending.
				a, b := g.call(api.OpReserve, reserveOf("k", "a", 0)), g.call(api.OpRelease, releaseOf("k", "a"))
				c, d := g.call(api.OpReserve, reserveOf("k", "b", 0)), g.call(api.OpRelease, releaseOf("k", "b"))
				if together {
					g.send(a, b, c, d)
					continue
				}
				for _, call := range [][]byte{a, b, c, d} {
					g.send(call)
				}
			}
			for range 4 * rounds {
				if r, _ := g.reply(); r.Status != 201 && r.Number%2 == 1 || r.Status != 200 && r.Number%2 == 0 {
					t.Fatalf("call %d: %d %s", r.Number, r.Status, r.Body)
				}
			}
		})
	}
}

// A release is not made before the reserve that came before it, however long that takes.
func TestStreamKeepsTheOrderOfAKeyInASlowStore(t *testing.T) {
	var hold sync.RWMutex
	s := newSite(t, siteOptions{store: slow{mem.New(mem.Options{}), &hold}})
	g := s.gate(httpdtest.HTTP2(t))
	for range 20 {
		n := g.n
		hold.Lock()
		g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
		s.Eventually("it is at work", func() bool { busy, _ := s.load(); return busy == 1 })
		g.send(g.call(api.OpRelease, releaseOf("k", "a")), g.call(api.OpPing, nil))
		g.wantReply(n+3, 200, api.StateNone)
		hold.Unlock()
		g.wantReply(n+1, 201, api.StateReserved)
		g.wantReply(n+2, 200, api.StateReleased)
	}
}

// A reserve that waits holds up nobody, and gets the outcome when it comes.
func TestStreamPushesOutcomes(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("k", "b", 30*time.Second)), g.call(api.OpReserve, reserveOf("k", "c", 30*time.Second)))
	s.Eventually("both wait", func() bool { return s.waiters() == 2 })
	g.send(g.call(api.OpPing, nil), g.call(api.OpReserve, reserveOf("other", "a", 0)))
	g.wantReply(4, 200, api.StateNone)
	g.wantReply(5, 201, api.StateReserved)
	g.send(g.call(api.OpCommit, commitOf("k", "a", []byte("done"))))
	got := map[uint64]int{}
	for range 3 {
		r, in := g.reply()
		if got[r.Number] = r.Status; in.State != api.StateCommitted {
			t.Errorf("call %d: %v", r.Number, in.State)
		}
	}
	if got[2] != 200 || got[3] != 200 || got[6] != 200 {
		t.Errorf("replies %v", got)
	}
}

// A release that follows a waiting reserve of its attempt ends the wait, and leaves no reservation behind.
func TestStreamReleasesAWaitingReserve(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	for round, together := range []bool{false, true} {
		key, n := "k"+strconv.Itoa(round), g.n
		g.send(g.call(api.OpReserve, reserveOf(key, "a", 0)))
		g.wantReply(n+1, 201, api.StateReserved)
		reserve, release := g.call(api.OpReserve, reserveOf(key, "b", 30*time.Second)), g.call(api.OpRelease, releaseOf(key, "b"))
		if together {
			g.send(reserve, release)
		} else {
			g.send(reserve)
			s.Eventually("it waits", func() bool { return s.waiters() == 1 })
			g.send(release)
		}
		if _, in := g.wantReply(n+2, 202, api.StatePending); in.ExpiresIn <= 0 {
			t.Errorf("the other attempt's reservation is said to last for %v", in.ExpiresIn)
		}
		if r, _ := g.reply(); r.Number != n+3 || r.Status != 409 {
			t.Errorf("release of what was never reserved: %d %s", r.Status, r.Body)
		}
		g.send(g.call(api.OpRelease, releaseOf(key, "a")))
		g.wantReply(n+4, 200, api.StateReleased)
		g.send(g.call(api.OpReserve, reserveOf(key, "c", 0)))
		g.wantReply(n+5, 201, api.StateReserved)
	}
	if n := s.waiters(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// Two thousand duplicates of one key on one stream: one execution, and a bounded memory for each.
func TestStreamHoldsManyDuplicates(t *testing.T) {
	const duplicates = 2000
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "first", 0)))
	g.wantReply(1, 201, api.StateReserved)
	before := inUse()
	for i := range duplicates {
		g.send(g.call(api.OpReserve, reserveOf("k", "token-of-an-attempt-"+strconv.Itoa(i), 30*time.Second)))
	}
	s.Eventually("all wait", func() bool { return s.waiters() == duplicates })
	each := (inUse() - before) / duplicates
	t.Logf("%d bytes for each waiting call", each)
	if each > 32<<10 {
		t.Errorf("%d bytes for each waiting call", each)
	}
	g.send(g.call(api.OpCommit, commitOf("k", "first", []byte("done"))))
	for range duplicates + 1 {
		if r, in := g.reply(); r.Status != 200 || in.State != api.StateCommitted {
			t.Fatalf("call %d: %d %v", r.Number, r.Status, in.State)
		}
	}
	g.CloseSend()
	g.wantEnd("0")
	stats, err := s.ledger.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	stats.Each(func(op, outcome string, n uint64) { counts[op+" "+outcome] = n })
	if counts["reserve done"] != 1 || counts["reserve replayed"] != duplicates || counts["reserve pending"] != 0 {
		t.Errorf("counted %v", counts)
	}
}

func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// What waits ends with its stream.
func TestStreamTakesItsWaitsWithIt(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	for range 20 {
		g.send(g.call(api.OpReserve, reserveOf("k", "t"+strconv.FormatUint(g.n, 10), 30*time.Second)))
	}
	s.Eventually("all wait", func() bool { return s.waiters() == 20 })
	g.Kill()
	s.Eventually("none waits", func() bool {
		busy, held := s.load()
		return s.waiters() == 0 && busy == 0 && held == 0
	})
}

// slow is a store whose writes are held while the lock is, at most until their context ends.
type slow struct {
	store.Store
	hold *sync.RWMutex
}

func (s slow) Update(ctx context.Context, fn func(store.Tx) error) error {
	for !s.hold.TryRLock() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	defer s.hold.RUnlock()
	return s.Store.Update(ctx, fn)
}

// Waiting calls are answered pending, calls at work are finished, and then the stream ends.
func TestStreamIsAnsweredAtShutdown(t *testing.T) {
	var hold sync.RWMutex
	s := newSite(t, siteOptions{store: slow{mem.New(mem.Options{}), &hold}})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("k", "b", 30*time.Second)))
	s.Eventually("it waits", func() bool { return s.waiters() == 1 })
	hold.Lock()
	g.send(g.call(api.OpReserve, reserveOf("other", "a", 0)))
	s.Eventually("it is at work", func() bool { busy, _ := s.load(); return busy == 1 })
	down := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		down <- s.server.Shutdown(ctx) // also without Drain of the ledger
	}()
	g.wantReply(2, 202, api.StatePending)
	hold.Unlock()
	g.wantReply(3, 201, api.StateReserved)
	g.wantEnd("14")
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// A reserve that begins to wait when its stream is ending does not hold up the end.
func TestReserveDoesNotWaitOnAStreamThatEnds(t *testing.T) {
	var hold sync.RWMutex
	s := newSite(t, siteOptions{store: slow{mem.New(mem.Options{}), &hold}, ledger: ledger.Options{MaxWait: time.Hour}})
	client := httpdtest.HTTP2(t)
	g, other := s.gate(client), s.gate(client)
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	hold.Lock()
	g.send(g.call(api.OpReserve, reserveOf("k", "b", time.Hour)))
	s.Eventually("it is at work", func() bool { busy, _ := s.load(); return busy == 1 })
	down := make(chan error, 1)
	go func() { down <- s.server.Shutdown(t.Context()) }() // also without Drain of the ledger
	other.wantEnd("14")
	hold.Unlock()
	g.wantReply(2, 202, api.StatePending)
	g.wantEnd("14")
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// farHomes is another data centre that decides about the key "far".
type farHomes struct {
	home.Directory
	calls chan api.Op
	reply func(api.Op) (api.ReserveReply, error)
}

func (farHomes) Home(_, key string) (string, bool) { return "there", key == "far" }
func (farHomes) Take() error                       { return nil }
func (farHomes) Wait(_ string, want time.Duration) (time.Duration, func()) {
	return want, func() {}
}

func (f farHomes) Call(ctx context.Context, _ string, op api.Op, _ []byte, wait time.Duration) (api.ReserveReply, error) {
	f.calls <- op
	if wait > 0 {
		<-ctx.Done()
		return api.ReserveReply{}, ctx.Err()
	}
	return f.reply(op)
}

// Calls that another data centre decides are made there, without holding up others.
func TestStreamCallsHomes(t *testing.T) {
	far := farHomes{calls: make(chan api.Op, 8), reply: func(op api.Op) (api.ReserveReply, error) {
		switch op {
		case api.OpReserve, api.OpRenew:
			return api.ReserveReply{State: api.StateReserved, ExpiresIn: time.Minute}, nil
		case api.OpRelease:
			return api.ReserveReply{State: api.StateReleased}, nil
		}
		return api.ReserveReply{}, &httpd.Refusal{P: api.Problem{Status: 503, Code: api.CodeUnavailable}}
	}}
	s := newSite(t, siteOptions{ledger: ledger.Options{Origin: "here"}, reach: home.Reach{Homes: far}})
	g := s.gate(httpdtest.HTTP2(t))
	global := func(token string, wait time.Duration) []byte {
		return (&api.ReserveRequest{Key: "far", Token: token, Wait: wait, Durability: api.DurabilityGlobal}).AppendRaw(nil)
	}
	g.send(g.call(api.OpReserve, global("a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(g.call(api.OpReserve, global("b", 30*time.Second)))
	for op := range far.calls {
		if len(far.calls) == 0 && op == api.OpReserve && s.held() == 1 {
			break
		}
	}
	g.send(g.call(api.OpReserve, reserveOf("near", "a", 0)))
	g.wantReply(3, 201, api.StateReserved)
	g.send(g.call(api.OpRelease, (&api.ReleaseRequest{Key: "far", Token: "b", Durability: api.DurabilityGlobal}).AppendRaw(nil)))
	g.wantReply(2, 202, api.StatePending)
	g.wantReply(4, 200, api.StateReleased)
}

func (s *site) held() int {
	held := 0
	s.Eventually("a call is held", func() bool {
		_, h := s.load()
		held = int(h)
		return held > 0
	})
	return held
}
