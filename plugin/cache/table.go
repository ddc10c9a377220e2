package cache

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Hash names an entry: 128 bits of a digest of its scope and key.
type Hash [16]byte

// Token names an attempt: the 128 random bits that also fence it in the ledger.
type Token [16]byte

// Fingerprint is 128 bits of the request's digest; all zero: not compared.
type Fingerprint [16]byte

// Limits.
const (
	// Ways is the number of entries in a bucket.
	Ways = 8
	// MaxWaiters bounds the waiting queues of one bucket, over all its entries.
	MaxWaiters = 64
	// maxTries bounds the compare-and-set loops. Each failed try means that
	// another worker succeeded.
	maxTries = 16
)

// Options size a Table. All tables of one prefix should have the same, else
// they share less (never wrongly).
type Options struct {
	// Prefix starts all shared-data keys; default "oncegate".
	Prefix string
	// MaxEntries bounds the entries; rounded down to a multiple of Ways, at
	// least Ways. Default 100000.
	MaxEntries int
	// MaxBytes bounds the bytes of all values: metadata and answers. Default
	// 64 MiB. When metadata would take more than half, there are fewer entries.
	MaxBytes int
	// MaxResultBytes is the largest answer worth room of its own; larger ones
	// are never kept. Default 576 KiB.
	MaxResultBytes int
	// TouchInterval is how stale an entry's last use may get before a lookup
	// writes it back: 0 means one second, negative at every lookup.
	TouchInterval time.Duration
}

// Entry is a copy of what the table knows about an entry.
type Entry struct {
	Hash        Hash
	State       api.State // pending, committed or rejected
	Token       Token
	Fingerprint Fingerprint
	// Owner is the queue of the VM that reserved the entry.
	Owner uint32
	// Sole: there is no ledger behind this entry.
	Sole bool
	// Expires is when the entry ends, in nanoseconds since the epoch.
	Expires int64
	// HasBody: the answer is (or was) kept; Table.Body fetches it.
	HasBody bool

	loc location
}

// Matches tells whether f may be a retry of the request that made the entry.
func (e *Entry) Matches(f Fingerprint) bool {
	return e.Fingerprint == Fingerprint{} || f == Fingerprint{} || e.Fingerprint == f
}

// Result is what an operation did.
type Result uint8

// The results.
const (
	// Created: Reserve made the entry, or it was already this attempt's.
	Created Result = iota
	// Existing: Reserve found another attempt's entry.
	Existing
	// Full: all ways hold pending entries that must not be evicted.
	Full
	// Contended: the bounded number of tries was used up or the host failed;
	// nothing is known. The ledger decides.
	Contended
	// Done: the operation took effect, now or at an earlier call.
	Done
	// NotOwner: the entry is another attempt's; nothing changed.
	NotOwner
	// Gone: there is no such entry.
	Gone
	// Waiting: the queue is among the waiters.
	Waiting
	// Ended: the entry is not pending (any more); look again.
	Ended
	// TooManyWaiters: the bucket's list is full; only the tick will tell.
	TooManyWaiters
)

// Reservation is the argument of Reserve.
type Reservation struct {
	Hash        Hash
	Token       Token
	Fingerprint Fingerprint
	// Owner is this VM's queue.
	Owner uint32
	// Expires is when the reservation ends unless it is finished, in
	// nanoseconds since the epoch.
	Expires int64
	// Sole: no ledger stands behind the entry, so it must not be evicted while pending.
	Sole bool
}

// Outcome is the argument of Finish.
type Outcome struct {
	Hash        Hash
	Token       Token
	Fingerprint Fingerprint
	// State is committed or rejected.
	State api.State
	// Expires is when the answer is forgotten, in nanoseconds since the epoch.
	Expires int64
	// Sole as in Reservation.
	Sole bool
	// Raw is the answer in the raw form of api.Result; it is stored as is. Nil: the
	// answer is not kept.
	Raw []byte
}

// Stats are this VM's counts, and the totals of the last whole sweep by any VM.
type Stats struct {
	Entries, Bytes int64  // at the last whole sweep: live entries, bytes of their answers
	Evictions      uint64 // live entries that made room for others
	Retries        uint64 // compare-and-set attempts that failed
	Contended      uint64 // operations given up
	Foreign        uint64 // records that were not ours or not readable
}

// Table is one VM's view of the cache. It is not safe for concurrent use: a VM
// runs one callback at a time. Slices that its methods return stay valid
// until the next call, except answers, which belong to the caller.
type Table struct{ table }

// New returns the table. Nothing is read or written before the first operation.
func New(sd SharedData, sem Semantics, o Options) *Table {
	t := new(Table)
	t.init(sd, sem, o)
	return t
}

// Lookup copies a live entry to e. It counts as a use. False: nothing is known.
func (t *Table) Lookup(h *Hash, now int64, e *Entry) bool { return t.lookup(h, now, e) }

// Body returns the answer of a terminal entry, in the raw form, byte for byte
// as it was given to Finish. False: it was evicted or too large to keep, and
// the entry says only that the request is over: ask the ledger, or where
// there is none answer that the recording is lost.
func (t *Table) Body(e *Entry) ([]byte, bool) { return t.body(e) }

// Reserve makes a pending entry: Created, Existing (a copy in e), Full or Contended.
// wake are the waiters of a pending entry that had to make room: they shall look again.
func (t *Table) Reserve(r *Reservation, now int64, e *Entry) (res Result, wake []uint32) {
	return t.reserve(r, now, e)
}

// AddWaiter adds a VM's queue to a pending entry: Waiting, Ended, TooManyWaiters or Contended.
// Only Ended means that nobody will wake the queue though the entry is over.
func (t *Table) AddWaiter(h *Hash, queue uint32, now int64) Result {
	return t.addWaiter(h, queue, now)
}

// Finish records the outcome and returns the waiters to wake. It is also how
// an outcome learned from the ledger is filled in: without an entry one is
// made. Done, NotOwner (another attempt's live entry stays as it is), Full or Contended.
func (t *Table) Finish(o *Outcome, now int64) (res Result, wake []uint32) { return t.finish(o, now) }

// Release removes the attempt's pending entry and returns the waiters to wake:
// Done, NotOwner, Gone or Contended.
func (t *Table) Release(h *Hash, token *Token, now int64) (res Result, wake []uint32) {
	return t.release(h, token, now)
}

// Sweep looks at up to n buckets from where the last sweep of any VM ended,
// drops what has expired and frees its bytes. wake are waiters of expired pending entries.
func (t *Table) Sweep(n int, now int64) (wake []uint32) { return t.sweep(n, now) }

// Stats returns the counts so far.
func (t *Table) Stats() Stats { return t.stats }
