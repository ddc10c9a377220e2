package ledger

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Options configure a Ledger; the zero value of a field means its default.
type Options struct {
	// PendingTTL, CommittedTTL and RejectedTTL are how long entries are kept if a request does not say; up to
	// api.MaxTTL. Defaults 60 s, 300 s, 60 s.
	PendingTTL, CommittedTTL, RejectedTTL time.Duration
	// UnknownTTL is how long a key whose reservation ran out without an outcome is remembered as UNKNOWN if the
	// reservation does not say; up to api.MaxTTL. With api.NoUnknown such a key is free. Default CommittedTTL.
	UnknownTTL time.Duration
	// MaxEntries bounds the window, 1 to a billion. By default it is as many entries of TypicalEntryBytes as fit into
	// MaxBytes.
	MaxEntries int
	// MaxBytes bounds the records on an engine that tells sizes, in its memory or on its disk, plus EntryOverhead bytes for
	// each. Default 512 MiB.
	MaxBytes int64
	// ScopeShare is the largest part of the window that one scope may hold while all others hold nothing (see the
	// package documentation). 1 or negative: no limit. Default 0.75.
	ScopeShare float64
	// MaxResultBytes bounds one encoded result, up to 4 MiB. Default 1 MiB.
	MaxResultBytes int
	// CleanupInterval is how often the sweeper looks for expired entries.
	// Default 10 s.
	CleanupInterval time.Duration
	// MaxWait bounds how long a reserve waits. Negative: no reserve waits. Default 30 s.
	MaxWait time.Duration
	// MaxWaiters bounds the calls that wait at the same time. Default 10000.
	MaxWaiters int
	// PollInterval is how often a waiter checks without a wake-up, in case one was lost. Default 1 s.
	PollInterval time.Duration
	// Origin, when set, is the name of this ledger among those of several data centres. Outcomes then get a place in the
	// change feed (see the package documentation).
	Origin string
	// Clashed, when set, is called with conflicts between outcomes of two origins, once they are durable.
	Clashed func(Clash)
	// Owners says which keys belong to other ledgers; nil: none.
	Owners Owners
	// Quarantine, when set, refuses reserves of keys without an entry with ErrQuarantine. It is for a ledger that was
	// restored to an older point, because the work of keys that it has forgotten may have run. It also holds for keys
	// that another ledger owns.
	Quarantine Quarantine
	// Longest, when set, learns the longest time for which a request wants its entry to be remembered.
	Longest *Longest
	// Unreadable is notified of records that cannot be read; default a tracker of its own.
	Unreadable *unread.Tracker
	// Observer, when set, learns what happens to keys.
	Observer Observer
	// OpTimeout bounds each transaction that the ledger runs by itself, after a wait and in the sweeper. Default 10 s.
	OpTimeout time.Duration
}

// Longest is the longest time for which an entry was to be remembered. The zero value is 0. Its methods are safe for
// concurrent use.
type Longest struct{ ms atomic.Int64 }

// Get returns the time so far, in whole seconds.
func (l *Longest) Get() time.Duration { return time.Duration(l.ms.Load()) * time.Millisecond }

func (l *Longest) raise(ms int64) {
	for old := l.ms.Load(); ms > old && !l.ms.CompareAndSwap(old, ms); old = l.ms.Load() {
	}
}

// Owners divides keys among ledgers.
type Owners interface {
	// Owner returns the name of the ledger that owns a key, and whether that is another ledger. It is called in the
	// transaction that is about to insert the key, and may read in it.
	Owner(tx store.Tx, scope, key string) (name string, other bool, err error)
	// Record identifies the record that Owner reads, if any.
	Record() (id store.ID, ok bool)
}

// Observer learns what happens to keys. No decision of the ledger depends on it. Its methods must not block, and may be called
// at the same time.
type Observer interface {
	// Note is called after a call or change. The context is the call's.
	Note(ctx context.Context, e Event)
	// Waits is called when a reserve begins to wait for an entry (see SplitEntryKey).
	Waits(key string)
}

// Quarantine says for how long a ledger refuses keys that it does not know.
type Quarantine interface {
	// Left returns how much longer it does; 0: it does not. It is called in the transaction that is about to insert a key
	// or to say that there is none, and may read in it.
	Left(tx store.Tx) (time.Duration, error)
	// Record identifies the record that Left reads, if any.
	Record() (id store.ID, ok bool)
}

// MaxResultLimit bounds Options.MaxResultBytes, so that a record always fits into a store's value.
const MaxResultLimit = 4 << 20

const (
	// TypicalEntryBytes is how much of MaxBytes an entry with a short answer uses.
	TypicalEntryBytes = 512
	// EntryOverhead is how much room an entry uses besides its key and value: index entries, and in memory the table of
	// records and the rounding of allocations. It is measured with the engine memory; on disk it is less.
	EntryOverhead = 200

	maxEntriesLimit = 1_000_000_000
)

// KeysPerSecond is how many new keys per second the window holds if each stays for CommittedTTL and, where bytes are
// bounded, uses TypicalEntryBytes. scope is the rate of a single scope. Defaults must have been filled in.
func (o Options) KeysPerSecond(sizes bool) (all, scope float64) {
	n := float64(o.MaxEntries)
	if sizes {
		n = min(n, float64(o.MaxBytes/TypicalEntryBytes))
	}
	all = n / o.CommittedTTL.Seconds()
	if o.ScopeShare <= 0 {
		return all, all
	}
	return all, all * min(o.ScopeShare, 1)
}

// LongestTTL is the longest time for which an entry is remembered when its request does
// not say. Defaults must have been filled in.
func (o Options) LongestTTL() time.Duration {
	unknown := o.UnknownTTL
	if unknown == api.NoUnknown {
		unknown = 0
	}
	return max(o.CommittedTTL, o.RejectedTTL, o.PendingTTL+unknown)
}

// WithDefaults returns a copy with defaults filled in.
func (o Options) WithDefaults() Options {
	o.PendingTTL = cmp.Or(o.PendingTTL, 60*time.Second)
	o.CommittedTTL = cmp.Or(o.CommittedTTL, 300*time.Second)
	o.RejectedTTL = cmp.Or(o.RejectedTTL, 60*time.Second)
	o.UnknownTTL = cmp.Or(o.UnknownTTL, o.CommittedTTL)
	o.MaxBytes = cmp.Or(o.MaxBytes, 512<<20)
	o.MaxEntries = cmp.Or(o.MaxEntries, int(min(max(o.MaxBytes/TypicalEntryBytes, 1), maxEntriesLimit)))
	o.ScopeShare = cmp.Or(o.ScopeShare, 0.75)
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, 1<<20)
	o.CleanupInterval = cmp.Or(o.CleanupInterval, 10*time.Second)
	o.MaxWait = cmp.Or(o.MaxWait, 30*time.Second)
	o.MaxWaiters = cmp.Or(o.MaxWaiters, 10_000)
	o.PollInterval = cmp.Or(o.PollInterval, time.Second)
	o.OpTimeout = cmp.Or(o.OpTimeout, 10*time.Second)
	if o.Unreadable == nil {
		o.Unreadable = unread.New()
	}
	return o
}

// Validate checks all values; defaults must have been filled in.
func (o Options) Validate() error {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"PendingTTL", o.PendingTTL}, {"CommittedTTL", o.CommittedTTL}, {"RejectedTTL", o.RejectedTTL}} {
		if d.v < time.Millisecond || d.v > api.MaxTTL {
			return fmt.Errorf("ledger: %s %v: must be 1ms to %v", d.name, d.v, api.MaxTTL)
		}
	}
	switch {
	case o.UnknownTTL != api.NoUnknown && (o.UnknownTTL < time.Millisecond || o.UnknownTTL > api.MaxTTL):
		return fmt.Errorf("ledger: UnknownTTL %v: must be 1ms to %v, or api.NoUnknown", o.UnknownTTL, api.MaxTTL)
	case o.MaxEntries < 1 || o.MaxEntries > maxEntriesLimit:
		return fmt.Errorf("ledger: MaxEntries %d: must be 1 to %d", o.MaxEntries, maxEntriesLimit)
	case o.MaxBytes < 1:
		return fmt.Errorf("ledger: MaxBytes %d: must be at least 1", o.MaxBytes)
	case o.ScopeShare > 1 || o.ScopeShare != o.ScopeShare:
		return fmt.Errorf("ledger: ScopeShare %v: must be at most 1", o.ScopeShare)
	case o.MaxResultBytes < 1 || o.MaxResultBytes > MaxResultLimit:
		return fmt.Errorf("ledger: MaxResultBytes %d: must be 1 to %d", o.MaxResultBytes, MaxResultLimit)
	case o.CleanupInterval < time.Millisecond:
		return fmt.Errorf("ledger: CleanupInterval %v: must be at least 1ms", o.CleanupInterval)
	case o.MaxWaiters < 1:
		return fmt.Errorf("ledger: MaxWaiters %d: must be at least 1", o.MaxWaiters)
	case o.PollInterval < time.Millisecond:
		return fmt.Errorf("ledger: PollInterval %v: must be at least 1ms", o.PollInterval)
	case o.OpTimeout < time.Millisecond:
		return fmt.Errorf("ledger: OpTimeout %v: must be at least 1ms", o.OpTimeout)
	}
	return nil
}

// The largest record fits into one value of the store.
const _ = uint(store.MaxValueBytes - MaxResultLimit - recordOverhead - api.MaxTokenBytes - api.MaxFingerprintBytes - maxRefBytes)
