// Package remote implements what engines on servers have in common besides package overlay.
package remote

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Lasting implements Failed and Err of store.Store for engines that never stop for good: while the server cannot be
// reached, calls fail with store.ErrUnavailable.
type Lasting struct{}

// Failed implements store.Store. The channel is nil, so it is never ready.
func (Lasting) Failed() <-chan struct{} { return nil }

// Err implements store.Store.
func (Lasting) Err() error { return nil }

// Pause waits for a random time below the limit, or until ctx ends. Then it returns the context's error.
func Pause(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(rand.N(limit))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	// lenFresh times the duration of a count is how long its result is reused, at most lenMost.
	lenFresh = 50
	lenMost  = 3 * time.Second
)

// Lengths caches counts, because a server counts by walking. The zero value is ready.
type Lengths struct {
	mu sync.Mutex
	m  map[counted]length
}

type counted struct {
	c     store.Collection
	index string
}

type length struct {
	n     int
	until time.Time
}

// Len implements store.Store with count. The answer may be up to lenFresh counts old and never more than three seconds, so
// small collections are counted almost exactly.
func (l *Lengths) Len(c store.Collection, index string, count func() (int, error)) (int, error) {
	if err := CheckLen(c, index); err != nil {
		return 0, err
	}
	// The lock is held while counting, so that concurrent callers share one count.
	l.mu.Lock()
	defer l.mu.Unlock()
	id := counted{c, index}
	if have, ok := l.m[id]; ok && time.Now().Before(have.until) {
		return have.n, nil
	}
	asked := time.Now()
	n, err := count()
	if err != nil {
		return 0, err
	}
	if l.m == nil {
		l.m = make(map[counted]length)
	}
	l.m[id] = length{n: n, until: asked.Add(min(lenFresh*time.Since(asked), lenMost))}
	return n, nil
}

// CheckLen checks the arguments of store.Store's Len.
func CheckLen(c store.Collection, index string) error {
	if err := store.CheckName(string(c)); err != nil || index == "" {
		return err
	}
	return store.CheckName(index)
}
