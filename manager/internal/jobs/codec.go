package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// record is a job in its stored form.
type record struct {
	Job
	// LastToken is the token of the last delivery, kept after the worker finished the job or handed it back, so that a
	// repeated call gets the same answer. It is empty during a delivery, and after the lease was revoked.
	LastToken string
	// LockID is the key in colLocks of the job's deduplication identity, "" without a Dedup. Whether the job holds it is
	// for the lock to say.
	LockID string
	// Place is that of the submission, 0 once the job has another run_at.
	Place int
	// FreedAt is when the last lease was revoked, zero if none was. On a remote store a claim may have read the time
	// before that and found the job after it; it starts no earlier than FreedAt.
	FreedAt time.Time
	// Duplicates: at least one duplicate was dropped in favour of this job.
	Duplicates bool
	// PayloadBlob and ResultBlob: the value is in colBlobs and has this many bytes.
	PayloadBlob, ResultBlob int

	// slots are the limits that an active job counts against. held is what they were when the job was read or last written,
	// and whether it counted as waiting then. At a claim, keyLimit and turn are for the record of its concurrency key.
	slots    byte
	held     held
	keyLimit int
	turn     int64
	// marked says that the transaction has called markKeyed for the job.
	marked bool
	// was is the state in which the job was read or last written, 0 for a new one.
	was State

	// booked is what the job counts for in the sums of colUsage.
	booked charge
	// stored is what the job counted for when it was read, next the run that follows it, and removed says that it was
	// removed: what account needs once the transaction has happened.
	stored  charge
	next    *record
	removed bool
	// lostBy is the worker whose lease was revoked.
	lostBy string
}

// Values up to this size are stored inside their job. A larger value gets a record of its own, because rewriting it
// with each claim and heartbeat costs more.
const inlineBytes = 512

const recordVersion = 1

// Presence bits of a record.
const (
	hasCancel = 1 << iota
	hasPlace
	hasLease
	hasResult
	hasDedup
	hasReschedule
	hasPayloadBlob
	hasResultBlob
	hasDuplicates
	hasFreed
	hasOwner
	hasTrace
	hasErrors
	hasEvent
	hasExpiry
	hasDeadIfExpired
	hasTimeout
	hasConcurrencyKey
	hasSlots
	hasBatch
	hasAfter
)

// encode writes version, flags, then the fields in the order below: strings with their length, times in microseconds
// since 1970 (0 for the zero time).
func (r *record) encode() []byte {
	flags := uint64(0)
	set := func(on bool, f uint64) {
		if on {
			flags |= f
		}
	}
	set(r.CancelRequested, hasCancel)
	set(r.Place > 0, hasPlace)
	set(r.Lease != nil, hasLease)
	set(r.Result != nil && r.ResultBlob == 0, hasResult)
	set(r.Dedup != nil, hasDedup)
	set(r.Dedup != nil && r.Dedup.RescheduleOnce, hasReschedule)
	set(r.PayloadBlob > 0, hasPayloadBlob)
	set(r.ResultBlob > 0, hasResultBlob)
	set(r.Duplicates, hasDuplicates)
	set(!r.FreedAt.IsZero(), hasFreed)
	set(r.Owner != "", hasOwner)
	set(r.Traceparent != "", hasTrace)
	set(len(r.Errors) > 0, hasErrors)
	set(r.Event != "", hasEvent)
	set(!r.ExpiresAt.IsZero(), hasExpiry)
	set(r.DeadIfExpired, hasDeadIfExpired)
	set(r.Timeout > 0, hasTimeout)
	set(r.ConcurrencyKey != "", hasConcurrencyKey)
	set(r.State == Active && r.slots != 0, hasSlots)
	set(r.Batch != "", hasBatch)
	set(r.After != "", hasAfter)

	b := make([]byte, 0, r.size()+len(r.LockID))
	b = append(b, recordVersion)
	b = binary.AppendUvarint(b, flags)
	b = append(b, byte(r.State))
	b = codec.AppendString(b, r.Function)
	b = codec.AppendString(b, r.Key)
	b = binary.AppendVarint(b, int64(r.Priority))
	b = binary.AppendUvarint(b, uint64(r.Attempt))
	b = binary.AppendUvarint(b, uint64(r.MaxAttempts))
	for _, t := range []time.Time{r.CreatedAt, r.RunAt, r.StartedAt, r.FinishedAt} {
		b = appendStamp(b, t)
	}
	b = codec.AppendString(b, r.LastToken)
	b = codec.AppendString(b, r.LockID)
	b = codec.AppendString(b, r.Error)
	if r.Place > 0 {
		b = append(b, byte(r.Place))
	}
	if !r.FreedAt.IsZero() {
		b = appendStamp(b, r.FreedAt)
	}
	if r.Owner != "" {
		b = codec.AppendString(b, r.Owner)
	}
	if r.Traceparent != "" {
		b = appendTraceparent(b, r.Traceparent)
	}
	if len(r.Errors) > 0 {
		b = appendErrors(b, r.Errors)
	}
	if r.Event != "" {
		b = codec.AppendString(b, r.Event)
	}
	if !r.ExpiresAt.IsZero() {
		b = appendStamp(b, r.ExpiresAt)
	}
	if r.Timeout > 0 {
		b = binary.AppendUvarint(b, uint64(r.Timeout/time.Microsecond))
	}
	if r.ConcurrencyKey != "" {
		b = codec.AppendString(b, r.ConcurrencyKey)
	}
	if r.State == Active && r.slots != 0 {
		b = append(b, r.slots)
	}
	for _, id := range []string{r.Batch, r.After} {
		if id != "" {
			b = codec.AppendString(b, id)
		}
	}
	if r.State == Replayed {
		b = codec.AppendString(b, r.ReplayedAs)
	}
	if r.Lease != nil {
		b = codec.AppendString(b, r.Lease.Worker)
		b = codec.AppendString(b, r.Lease.Token)
		b = appendStamp(b, r.Lease.Begun)
		b = appendStamp(b, r.Lease.Until)
		b = binary.AppendUvarint(b, uint64(r.Lease.Duration/time.Microsecond))
		if r.Timeout > 0 {
			b = appendStamp(b, r.Lease.Deadline)
		}
	}
	if r.Dedup != nil {
		b = append(b, byte(r.Dedup.Strategy))
		b = codec.AppendString(b, r.Dedup.Key)
		b = binary.AppendUvarint(b, uint64(r.Dedup.TTL/time.Microsecond))
	}
	b = binary.AppendUvarint(b, uint64(len(r.WALLocations)))
	for _, l := range r.WALLocations {
		b = codec.AppendString(b, l.Database)
		b = binary.AppendUvarint(b, uint64(l.LSN))
	}
	switch {
	case r.ResultBlob > 0:
		b = binary.AppendUvarint(b, uint64(r.ResultBlob))
	case r.Result != nil:
		b = codec.AppendString(b, r.Result)
	}
	if r.PayloadBlob > 0 {
		return binary.AppendUvarint(b, uint64(r.PayloadBlob))
	}
	return codec.AppendString(b, r.Payload)
}

func appendStamp(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixMicro())
}

var errRecord = errors.New("it is damaged")

// unreadable is the error for a record that exists but cannot be read.
func unreadable(c store.Collection, key, format string, args ...any) error {
	return &store.UnreadableError{Collection: c, Key: key, Reason: fmt.Sprintf(format, args...)}
}

// version reads the version of a record and fails unless it is want.
func (d *decoder) version(want byte) {
	if v := d.Byte(); v != want && d.Err() == nil {
		d.Fail(fmt.Errorf("it has version %d, this program reads %d", v, want))
	}
}

// decodeRecord is the inverse of encode. Payload and Result alias b. Its error is a *store.UnreadableError.
func decodeRecord(id string, b []byte) (*record, error) {
	d := decoder{codec.NewReader(b)}
	d.version(recordVersion)
	r := &record{}
	r.ID = id
	flags := d.Uvarint()
	r.State = State(d.Byte())
	r.Function = d.String()
	r.Key = d.String()
	r.Priority = int(d.Varint())
	r.Attempt = int(d.Uvarint())
	r.MaxAttempts = int(d.Uvarint())
	r.CreatedAt, r.RunAt, r.StartedAt, r.FinishedAt = d.stamp(), d.stamp(), d.stamp(), d.stamp()
	r.LastToken = d.String()
	r.LockID = d.String()
	r.Error = d.String()
	r.CancelRequested = flags&hasCancel != 0
	r.Duplicates = flags&hasDuplicates != 0
	if flags&hasPlace != 0 {
		r.Place = int(d.Byte())
	}
	if flags&hasFreed != 0 {
		r.FreedAt = d.stamp()
	}
	if flags&hasOwner != 0 {
		if r.Owner = d.String(); r.Owner == "" {
			d.fail()
		}
	}
	if flags&hasTrace != 0 {
		r.Traceparent = d.traceparent()
	}
	if flags&hasErrors != 0 {
		r.Errors = d.errors()
	}
	if flags&hasEvent != 0 {
		if r.Event = d.String(); CheckName("", r.Event) != nil {
			d.fail()
		}
	}
	r.DeadIfExpired = flags&hasDeadIfExpired != 0
	if flags&hasExpiry != 0 {
		if r.ExpiresAt = d.stamp(); r.ExpiresAt.IsZero() {
			d.fail()
		}
	}
	if flags&hasTimeout != 0 {
		if r.Timeout = d.duration(); r.Timeout == 0 {
			d.fail()
		}
	}
	if flags&hasConcurrencyKey != 0 {
		if r.ConcurrencyKey = d.String(); checkKey("", r.ConcurrencyKey, 1) != nil {
			d.fail()
		}
	}
	if flags&hasSlots != 0 {
		if r.slots = d.Byte(); r.State != Active || r.slots == 0 || r.slots > slotFunction|slotKey || r.slots&slotKey != 0 && r.ConcurrencyKey == "" {
			d.fail()
		}
	}
	if flags&hasBatch != 0 {
		if r.Batch = d.String(); CheckID("", r.Batch) != nil {
			d.fail()
		}
	}
	if flags&hasAfter != 0 {
		if r.After = d.String(); CheckID("", r.After) != nil {
			d.fail()
		}
	}
	if r.State == Replayed {
		if r.ReplayedAs = d.String(); CheckID("", r.ReplayedAs) != nil {
			d.fail()
		}
	}
	if flags&hasLease != 0 {
		r.Lease = &Lease{Worker: d.String(), Token: d.String(), Begun: d.stamp(), Until: d.stamp(), Duration: d.duration()}
		if r.Timeout > 0 {
			r.Lease.Deadline = d.stamp()
		}
	}
	if flags&hasDedup != 0 {
		r.Dedup = &Dedup{
			Strategy: Strategy(d.Byte()), Key: d.String(), TTL: d.duration(),
			RescheduleOnce: flags&hasReschedule != 0,
		}
	}
	if n := d.Uvarint(); n > 0 && n <= MaxWALLocations {
		r.WALLocations = make(WALLocations, n)
		for i := range r.WALLocations {
			r.WALLocations[i] = WALLocation{Database: d.String(), LSN: LSN(d.Uvarint())}
		}
	} else if n > 0 {
		d.fail()
	}
	switch {
	case flags&hasResultBlob != 0:
		r.ResultBlob = d.length()
	case flags&hasResult != 0:
		r.Result = d.Bytes()
	}
	if flags&hasPayloadBlob != 0 {
		r.PayloadBlob = d.length()
	} else {
		r.Payload = d.Bytes()
	}
	if d.Err() == nil && (len(d.Rest()) != 0 || r.State < Scheduled || r.State > Expired || (r.State == Active) != (r.Lease != nil) ||
		CheckName("", r.Function) != nil || checkKey("", r.Key, 0) != nil || len(r.LockID) > MaxKeyBytes || r.Priority < MinPriority || r.Priority > MaxPriority ||
		r.Attempt < 0 || r.MaxAttempts < 0) {
		d.fail()
	}
	if d.Err() != nil {
		return nil, unreadable(colJobs, id, "%v", d.Err())
	}
	r.held, r.was = r.holds(), r.State
	return r, nil
}

// standsAlone reports whether a job has neither a payload in another record nor a lock, without decoding it.
func standsAlone(b []byte) bool {
	d := decoder{codec.NewReader(b)}
	d.version(recordVersion)
	return d.Uvarint()&(hasPayloadBlob|hasDedup) == 0 && d.Err() == nil
}

// decoder reads what encode and its like wrote.
type decoder struct{ codec.Reader }

func (d *decoder) fail() { d.Fail(errRecord) }

// length reads the size of a value in another record.
func (d *decoder) length() int { return d.Count(store.MaxValueBytes) }

func (d *decoder) stamp() time.Time {
	v := d.Varint()
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}

func (d *decoder) duration() time.Duration {
	v := d.Uvarint()
	if v > uint64(MaxDedupTTL/time.Microsecond) {
		d.fail()
		return 0
	}
	return time.Duration(v) * time.Microsecond
}
