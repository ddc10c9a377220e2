package simulated

import (
	"context"
	"hash/fnv"
	"io"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// staggered is an engine whose wake-ups come a little later, each topic's after a time of its own.
//
// One commit of a batch can wake callers of several keys. At the same instant of virtual time, the Go
// scheduler would decide which of them commits first, and a simulation could not be repeated.
type staggered struct{ *mem.Store }

// maxStagger is the longest delay of a wake-up.
const maxStagger = time.Millisecond

// Watch implements store.Store.
func (s staggered) Watch(topic string) store.Watcher {
	w := &lateWatcher{Watcher: s.Store.Watch(topic), c: make(chan struct{}, 1), stop: make(chan struct{})}
	w.work.Go(func() { w.relay(stagger(topic)) })
	return w
}

// stagger is a delay of a text's own.
func stagger(text string) time.Duration {
	h := fnv.New64a()
	_, _ = io.WriteString(h, text)
	return time.Duration(h.Sum64() % uint64(maxStagger))
}

// nextInstant waits for the next instant of virtual time, at which all other goroutines have done what they had to do. Without
// it, the Go scheduler would decide which of the records of one instant share a sync.
func nextInstant() { time.Sleep(time.Nanosecond) }

// patientSelf is an own ledger that lets the goroutines of two peers continue one after the other, when one of them waited for
// the other to begin a quarantine.
type patientSelf struct{ peers.Own }

// Meet implements peers.Self.
func (s patientSelf) Meet(ctx context.Context, m api.Mark, from string) error {
	err := s.Own.Meet(ctx, m, from)
	time.Sleep(stagger(from))
	return err
}

// lateWatcher passes on the wake-ups of another watcher.
type lateWatcher struct {
	store.Watcher
	c    chan struct{}
	stop chan struct{}
	work sync.WaitGroup
}

func (w *lateWatcher) C() <-chan struct{} { return w.c }

func (w *lateWatcher) relay(delay time.Duration) {
	for {
		select {
		case <-w.Watcher.C():
		case <-w.stop:
			return
		}
		select {
		case <-time.After(delay):
		case <-w.stop:
			return
		}
		select {
		case w.c <- struct{}{}:
		default:
		}
	}
}

// Stop returns when the relay has ended.
func (w *lateWatcher) Stop() {
	w.Watcher.Stop()
	close(w.stop)
	w.work.Wait()
}
