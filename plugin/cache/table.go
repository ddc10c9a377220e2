package cache

import (
	"bytes"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Hash names an entry: 128 bits of a digest of its scope and key.
type Hash [16]byte

// Token names an attempt by 128 random bits, which also fence it in the ledger.
// All calls of an attempt have the same token; a new attempt has a new one.
type Token [16]byte

// Fingerprint is a short form of the request's fingerprint: 8 bytes of all but the body, 3 of the body's length and 5 of
// the body. A part that is all zero is missing.
type Fingerprint [16]byte

// parts are where the parts begin and end.
var parts = [...][2]int{{0, 8}, {8, 11}, {11, 16}}

// Matches reports whether two fingerprints may be of the same request: each part that both have is equal.
func (f *Fingerprint) Matches(g *Fingerprint) bool {
	for _, p := range parts {
		if a, b := f[p[0]:p[1]], g[p[0]:p[1]]; !missing(a) && !missing(b) && !bytes.Equal(a, b) {
			return false
		}
	}
	return true
}

// Within reports whether g has every part of f. Then f matches every fingerprint that g matches.
func (f *Fingerprint) Within(g *Fingerprint) bool {
	for _, p := range parts {
		if a, b := f[p[0]:p[1]], g[p[0]:p[1]]; !missing(a) && !bytes.Equal(a, b) {
			return false
		}
	}
	return true
}

func missing(part []byte) bool {
	for _, b := range part {
		if b != 0 {
			return false
		}
	}
	return true
}

// Limits.
const (
	// Ways is the number of entries in a bucket.
	Ways = 8
	// MaxWaiters bounds the waiting queues of one bucket, over all its entries.
	MaxWaiters = 64
	// maxTries bounds the compare-and-set loops. A try fails only because another
	// worker succeeded.
	maxTries = 16
)

// Options size a Table. All tables of one prefix should have the same Options.
// Otherwise they share less, but nothing wrong.
type Options struct {
	// Prefix starts all shared-data keys; default "oncegate".
	Prefix string
	// MaxEntries bounds the entries. It is rounded down to a multiple of Ways, and
	// is at least Ways. Default 100000.
	MaxEntries int
	// MaxBytes bounds the bytes of all values: records and answers. Default 64
	// MiB. If the records for MaxEntries could take more than half of it, the table
	// has fewer entries.
	MaxBytes int
	// MaxResultBytes is the largest answer that is kept. Default 576 KiB.
	MaxResultBytes int
	// TouchInterval is how old an entry's stored last use may get before a lookup
	// stores a new one. 0: one second. Negative: every lookup stores it.
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
	// CacheOnly: there is no ledger for this entry, or it does not know of the outcome yet.
	CacheOnly bool
	// Learned: the ledger gave the outcome to a duplicate, whose fingerprint the entry has. The first request's may have
	// other parts.
	Learned bool
	// Expires is when the entry ends, in nanoseconds since the epoch.
	Expires int64
	// HasBody: the answer is, or was, kept; see Table.Body.
	HasBody bool

	loc location
}

// location is where an entry lies.
type location struct{ bucket, slot int }

// Result is what an operation did.
type Result uint8

// The results.
const (
	// Created: Reserve made the entry, or it was already this attempt's.
	Created Result = iota
	// Existing: Reserve found another attempt's entry.
	Existing
	// Full: only entries that must not be evicted could make room.
	Full
	// Contended: all tries failed, or the host did. The caller knows nothing about
	// the entry, and the ledger decides.
	Contended
	// Done: the operation took effect, in this call or an earlier one.
	Done
	// NotOwner: the entry is another attempt's, or is over. Nothing changed.
	NotOwner
	// Gone: there is no such entry.
	Gone
	// Waiting: the queue is among the waiters.
	Waiting
	// Ended: the entry is not pending, or not any more. Look again.
	Ended
	// TooManyWaiters: the bucket's list is full, so nothing will wake the queue.
	TooManyWaiters
)

// Reservation is the argument of Reserve.
type Reservation struct {
	Hash        Hash
	Token       Token
	Fingerprint Fingerprint
	// Owner is this VM's queue.
	Owner uint32
	// Expires is when the reservation ends if Finish does not end it first, in
	// nanoseconds since the epoch.
	Expires int64
	// CacheOnly: there is no ledger for the entry. The entry is not evicted, and room
	// for an answer is set aside.
	CacheOnly bool
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
	// CacheOnly is as in Reservation. It also marks an outcome that the ledger does not
	// know yet; see Settle.
	CacheOnly bool
	// Learned: the outcome came from the ledger, so it may restore an entry whose
	// answer was evicted. An attempt's own outcome never changes a terminal entry.
	Learned bool
	// Raw is the answer in the raw form of api.Result. It is stored unchanged. Nil:
	// the answer is not kept.
	Raw []byte
}

// Stats are this VM's counts, and the totals of the last whole sweep by any VM.
type Stats struct {
	Entries, Bytes int64  // at the last whole sweep: live entries, bytes of their answers
	Evictions      uint64 // live entries that made room for others
	Refused        uint64 // reservations without a ledger that found no room
	AnswersDropped uint64 // answers that found no room
	Retries        uint64 // compare-and-set attempts that failed
	Contended      uint64 // operations that were given up
	Foreign        uint64 // values that were not readable records of this version
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

	// own is the running operation's bucket. other is a bucket of the same region
	// that makes room for it or is swept. The region's record comes next.
	own, other view
	region     region

	// lastMiss is the record that a Lookup read without finding the entry, so that a Reserve need not read
	// it again. Its value lies in readRoom.
	lastMiss struct {
		known  bool
		bucket int
		value  []byte
		cas    uint32
		status Status
	}

	// Calls reuse these buffers, because the heap of a VM is small.
	hit           way
	key, buf, val []byte
	wake          []uint32
	blank         []byte // an empty region
	// Records are read into this memory: a new block for each would be most of what a new key allocates.
	readRoom, regionRoom, scratchRoom []byte
}

// maxKeptBuffer is the largest value buffer, in bytes, that is kept between calls.
const maxKeptBuffer = 64 << 10

const defaultPrefix = "oncegate"

// New returns the table. It makes no host calls.
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

		readRoom:    make([]byte, maxRecord),
		scratchRoom: make([]byte, len(scratch)),
	}
	t.layout = newLayout(o.MaxEntries, max(o.MaxBytes, minBytes), o.MaxResultBytes)
	return t
}

// Lookup copies a live entry to e, and counts as a use of it. False: there is none, or the
// host failed.
func (t *Table) Lookup(h *Hash, now int64, e *Entry) bool {
	if !t.sem.Usable {
		return false
	}
	bucket := t.bucket(h)
	value, cas, st := t.get(bucket)
	if st != OK || !framed(value) {
		t.miss(bucket, value, cas, st)
		return false
	}
	// The search runs in the encoded record, because only the hash of most ways matters.
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

// get reads a bucket's record into readRoom. The value is valid until the next get.
func (t *Table) get(bucket int) (value []byte, cas uint32, st Status) {
	t.lastMiss.known, t.lastMiss.value = false, nil
	return t.sd.Get(t.recordKey(bucket), t.readRoom)
}

func (t *Table) miss(bucket int, value []byte, cas uint32, st Status) {
	m := &t.lastMiss
	m.known, m.bucket, m.value, m.cas, m.status = true, bucket, value, cas, st
}

// loadLastMiss is load with the record that a Lookup of this bucket has read. False: there is none. If the
// record has changed since then, only storing it finds out.
func (t *Table) loadLastMiss(v *view, bucket int) bool {
	m := &t.lastMiss
	value, known := m.value, m.known && m.bucket == bucket
	m.known, m.value = false, nil
	return known && t.accept(v, bucket, value, m.cas, m.status)
}

// touchEntry stores an entry's last use. It may lose the race for the record without
// harm: the winner has just used the bucket.
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
		CacheOnly:   w.cacheOnly,
		Learned:     w.learned,
		Expires:     w.expires,
		HasBody:     w.body,
		loc:         location{bucket: bucket, slot: slot},
	}
}

// Body returns the answer of a terminal entry in the raw form, byte for byte as
// Finish got it. False: the answer was evicted or found no room, so the entry says
// only that the request is over. The caller must then ask the ledger and give its
// answer to Finish. Without a ledger it must say that the recording is lost.
func (t *Table) Body(e *Entry) ([]byte, bool) {
	if !e.HasBody {
		return nil, false
	}
	value, _, st := t.sd.Get(t.valueKey(e.loc.bucket, e.loc.slot), nil)
	if st != OK || !valueOf(value, &e.Hash, &e.Token) {
		return nil, false
	}
	return value[valueHeader:], true
}

// Stats returns the counts so far.
func (t *Table) Stats() Stats { return t.stats }
