package ledger

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/store"
	"github.com/oncegate/oncegate/manager/store/unread"
)

// Options configure a Ledger; the zero value of a field means its default.
type Options struct {
	// PendingTTL, CommittedTTL and RejectedTTL are how long entries are kept
	// when a request does not say; up to api.MaxTTL. Defaults 60 s, 300 s, 60 s.
	PendingTTL, CommittedTTL, RejectedTTL time.Duration
	// UnknownTTL is how long a key whose reservation ran out without an outcome is
	// remembered as UNKNOWN when the reservation does not say; up to api.MaxTTL.
	// api.NoUnknown: the key is free. Default CommittedTTL.
	UnknownTTL time.Duration
	// MaxEntries bounds the window, 1 to 100 million. Default 100000.
	MaxEntries int
	// MaxBytes bounds the records on an engine inside this process. Final
	// entries make room; pending ones stay. Default 1 GiB.
	MaxBytes int64
	// MaxResultBytes bounds one encoded result, up to 4 MiB. Default 1 MiB.
	MaxResultBytes int
	// CleanupInterval is how often the sweeper looks for expired entries.
	// Default 10 s.
	CleanupInterval time.Duration
	// MaxWait bounds how long a reserve is held; negative means never to hold
	// one. Default 30 s.
	MaxWait time.Duration
	// MaxWaiters bounds the calls held at once. Default 10000.
	MaxWaiters int
	// PollInterval is how often a waiter looks by itself, in case a wake-up
	// was lost. Default 1 s.
	PollInterval time.Duration
	// Unreadable is told of the records that cannot be read; default one of its own.
	Unreadable *unread.Tracker
	// OpTimeout bounds each transaction that the ledger runs on its own
	// account, after a wait and in the sweeper. Default 10 s.
	OpTimeout time.Duration
}

// MaxResultLimit bounds Options.MaxResultBytes, so that a record always fits
// into a store's value and an eviction into its transaction.
const MaxResultLimit = 4 << 20

// WithDefaults returns a copy with defaults filled in.
func (o Options) WithDefaults() Options {
	def(&o.PendingTTL, 60*time.Second)
	def(&o.CommittedTTL, 300*time.Second)
	def(&o.RejectedTTL, 60*time.Second)
	def(&o.UnknownTTL, o.CommittedTTL)
	def(&o.MaxEntries, 100_000)
	def(&o.MaxBytes, 1<<30)
	def(&o.MaxResultBytes, 1<<20)
	def(&o.CleanupInterval, 10*time.Second)
	def(&o.MaxWait, 30*time.Second)
	def(&o.MaxWaiters, 10_000)
	def(&o.PollInterval, time.Second)
	def(&o.OpTimeout, 10*time.Second)
	if o.Unreadable == nil {
		o.Unreadable = unread.New()
	}
	return o
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
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
	case o.MaxEntries < 1 || o.MaxEntries > 100_000_000:
		return fmt.Errorf("ledger: MaxEntries %d: must be 1 to 100000000", o.MaxEntries)
	case o.MaxBytes < 1:
		return fmt.Errorf("ledger: MaxBytes %d: must be at least 1", o.MaxBytes)
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
