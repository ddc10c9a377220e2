// Package remote implements what engines on servers have in common besides package overlay.
package remote

import (
	"context"
	"errors"
	"fmt"
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
func Pause(ctx context.Context, limit time.Duration) error { return store.Wait(ctx, rand.N(limit)) }

// Retry runs try until it returns nil or an error that is no conflict, at most runs times. After a conflict it waits for a
// random time: below first, then below twice that, and so on up to most.
func Retry(ctx context.Context, runs int, first, most time.Duration, conflict func(error) bool, try func(run int) error) error {
	for run := range runs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := try(run); err == nil || !conflict(err) {
			return err
		}
		if err := Pause(ctx, min(first<<min(run, 16), most)); err != nil {
			return err
		}
	}
	return store.ErrConflict
}

// Unreached adds store.ErrUnreached to an error of what sent no writes, if it is store.ErrUnavailable.
func Unreached(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("%w; %w", err, store.ErrUnreached)
	}
	return err
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
	if err := store.CheckLen(c, index); err != nil {
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
