package ledger

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection holds the entries.
const Collection store.Collection = "ledger"

// Indexes of the collection; see the package documentation.
const (
	indexRef     = "ref"
	indexPending = "pending" // indexOf(api.StatePending)
	// OriginIndex has outcomes with an origin, in the order of origins and of the times at which they recorded the outcomes (see
	// record.originKey).
	OriginIndex = "origin"
	// indexImported has outcomes of other ledgers by expiry.
	indexImported = "imported"
)

// indexOf returns the name of the expiry index of a stored state.
func indexOf(s api.State) string { return s.String() }

// storedStates are the states a record can have, in the order of listings.
var storedStates = [...]api.State{api.StatePending, api.StateCommitted, api.StateRejected, api.StateUnknown}

// An entry is stored as
//
//	record := version(1) state(1) flags(1) created expires touched unknown hlc fence home origin token fingerprint ref result
//	created, expires, touched := uvarint(Unix milliseconds)
//	unknown := uvarint: 0 for the manager's default, else milliseconds + 1
//	hlc, fence := uvarint
//	home, origin, token, fingerprint, ref := uvarint(length) bytes
//	result := the rest in the API's raw form, empty when PENDING or UNKNOWN
const (
	recordVersion = 1
	flagImported  = 1
)

// record is a decoded record; its slices alias the stored value.
type record struct {
	state                     api.State
	created, expires, touched int64 // Unix milliseconds
	// unknown is how many milliseconds a reservation stays UNKNOWN after it ran out; 0: its key is free. explicit: the
	// request set it, so it is not the manager's default.
	unknown                 int64
	explicit                bool
	token, fingerprint, ref []byte
	// home is the data centre that decides about the entry; empty: this one does. Only without an outcome.
	home   []byte
	result []byte
	// origin is the ledger where the outcome was recorded, empty without origins, and hlc when: a time of a hybrid clock,
	// which orders outcomes of all origins and decides about no expiry. imported: origin is another ledger. fence is the
	// number of earlier attempts of the key that this ledger has seen run out.
	origin   []byte
	hlc      uint64
	fence    uint64
	imported bool
	size     int // of the encoded value and its key
}

// setUnknown sets how long the reservation is UNKNOWN after it ran out. asked is 0 for the manager's default own.
func (r *record) setUnknown(asked, own time.Duration) {
	r.explicit = asked != 0
	if !r.explicit {
		asked = own
	}
	r.unknown = int64((max(asked, 0) + time.Millisecond - 1) / time.Millisecond)
}

// remembered returns for how many milliseconds after its last change the record keeps its key from running. It rounds
// up to seconds, so that the maximum over all records rarely changes.
func (r *record) remembered() int64 {
	ms := r.expires - r.touched
	if r.state == api.StatePending {
		ms += r.unknown
	}
	return (ms - 1 + 999) / 1000 * 1000 // a deadline may be a millisecond later than was asked for
}

// inherit copies what stays the same when the reservation e ends or is renewed.
func (r *record) inherit(e *record) {
	if !r.state.Terminal() {
		r.home = e.home
	}
	r.created, r.fence = e.created, e.fence
	if len(e.fingerprint) != 0 {
		r.fingerprint = e.fingerprint
	}
}

// maxRefBytes bounds the reference of an entry.
const maxRefBytes = 255

// recordOverhead bounds what a record adds to its token, fingerprint,
// reference and result.
const recordOverhead = 3 + 11*binary.MaxVarintLen64 + maxOriginBytes

// EntryKey is the key of an entry's record in the store, and the topic that its waiters watch. The length makes the
// pair unambiguous whatever bytes it contains. It also keeps the topic distinct from those of other parts of the
// program, which begin with a letter.
func EntryKey(scope, key string) string {
	var b [8 + api.MaxScopeBytes + api.MaxKeyBytes]byte
	k := strconv.AppendInt(b[:0], int64(len(scope)), 10)
	k = append(k, ':')
	k = append(k, scope...)
	return string(append(k, key...))
}

// SplitEntryKey is the inverse of EntryKey. ok is false for what is no such key.
func SplitEntryKey(k string) (scope, key string, ok bool) {
	digits, rest, found := strings.Cut(k, ":")
	n, err := strconv.Atoi(digits)
	if !found || err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// numbers are what is encoded as a number, in order. unknown is 0 for the manager's default, else milliseconds + 1.
func (r *record) numbers() [6]uint64 {
	unknown := uint64(0)
	if r.explicit {
		unknown = uint64(r.unknown) + 1
	}
	return [...]uint64{uint64(r.created), uint64(r.expires), uint64(r.touched), unknown, r.hlc, r.fence}
}

// fields are what is encoded with its length, in order.
func (r *record) fields() [5][]byte {
	return [...][]byte{r.home, r.origin, r.token, r.fingerprint, r.ref}
}

// recordLen is how long the encoded record is.
func recordLen(r *record) int {
	n := 3 + len(r.result)
	for _, v := range r.numbers() {
		n += uvarintLen(v)
	}
	for _, f := range r.fields() {
		n += uvarintLen(uint64(len(f))) + len(f)
	}
	return n
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func appendRecord(dst []byte, r *record) []byte {
	flags := byte(0)
	if r.imported {
		flags = flagImported
	}
	dst = append(dst, recordVersion, byte(r.state), flags)
	for _, v := range r.numbers() {
		dst = binary.AppendUvarint(dst, v)
	}
	for _, f := range r.fields() {
		dst = codec.AppendString(dst, f)
	}
	return append(dst, r.result...)
}

// unreadable is the error for a record that exists but cannot be read.
func unreadable(key, format string, args ...any) error {
	return &store.UnreadableError{Collection: Collection, Key: key, Reason: fmt.Sprintf(format, args...)}
}

// decodeRecord decodes a stored value. It does not fill in the manager's default TTL; Ledger.load does. Its error is a
// *store.UnreadableError.
func decodeRecord(key string, b []byte, r *record) error {
	if len(b) < 3 {
		return unreadable(key, "it is shorter than its header")
	}
	if b[0] != recordVersion {
		return unreadable(key, "it has version %d, this program reads %d", b[0], recordVersion)
	}
	*r = record{state: api.State(b[1]), imported: b[2] == flagImported, size: len(b) + len(key)}
	if !slices.Contains(storedStates[:], r.state) || b[2] > flagImported {
		return unreadable(key, "it is in state %d with flags %d", b[1], b[2])
	}
	// Each call reads a record, and a codec.Reader would cost a replay some percent.
	rest := b[3:]
	var numbers [6]uint64
	for i, most := range [len(numbers)]uint64{1 << 62, 1 << 62, 1 << 62, uint64(api.MaxTTL/time.Millisecond) + 1, MaxHLC, MaxHLC} {
		u, n := binary.Uvarint(rest)
		if n <= 0 || u > most {
			return unreadable(key, "a number is malformed")
		}
		numbers[i], rest = u, rest[n:]
	}
	r.created, r.expires, r.touched = int64(numbers[0]), int64(numbers[1]), int64(numbers[2])
	if r.explicit = numbers[3] != 0; r.explicit {
		r.unknown = int64(numbers[3]) - 1
	}
	r.hlc, r.fence = numbers[4], numbers[5]
	for _, v := range [...]*[]byte{&r.home, &r.origin, &r.token, &r.fingerprint, &r.ref} {
		u, n := binary.Uvarint(rest)
		if n <= 0 || u > uint64(len(rest)-n) {
			return unreadable(key, "a field is malformed")
		}
		*v, rest = rest[n:n+int(u):n+int(u)], rest[n+int(u):]
	}
	if len(r.origin) > maxOriginBytes {
		return unreadable(key, "its origin is malformed")
	}
	if r.result = rest; r.state.Terminal() {
		if len(r.home) != 0 {
			return unreadable(key, "it is an outcome with a home")
		}
		if _, _, err := api.CheckRawResult(rest); err != nil {
			return unreadable(key, "its result is malformed: %v", err)
		}
	}
	return nil
}

// put writes the record with its index entries.
func (tx *Tx) put(key string, r *record) error {
	start := len(tx.values)
	tx.values = appendRecord(slices.Grow(tx.values, recordLen(r)), r)
	value := tx.values[start:len(tx.values):len(tx.values)]
	r.size = len(value) + len(key)
	first := len(tx.entries)
	tx.entries = r.appendEntries(tx.entries)
	return tx.Tx.Put(Collection, key, value, tx.entries[first:len(tx.entries):len(tx.entries)]...)
}

// appendEntries appends the record's index entries.
func (r *record) appendEntries(dst []store.Entry) []store.Entry {
	if r.state != api.StatePending {
		// When it was recorded decides for how long it is remembered, without its value (see RememberedByEntries).
		dst = append(dst, store.Entry{Index: indexOf(r.state), SortKey: sortKey(r.expires, r.touched)})
	} else {
		dst = append(dst, store.Entry{Index: indexOf(r.state), SortKey: sortKey(r.expires)})
	}
	if len(r.ref) != 0 {
		dst = append(dst, store.Entry{Index: indexRef, SortKey: string(r.ref)})
	}
	if len(r.origin) != 0 && r.state.Terminal() {
		dst = append(dst, store.Entry{Index: OriginIndex, SortKey: r.originKey()})
		if r.imported {
			dst = append(dst, store.Entry{Index: indexImported, SortKey: sortKey(r.expires)})
		}
	}
	return dst
}

// sortKeyDigits are sufficient for any time until the year 5188.
const sortKeyDigits = 9

// sortKey encodes times as fixed-width base 36, whose bytes sort in the order of the times on every engine.
func sortKey(times ...int64) string {
	var b [2 * sortKeyDigits]byte
	for n, ms := range times {
		for i := sortKeyDigits - 1; i >= 0; i-- {
			b[n*sortKeyDigits+i] = "0123456789abcdefghijklmnopqrstuvwxyz"[ms%36]
			ms /= 36
		}
	}
	return string(b[:len(times)*sortKeyDigits])
}

// timeOf decodes the first time of a sort key.
func timeOf(key string) (int64, error) {
	return strconv.ParseInt(key[:min(len(key), sortKeyDigits)], 36, 64)
}

// deadline is the first millisecond at which something that begins at now and lasts ttl is over. It rounds up, so
// nothing ends early.
func deadline(now time.Time, ttl time.Duration) int64 {
	end := now.Add(ttl)
	ms := end.UnixMilli()
	if end.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return ms
}

// remaining is how long a live entry still lasts at that time: whole milliseconds, at least one.
func remaining(expires int64, at time.Time) time.Duration {
	return max(time.UnixMilli(expires).Sub(at).Truncate(time.Millisecond), time.Millisecond)
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
