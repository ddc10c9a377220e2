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
	"github.com/oncegate/oncegate/manager/internal/store"
)

// collection holds the entries.
const collection store.Collection = "ledger"

// Indexes of the collection; see the package documentation.
const (
	indexRef     = "ref"
	indexPending = "pending" // indexOf(api.StatePending)
	// indexOrigin has outcomes with an origin (see record.originKey), indexImported those of other ledgers by expiry.
	indexOrigin   = "origin"
	indexImported = "imported"
)

// indexOf returns the name of the expiry index of a stored state.
func indexOf(s api.State) string { return s.String() }

// storedStates are the states a record can have, in the order of listings.
var storedStates = [...]api.State{api.StatePending, api.StateCommitted, api.StateRejected, api.StateUnknown}

// A record begins with its version:
//
//	record := version(1) state(1) created expires touched [unknown] [home] token fingerprint ref [provenance] [form] result
//	created, expires, touched := uvarint(Unix milliseconds)
//	unknown := uvarint: 0 for the manager's default, else milliseconds + 1; only in versions 2, 4 and 5
//	home := uvarint(length) bytes; only in version 5
//	token, fingerprint, ref := uvarint(length) bytes
//	form := version of the result(1); only in versions 3 and 4, else it is 1
//	provenance := flags(1) origin hlc fence; only in version 4, before form
//	origin := uvarint(length) bytes
//	hlc, fence := uvarint
//	result := the rest, empty when PENDING or UNKNOWN; in version 1 the API's raw form
//
// A version is written only where an earlier one is not sufficient, so a reader of earlier versions can read all other
// records. Version 2 is for an entry that is UNKNOWN, and for a reservation that sets its own unknown TTL. Version 3 is
// for an outcome whose result has another version than 1. A program that does not know that version reads the rest of
// the record: it fences and expires the entry, and refuses to replay it. Version 4 is for an outcome of a ledger
// with an origin, and for its reservations of a key that an earlier attempt held. Version 5 is for an entry without an
// outcome whose home is another data centre.
const (
	recordVersion1 = 1
	recordVersion2 = 2
	recordVersion3 = 3
	recordVersion4 = 4
	recordVersion5 = 5

	flagImported = 1

	resultVersion = 1
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
	// form is the version of a result that this program does not know, else 0.
	form byte
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
const recordOverhead = 2 + 7*binary.MaxVarintLen64 + 2 + 3*binary.MaxVarintLen64 + maxOriginBytes

// recordKey is the key of an entry's record in the store, and the topic that its waiters watch. The length makes the
// pair unambiguous whatever bytes it contains. It also keeps the topic distinct from those of other parts of the
// program, which begin with a letter.
func recordKey(scope, key string) string {
	var b [8 + api.MaxScopeBytes + api.MaxKeyBytes]byte
	k := strconv.AppendInt(b[:0], int64(len(scope)), 10)
	k = append(k, ':')
	k = append(k, scope...)
	return string(append(k, key...))
}

// splitRecordKey is the inverse of recordKey.
func splitRecordKey(k string) (scope, key string, ok bool) {
	digits, rest, found := strings.Cut(k, ":")
	n, err := strconv.Atoi(digits)
	if !found || err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// version is the lowest version that can hold the record.
func (r *record) version() byte {
	switch {
	case len(r.home) != 0:
		return recordVersion5
	case len(r.origin) != 0 || r.fence != 0:
		return recordVersion4
	case r.form != 0:
		return recordVersion3
	case r.state == api.StateUnknown || r.state == api.StatePending && r.explicit:
		return recordVersion2
	}
	return recordVersion1
}

// answer is the result of an outcome in the API's raw form. Its error is a
// *store.UnreadableError.
func (r *record) answer(key string) ([]byte, error) {
	if r.form != 0 {
		return nil, unreadable(key, "its result has version %d, this program reads %d", r.form, resultVersion)
	}
	return r.result, nil
}

// unknownField is the field unknown of a record.
func (r *record) unknownField() uint64 {
	if !r.explicit {
		return 0
	}
	return uint64(r.unknown) + 1
}

// recordLen is how long the encoded record is.
func recordLen(r *record) int {
	n := 2 + len(r.token) + len(r.fingerprint) + len(r.ref) + len(r.result)
	for _, v := range [...]int{int(r.created), int(r.expires), int(r.touched), len(r.token), len(r.fingerprint), len(r.ref)} {
		n += uvarintLen(uint64(v))
	}
	switch r.version() {
	case recordVersion2:
		n += uvarintLen(r.unknownField())
	case recordVersion3:
		n++
	case recordVersion4:
		n += uvarintLen(r.unknownField()) + 2 + uvarintLen(uint64(len(r.origin))) + len(r.origin) + uvarintLen(r.hlc) + uvarintLen(r.fence)
	case recordVersion5:
		n += uvarintLen(r.unknownField()) + uvarintLen(uint64(len(r.home))) + len(r.home)
	}
	return n
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func appendRecord(dst []byte, r *record) []byte {
	version := r.version()
	dst = append(dst, version, byte(r.state))
	dst = binary.AppendUvarint(dst, uint64(r.created))
	dst = binary.AppendUvarint(dst, uint64(r.expires))
	dst = binary.AppendUvarint(dst, uint64(r.touched))
	if version == recordVersion2 || version >= recordVersion4 {
		dst = binary.AppendUvarint(dst, r.unknownField())
	}
	if version == recordVersion5 {
		dst = binary.AppendUvarint(dst, uint64(len(r.home)))
		dst = append(dst, r.home...)
	}
	for _, f := range [...][]byte{r.token, r.fingerprint, r.ref} {
		dst = binary.AppendUvarint(dst, uint64(len(f)))
		dst = append(dst, f...)
	}
	switch version {
	case recordVersion3:
		dst = append(dst, r.form)
	case recordVersion4:
		flags, form := byte(0), byte(resultVersion)
		if r.imported {
			flags = flagImported
		}
		if r.form != 0 {
			form = r.form
		}
		dst = append(dst, flags)
		dst = append(binary.AppendUvarint(dst, uint64(len(r.origin))), r.origin...)
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, r.hlc), r.fence)
		dst = append(dst, form)
	}
	return append(dst, r.result...)
}

// unreadable is the error for a record that exists but cannot be read.
func unreadable(key, format string, args ...any) error {
	return &store.UnreadableError{Collection: collection, Key: key, Reason: fmt.Sprintf(format, args...)}
}

// decodeRecord decodes a stored value. It does not fill in the manager's default TTL; Ledger.load does. Its error is a
// *store.UnreadableError.
func decodeRecord(key string, b []byte, r *record) error {
	if len(b) < 2 {
		return unreadable(key, "it is shorter than its header")
	}
	if b[0] < recordVersion1 || b[0] > recordVersion5 {
		return unreadable(key, "it has version %d, this program reads %d to %d", b[0], recordVersion1, recordVersion5)
	}
	*r = record{state: api.State(b[1]), size: len(b) + len(key)}
	if !slices.Contains(storedStates[:], r.state) || r.version() > b[0] || b[0] == recordVersion3 && !r.state.Terminal() ||
		b[0] == recordVersion5 && r.state.Terminal() {
		return unreadable(key, "it is in state %d", b[1])
	}
	rest := b[2:]
	for _, v := range [...]*int64{&r.created, &r.expires, &r.touched} {
		u, n := binary.Uvarint(rest)
		if n <= 0 || u > 1<<62 {
			return unreadable(key, "a time is malformed")
		}
		*v, rest = int64(u), rest[n:]
	}
	if b[0] == recordVersion2 || b[0] >= recordVersion4 {
		u, n := binary.Uvarint(rest)
		if n <= 0 || u > uint64(api.MaxTTL/time.Millisecond)+1 {
			return unreadable(key, "its unknown TTL is malformed")
		}
		if r.explicit = u != 0; r.explicit {
			r.unknown = int64(u) - 1
		}
		rest = rest[n:]
	}
	fields := [...]*[]byte{&r.home, &r.token, &r.fingerprint, &r.ref}
	for i, v := range fields {
		if i == 0 && b[0] != recordVersion5 {
			continue
		}
		u, n := binary.Uvarint(rest)
		if n <= 0 || u > uint64(len(rest)-n) {
			return unreadable(key, "a field is malformed")
		}
		*v, rest = rest[n:n+int(u):n+int(u)], rest[n+int(u):]
	}
	if b[0] == recordVersion5 && len(r.home) == 0 {
		return unreadable(key, "its home is missing")
	}
	if b[0] == recordVersion4 {
		var ok bool
		if rest, ok = decodeProvenance(rest, r); !ok {
			return unreadable(key, "its origin is malformed")
		}
	}
	if b[0] == recordVersion3 || b[0] == recordVersion4 {
		if len(rest) == 0 || rest[0] == 0 {
			return unreadable(key, "the version of its result is missing")
		}
		if rest[0] != resultVersion {
			r.form = rest[0]
		}
		rest = rest[1:]
	}
	r.result = rest
	if r.state.Terminal() && r.form == 0 {
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
	return tx.Tx.Put(collection, key, value, tx.entries[first:len(tx.entries):len(tx.entries)]...)
}

// appendEntries appends the record's index entries.
func (r *record) appendEntries(dst []store.Entry) []store.Entry {
	if r.state != api.StatePending {
		// When it was recorded tells for how long it is remembered, without its value (see RememberedByEntries).
		dst = append(dst, store.Entry{Index: indexOf(r.state), SortKey: sortKey(r.expires, r.touched)})
	} else {
		dst = append(dst, store.Entry{Index: indexOf(r.state), SortKey: sortKey(r.expires)})
	}
	if len(r.ref) != 0 {
		dst = append(dst, store.Entry{Index: indexRef, SortKey: string(r.ref)})
	}
	if len(r.origin) != 0 && r.state.Terminal() {
		dst = append(dst, store.Entry{Index: indexOrigin, SortKey: r.originKey()})
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
