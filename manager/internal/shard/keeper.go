package shard

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Keeper holds a ledger's identity while its manager runs. It is safe for concurrent use.
type Keeper struct {
	store   store.Store
	shared  bool
	current atomic.Pointer[stored]

	past    Past
	run     uint64        // id of the present run
	meeting chan struct{} // one caller at a time learns of a mark that is not settled: it has the element
}

// stored is the record in encoded and in decoded form.
type stored struct {
	raw string
	Identity
}

// Open reads the record, reconciles it with the manager's settings, and stores what that changes.
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
		if change.After, refusal = reconcile(before, w, tx.Now()); refusal != nil {
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
	k := &Keeper{store: st, shared: st.Capabilities().Shared, meeting: make(chan struct{}, 1)}
	k.current.Store(&stored{string(change.After.encode()), change.After})
	return k, change, nil
}

// Known reports whether a store has the record of a ledger. The error is a *store.UnreadableError or the store's.
func Known(ctx context.Context, st store.Store) (known bool, err error) {
	err = st.View(ctx, func(tx store.Tx) error {
		found, err := read(tx)
		known = found != nil
		return err
	})
	return known, err
}

// read returns nil when there is no record.
func read(tx store.Tx) (*stored, error) {
	return store.Read(tx, Collection, recordKey, func(key string, value []byte) (*stored, error) {
		i, err := Read(key, value)
		if err != nil {
			return nil, err
		}
		return &stored{string(value), i}, nil
	})
}

// Identity returns the ledger's identity; on a shared engine it may be some seconds old. Its list must not be modified.
func (k *Keeper) Identity() Identity { return k.current.Load().Identity }

// Name is the shard's name, "" for a ledger that answers for any shard.
func (k *Keeper) Name() string { return k.current.Load().Name }

// Record identifies the record that Owner reads in its transaction; ok is false if it reads none.
func (k *Keeper) Record() (id store.ID, ok bool) {
	return store.ID{Collection: Collection, Key: recordKey}, k.shared && k.Name() != ""
}

// Owner returns the shard to which the list in force gives the key, and whether that is another shard. Without a list
// it never is. tx must be the transaction that is about to insert the key.
func (k *Keeper) Owner(tx store.Tx, scope, key string) (name string, other bool, err error) {
	now := k.current.Load()
	if k.shared && now.Name != "" {
		if now, err = k.refreshIn(tx, now); err != nil {
			return "", false, err
		}
	}
	if len(now.Shards) == 0 {
		return now.Name, false, nil
	}
	name = now.Shards[api.Owner(now.Shards, scope, key)]
	return name, name != now.Name, nil
}

// refreshIn returns the record as the transaction sees it. known is the record as last seen.
func (k *Keeper) refreshIn(tx store.Tx, known *stored) (*stored, error) {
	value, err := tx.Get(Collection, recordKey)
	if err != nil {
		return nil, err // even if it is gone: nobody deletes it
	}
	if string(value) == known.raw {
		return known, nil
	}
	return read(tx)
}

// refreshEvery is how often a manager checks for changes by other managers.
const refreshEvery = 2 * time.Second

// Run checks until ctx ends whether other managers of the store changed the record, and calls changed if they did. On
// an engine with a single manager it returns immediately.
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

// refresh ignores errors of the store; calls that need the store report them.
func (k *Keeper) refresh(ctx context.Context) (c Change, changed bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var found *stored
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
