package shard

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Keeper knows a ledger's identity while its manager runs. It is safe for concurrent use.
type Keeper struct {
	store   store.Store
	shared  bool
	current atomic.Pointer[kept]
}

// kept is the record in both forms.
type kept struct {
	raw string
	Identity
}

// Open reads the record, settles it with what the manager is started with, and writes what that changes.
//
// Errors: *Error, a *store.UnreadableError for a record that cannot be read, the store's.
func Open(ctx context.Context, st store.Store, w Want) (*Keeper, Change, error) {
	var change Change
	var refusal error
	err := st.Update(ctx, func(tx store.Tx) error {
		change, refusal = Change{}, nil
		found, err := read(tx)
		if err != nil {
			return err
		}
		var before *Identity
		if found != nil {
			before, change.Before = &found.Identity, found.Identity
		}
		if change.After, refusal = settle(before, w); refusal != nil {
			return nil
		}
		if raw := change.After.encode(); found == nil || found.raw != string(raw) {
			return tx.Put(Collection, recordKey, raw)
		}
		return nil
	})
	if err == nil {
		err = refusal
	}
	if err != nil {
		return nil, Change{}, err
	}
	k := &Keeper{store: st, shared: st.Capabilities().Shared}
	k.current.Store(&kept{string(change.After.encode()), change.After})
	return k, change, nil
}

// read returns nil when there is no record.
func read(tx store.Tx) (*kept, error) {
	value, err := tx.Get(Collection, recordKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i, err := Read(recordKey, value)
	if err != nil {
		return nil, err
	}
	return &kept{string(value), i}, nil
}

// Identity returns what the ledger is, on a shared engine as of some seconds ago. Its list must not be
// modified.
func (k *Keeper) Identity() Identity { return k.current.Load().Identity }

// Name is the shard's name, "" for a ledger that answers to any.
func (k *Keeper) Name() string { return k.current.Load().Name }

// Record is the record that Owner reads in its transaction; ok is false when it reads none.
func (k *Keeper) Record() (id store.ID, ok bool) {
	return store.ID{Collection: Collection, Key: recordKey}, k.shared && k.Name() != ""
}

// Owner returns the shard that the list in force gives the key to, and whether this is another one; there
// is no other one without a list. It belongs to the transaction that is about to insert the key.
func (k *Keeper) Owner(tx store.Tx, scope, key string) (name string, other bool, err error) {
	now := k.current.Load()
	if k.shared && now.Name != "" {
		if now, err = k.in(tx, now); err != nil {
			return "", false, err
		}
	}
	if len(now.Shards) == 0 {
		return now.Name, false, nil
	}
	name = now.Shards[api.Owner(now.Shards, scope, key)]
	return name, name != now.Name, nil
}

// in returns the record as the transaction sees it; known is as it was.
func (k *Keeper) in(tx store.Tx, known *kept) (*kept, error) {
	value, err := tx.Get(Collection, recordKey)
	if err != nil {
		return nil, err // not even when it is gone: nobody deletes it
	}
	if string(value) == known.raw {
		return known, nil
	}
	return read(tx)
}

// refreshEvery is how often a manager looks for what another one changed.
const refreshEvery = 2 * time.Second

// Run looks until ctx ends what other managers of the store made of the record, and tells changed. On an
// engine of this manager's own it returns at once.
func (k *Keeper) Run(ctx context.Context, changed func(Change)) {
	if !k.shared {
		return
	}
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if c, ok := k.refresh(ctx); ok {
			changed(c)
		}
	}
}

// refresh leaves errors of the store to the calls that need the store.
func (k *Keeper) refresh(ctx context.Context) (c Change, changed bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var found *kept
	err := k.store.View(ctx, func(tx store.Tx) (err error) {
		found, err = read(tx)
		return err
	})
	known := k.current.Load()
	if err != nil || found == nil || found.raw == known.raw {
		return Change{}, false
	}
	k.current.Store(found)
	return Change{known.Identity, found.Identity}, true
}

// Lists reports whether the name is in the list in force.
func (i *Identity) Lists(name string) bool { return slices.Contains(i.Shards, name) }
