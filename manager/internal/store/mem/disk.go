package mem

import (
	"context"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/state"
)

// disk is the state of a Store. It is an interface because of the packages that import this one: the compiler would
// compile the database's 900 generic functions again for each package that can reach its types by the fields of a Store.
type disk interface {
	Counts() map[store.Collection]state.Counts
	Sequence() uint64
	Bytes() int64
	MayHave(c store.Collection, key string) bool
	Get(c store.Collection, key string) (state.Record, error)
	OpenIndex(c store.Collection, index string) (diskIndex, error)
	Snapshot(ctx context.Context) (diskSnapshot, error)
	Write(ctx context.Context, b state.Batch) error
	Clear(ctx context.Context) error
	Compact(ctx context.Context) error
	Failed() <-chan struct{}
	Err() error
	Close() error
}

type diskIndex interface {
	Seek(position []byte) bool
	Next() bool
	Position() []byte
	Hit() store.Hit
	Err() error
	Close()
}

type diskSnapshot interface {
	Sequence() uint64
	Next() (c store.Collection, key string, r state.Record, ok bool, err error)
	Close() error
}

type openState struct{ *state.State }

func openDisk(dir, log string, o state.Options) (disk, error) {
	s, err := state.Open(dir, log, o)
	if err != nil {
		return nil, err
	}
	return openState{s}, nil
}

func (s openState) OpenIndex(c store.Collection, index string) (diskIndex, error) {
	return s.State.OpenIndex(c, index)
}

func (s openState) Snapshot(ctx context.Context) (diskSnapshot, error) { return s.State.Snapshot(ctx) }
