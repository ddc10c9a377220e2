package cache

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Hash names an entry: 128 bits of a digest of its scope and key.
type Hash [16]byte

// Token names an attempt: the 128 random bits that also fence it in the
// ledger. The calls of one attempt repeat it; a new attempt has a new one.
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
	// MaxBytes bounds the bytes of all values: records and answers. Default 64
	// MiB. The records of MaxEntries take up to 117 bytes each; when they would
	// take more than half, there are fewer entries.
	MaxBytes int
	// MaxResultBytes is the largest answer that is kept. Default 576 KiB.
	MaxResultBytes int
	// TouchInterval is how stale an entry's last use may get before a lookup
	// writes it back: 0 means one second, negative at every lookup.
	TouchInterval time.Duration
}

// Entry is a copy of what the table knows about an entry.
type Entry struct {
	Hash        Hash
	State       api.State // pending, committed, rejected or unknown
	Token       Token
	Fingerprint Fingerprint
	// Owner is the queue of the VM that reserved the entry.
	Owner uint32
	// Sole: there is no ledger behind this entry, or it does not know of the outcome yet.
	Sole bool
	// Expires is when the entry ends, in nanoseconds since the epoch.
	Expires int64
	// HasBody: the answer is (or was) kept; Table.Body fetches it.
	HasBody bool

	loc location
}

// location is where an entry lies.
type location struct{ bucket, slot int }

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
	// Full: there is no room that could be made without evicting entries that must
	// not be.
	Full
	// Contended: the bounded number of tries was used up or the host failed;
	// nothing is known. The ledger decides.
	Contended
	// Done: the operation took effect, now or at an earlier call.
	Done
	// NotOwner: the entry is another attempt's, or is over; nothing changed.
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
	// Sole: no ledger stands behind the entry. It is not evicted, and room for an
	// answer is set aside.
	Sole bool
}

// Outcome is the argument of Finish.
type Outcome struct {
	Hash        Hash
	Token       Token
	Fingerprint Fingerprint
	// State is committed, rejected or unknown.
	State api.State
	// Expires is when the answer is forgotten, in nanoseconds since the epoch.
	Expires int64
	// Sole as in Reservation, and also for an outcome that the ledger does not know
	// yet; see Settle.
	Sole bool
	// Learned: the ledger told the outcome, so it may also restore an entry
	// whose answer was evicted. This attempt's own outcome never changes a
	// terminal entry.
	Learned bool
	// Raw is the answer in the raw form of api.Result; it is stored as is. Nil:
	// the answer is not kept.
	Raw []byte
}

// Stats are this VM's counts, and the totals of the last whole sweep by any VM.
type Stats struct {
	Entries, Bytes int64  // at the last whole sweep: live entries, bytes of their answers
	Evictions      uint64 // live entries that made room for others
	Refused        uint64 // reservations without a ledger that found no room
	Unkept         uint64 // answers that found no room
	Retries        uint64 // compare-and-set attempts that failed
	Contended      uint64 // operations given up
	Foreign        uint64 // records that were not ours or not readable
}

// Table is one VM's view of the cache. It is not safe for concurrent use: a VM
// runs one callback at a time. Slices that its methods return stay valid
// until the next call, except answers, which belong to the caller.
type Table struct {
	sd     SharedData
	sem    Semantics
	prefix string
	touch  int64 // nanoseconds
	layout
	stats Stats

	// What the running operation works on: its bucket, another one of the same
	// region that makes room for it or is swept, and the region.
	own, other view
	region     region

	// missed is what a Lookup read that found nothing: a Reserve that follows need not read it again.
	missed struct {
		known  bool
		bucket int
		value  []byte
		cas    uint32
		status Status
	}

	// Buffers, kept between calls: the heap of a VM is small.
	hit           way
	key, buf, val []byte
	wake          []uint32
	blank         []byte // an empty region
}

// maxKeptBuffer is the largest value buffer that is kept between calls.
const maxKeptBuffer = 64 << 10

const defaultPrefix = "oncegate"

// New returns the table. Nothing is read or written before the first operation.
func New(sd SharedData, sem Semantics, o Options) *Table {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultEntries
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultBytes
	}
	if o.MaxResultBytes <= 0 {
		o.MaxResultBytes = defaultResultBytes
	}
	touch := int64(o.TouchInterval)
	if touch == 0 {
		touch = defaultTouch
	}
	t := &Table{
		sd:     sd,
		sem:    sem,
		prefix: o.Prefix,
		touch:  max(touch, 0),
		key:    make([]byte, 0, len(o.Prefix)+32),
		buf:    make([]byte, 0, maxRecord),
		wake:   make([]uint32, 0, MaxWaiters),
	}
	t.layout = newLayout(o.MaxEntries, max(o.MaxBytes, minBytes), o.MaxResultBytes)
	return t
}

// Lookup copies a live entry to e. It counts as a use. False: nothing is known.
func (t *Table) Lookup(h *Hash, now int64, e *Entry) bool {
	if !t.sem.Usable {
		return false
	}
	bucket := t.bucket(h)
	value, cas, st := t.sd.Get(t.recordKey(bucket))
	if st != OK || !framed(value) {
		t.miss(bucket, value, cas, st)
		return false
	}
	// The record is searched in place: of most ways only the hash matters.
	w, found := &t.hit, false
	for i, b := 0, value[headerSize:]; i < int(value[3]) && !found; i, b = i+1, b[waySize:] {
		if Hash(b[offHash:offHash+len(h)]) != *h || api.State(b[offState]) == api.StateNone {
			continue
		}
		slot, ok := readWay(b, w)
		if !ok || !w.live(now) {
			return false
		}
		found = true
		t.entry(e, bucket, slot, w)
	}
	if !found {
		t.miss(bucket, value, cas, st)
		return false
	}
	if now-w.lastUse >= t.touch {
		t.touchEntry(e, value, cas, now)
	}
	return true
}

func (t *Table) miss(bucket int, value []byte, cas uint32, st Status) {
	m := &t.missed
	m.known, m.bucket, m.value, m.cas, m.status = true, bucket, value, cas, st
}

// loadMissed is load with what a Lookup has read of the bucket; false: none has. Storing the record finds out
// whether it has changed since then, nothing else does.
func (t *Table) loadMissed(v *view, bucket int) bool {
	m := &t.missed
	value, known := m.value, m.known && m.bucket == bucket
	m.known, m.value = false, nil
	return known && t.accept(v, bucket, value, m.cas, m.status)
}

// touchEntry writes an entry's last use back. Losing the race for it is no harm:
// the winner used the bucket just now.
func (t *Table) touchEntry(e *Entry, value []byte, cas uint32, now int64) {
	v := &t.own
	if !t.accept(v, e.loc.bucket, value, cas, OK) {
		return
	}
	if w := &v.rec.ways[e.loc.slot]; w.hash == e.Hash && w.exists() {
		w.lastUse = now
		t.store(v)
	}
}

// entry fills e from a way of a bucket.
func (t *Table) entry(e *Entry, bucket, slot int, w *way) {
	*e = Entry{
		Hash:        w.hash,
		State:       w.state,
		Token:       w.token,
		Fingerprint: w.print,
		Owner:       w.owner,
		Sole:        w.sole,
		Expires:     w.expires,
		HasBody:     w.body,
		loc:         location{bucket: bucket, slot: slot},
	}
}

// Body returns the answer of a terminal entry, in the raw form, byte for byte
// as it was given to Finish. False: it was evicted or found no room, and the
// entry says only that the request is over: ask the ledger (and give what it
// answers to Finish), or where there is none answer that the recording is lost.
func (t *Table) Body(e *Entry) ([]byte, bool) {
	if !e.HasBody {
		return nil, false
	}
	value, _, st := t.sd.Get(t.valueKey(e.loc.bucket, e.loc.slot))
	if st != OK || !valueOf(value, &e.Hash, &e.Token) {
		return nil, false
	}
	return value[valueHeader:], true
}

// Stats returns the counts so far.
func (t *Table) Stats() Stats { return t.stats }
