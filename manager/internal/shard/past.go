package shard

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Past is what a Keeper needs to find out that its ledger forgot something, and to act on it.
type Past struct {
	// Position is how far the ledger is, see api.Mark; nil on an engine that does not tell.
	Position func() uint64
	// Run is a number that differs from run to run of the manager; 0: a random one.
	Run uint64
	// Longest is the longest time for which the ledger remembers a key.
	Longest func() time.Duration
	// Begin begins a quarantine of that length, for that reason. It is durable once Begin returns.
	Begin func(ctx context.Context, d time.Duration, why string) error
	// Restored names the quarantine that began last.
	Restored func() string
}

// Watch has the keeper act on the marks that callers remember. It must be called before Mark and Meet, which then know this
// run of the manager: the ledger's record has it once Watch returns. The error is the store's.
func (k *Keeper) Watch(ctx context.Context, p Past) error {
	k.past = p
	if p.Position == nil {
		return nil
	}
	began := p.Position()
	return k.change(ctx, func(i *Identity) {
		k.run = cmp.Or(p.Run, rand.Uint64()) % (1 << runBits)
		for slices.ContainsFunc(i.runs, func(r run) bool { return r.id == k.run }) {
			k.run = (k.run + 1) % (1 << runBits)
		}
		i.runs = append(slices.Clone(i.runs), run{k.run, began})
		i.runs = i.runs[max(0, len(i.runs)-maxRuns):]
	})
}

// change changes the ledger's record, if it has one.
func (k *Keeper) change(ctx context.Context, f func(*Identity)) error {
	var next *stored
	err := k.store.Update(ctx, func(tx store.Tx) error {
		next = nil
		now, err := read(tx)
		if err != nil || now == nil {
			return err
		}
		i := now.Identity
		f(&i)
		next = &stored{string(i.encode()), i}
		return tx.Put(Collection, recordKey, []byte(next.raw))
	})
	if err == nil && next != nil {
		k.current.Store(next)
	}
	return err
}

// runBits are the lowest bits of a mark's position. They are the id of a run of the manager. What a run made durable is not
// beyond the position at which the next run began. If a mark is, it is of a history that was lost, however far the ledger
// has come since.
const runBits = 20

// Mark is what callers are to remember of the ledger. What it says is durable.
func (k *Keeper) Mark() api.Mark {
	if k.past.Position == nil {
		return k.MarkAt(0)
	}
	return k.MarkAt(k.past.Position())
}

// MarkAt is the mark of the ledger at another position.
func (k *Keeper) MarkAt(position uint64) api.Mark {
	i := k.current.Load()
	m := api.Mark{ID: i.ID, Epoch: i.Epoch}
	if k.past.Position != nil {
		m.Position = position<<runBits | k.run
	}
	return m
}

// has reports whether the ledger has all that it had at the position of a mark.
func (k *Keeper) has(i *Identity, position uint64) bool {
	if k.past.Position == nil {
		return true
	}
	id, at := position%(1<<runBits), position>>runBits
	if id == k.run {
		return at <= k.past.Position()
	}
	// A run that is not listed came before all that are, or belongs to a lost history.
	next := 1 + slices.IndexFunc(i.runs, func(r run) bool { return r.id == id })
	return next < len(i.runs) && at <= i.runs[next].began
}

// OtherError says that a caller remembers another ledger, and that this one does not replace it: it has been here for
// longer than keys are remembered, so the other one may be alive.
type OtherError struct {
	// Mine and Theirs are ids of ledgers.
	Mine, Theirs string
	// Longest is for how long a ledger remembers a key at most. A caller that has not met the other one for longer has
	// nothing to lose with it.
	Longest time.Duration
}

func (e *OtherError) Error() string {
	return fmt.Sprintf("this is the ledger %s, and the caller last met the ledger %s", e.Mine, e.Theirs)
}

// settled reports whether a mark asks for nothing: the ledger knows all that its caller knows, or a quarantine covers
// what it does not.
func (k *Keeper) settled(i *Identity, m api.Mark) bool {
	if m.ID != i.ID {
		return slices.Contains(i.Replaces, m.ID)
	}
	return m.Epoch < i.Epoch || m.Epoch == i.Epoch && k.has(i, m.Position)
}

// Meet compares a mark that a caller remembers with the ledger. If the ledger is behind it, Meet begins a quarantine: a
// young ledger that meets the mark of another one has replaced it without its keys, and one that is behind a mark of its
// own was put back to an earlier state. from says who the caller is, for the reason.
//
// Errors: *OtherError, those of Past.Begin, the store's, the context's. The call must then be refused.
func (k *Keeper) Meet(ctx context.Context, m api.Mark, from string) error {
	if k.settled(&k.current.Load().Identity, m) {
		return nil
	}
	select {
	case k.meeting <- struct{}{}:
		defer func() { <-k.meeting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var why string
	var d time.Duration
	var other bool
	look := func(tx store.Tx) error {
		why, d, other = "", 0, false
		now, err := read(tx)
		if err != nil || now == nil {
			return err
		}
		k.current.Store(now) // another manager of the store may have met it
		if k.settled(&now.Identity, m) {
			return nil
		}
		d = k.past.Longest()
		if m.ID == now.ID {
			why = fmt.Sprintf("the ledger was put back to an earlier state: %s remembers it at %s, and it is at %s", from, m, k.Mark())
			return nil
		}
		age := time.Duration(tx.Now().UnixMilli()-now.Created) * time.Millisecond
		other = age >= d
		why = fmt.Sprintf("the ledger is new, and %s remembers another one in its place: %s", from, m)
		return nil
	}
	if err := k.store.View(ctx, look); err != nil || why == "" {
		return err
	}
	if other {
		return &OtherError{Mine: k.Identity().ID, Theirs: m.ID, Longest: d}
	}
	if err := k.past.Begin(ctx, d, why); err != nil {
		return err
	}
	// The quarantine is durable first: a crash here begins it again.
	return k.settle(ctx, m)
}

// WentBack begins a quarantine, by begin, because from has records of the ledger up to a position that the ledger lacks,
// however far it has come since. The errors are those of begin, the store's, and the context's.
func (k *Keeper) WentBack(ctx context.Context, position uint64, from string, begin func(ctx context.Context, why string) error) error {
	select {
	case k.meeting <- struct{}{}:
		defer func() { <-k.meeting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m := k.MarkAt(position)
	if err := begin(ctx, fmt.Sprintf("the ledger was put back to an earlier state: %s remembers it with other records up to %s, and it is at %s", from, m, k.Mark())); err != nil {
		return err
	}
	return k.settle(ctx, m)
}

// settle notes that a quarantine covers what a caller with that mark knows.
func (k *Keeper) settle(ctx context.Context, m api.Mark) error {
	return k.change(ctx, func(i *Identity) {
		if m.ID == i.ID {
			i.Epoch = max(i.Epoch, m.Epoch) + 1
		} else if !slices.Contains(i.Replaces, m.ID) {
			i.Replaces = append(slices.Clone(i.Replaces), m.ID)
			i.Replaces = i.Replaces[max(0, len(i.Replaces)-maxReplaces):]
		}
		i.Restored = k.past.Restored()
	})
}
