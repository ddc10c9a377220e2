package objecttest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Gate is a store that can be out of reach for one of its clients.
type Gate struct {
	object.Store
	closed atomic.Bool
}

// Close puts the store out of reach, until Open.
func (g *Gate) Close() { g.closed.Store(true) }

// Open ends that.
func (g *Gate) Open() { g.closed.Store(false) }

var errClosed = errors.New("objecttest: the store is out of reach")

func (g *Gate) err() error {
	if g.closed.Load() {
		return errClosed
	}
	return nil
}

func (g *Gate) Create(ctx context.Context, name string, body []byte) (object.Version, error) {
	if err := g.err(); err != nil {
		return "", err
	}
	return g.Store.Create(ctx, name, body)
}

func (g *Gate) Replace(ctx context.Context, name string, body []byte, old object.Version) (object.Version, error) {
	if err := g.err(); err != nil {
		return "", err
	}
	return g.Store.Replace(ctx, name, body, old)
}

func (g *Gate) Get(ctx context.Context, name string) ([]byte, object.Version, error) {
	if err := g.err(); err != nil {
		return nil, "", err
	}
	return g.Store.Get(ctx, name)
}

func (g *Gate) List(ctx context.Context, prefix, after string) ([]object.Info, error) {
	if err := g.err(); err != nil {
		return nil, err
	}
	return g.Store.List(ctx, prefix, after)
}

func (g *Gate) Delete(ctx context.Context, name string) error {
	if err := g.err(); err != nil {
		return err
	}
	return g.Store.Delete(ctx, name)
}
