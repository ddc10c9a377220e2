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
type Lengths struct{ m sync.Map } // of *length, by counted

type counted struct {
	c     store.Collection
	index string
}

type length struct {
	turn  chan struct{} // holds an element while somebody counts or looks at what follows
	n     int
	until time.Time
}

// Len implements store.Store with count. The answer may be up to lenFresh counts old and never more than three seconds, so
// small collections are counted almost exactly. The error is that of ctx, of store.CheckLen or of count.
func (l *Lengths) Len(ctx context.Context, c store.Collection, index string, count func() (int, error)) (int, error) {
	if err := store.CheckLen(c, index); err != nil {
		return 0, err
	}
	v, _ := l.m.LoadOrStore(counted{c, index}, &length{turn: make(chan struct{}, 1)})
	have := v.(*length)
	// Callers take turns, so that concurrent ones share one count.
	select {
	case have.turn <- struct{}{}:
		defer func() { <-have.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if time.Now().Before(have.until) {
		return have.n, nil
	}
	asked := time.Now()
	n, err := count()
	if err != nil {
		return 0, err
	}
	have.n, have.until = n, asked.Add(min(lenFresh*time.Since(asked), lenMost))
	return n, nil
}
