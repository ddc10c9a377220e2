package ship

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// retrying is a store that tries each call a few times, with a bound on each
// try. A write that is tried again may be refused because of its first try: put and swap handle that.
type retrying struct {
	object.Store
	tries   int
	timeout time.Duration  // of each try
	failed  *atomic.Uint64 // counts the tries that failed; may be nil
}

const retryPause = 50 * time.Millisecond

func attempt[T any](ctx context.Context, r *retrying, fn func(context.Context) (T, error)) (T, error) {
	for i := 1; ; i++ {
		one, cancel := context.WithTimeout(ctx, r.timeout)
		v, err := fn(one)
		cancel()
		if err == nil || isAnswer(err) {
			return v, err
		}
		if r.failed != nil && ctx.Err() == nil {
			r.failed.Add(1)
		}
		if i >= r.tries || ctx.Err() != nil {
			return v, err
		}
		pause := retryPause << i
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return v, err
		}
	}
}

// isAnswer reports whether an error is the store's answer, which another try would not change.
func isAnswer(err error) bool {
	return errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrExists) || errors.Is(err, object.ErrChanged) || errors.Is(err, object.ErrTooLarge)
}

func (r *retrying) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	return attempt(ctx, r, func(ctx context.Context) (object.Version, error) { return r.Store.Create(ctx, name, body) })
}

func (r *retrying) Replace(ctx context.Context, name string, body []byte, old object.Version) (object.Version, error) {
	return attempt(ctx, r, func(ctx context.Context) (object.Version, error) { return r.Store.Replace(ctx, name, body, old) })
}

func (r *retrying) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	type got struct {
		body    []byte
		version object.Version
	}
	g, err := attempt(ctx, r, func(ctx context.Context) (got, error) {
		b, v, err := r.Store.Get(ctx, name)
		return got{b, v}, err
	})
	return g.body, g.version, err
}

func (r *retrying) List(ctx context.Context, prefix, after string) ([]object.Info, error) {
	return attempt(ctx, r, func(ctx context.Context) ([]object.Info, error) { return r.Store.List(ctx, prefix, after) })
}

func (r *retrying) Delete(ctx context.Context, name string) error {
	_, err := attempt(ctx, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, r.Store.Delete(ctx, name) })
	return err
}
