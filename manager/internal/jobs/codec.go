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

// Flags of a record.
const (
	isCancelRequested = 1 << iota
	isDeadIfExpired
	hasDuplicates
	hasResult
	hasResultBlob
	hasPayloadBlob
	hasDedup
	hasMore // fields that are empty in most records
)

// encode writes version, flags, then the fields in the order below: strings with their length, times in microseconds
// since 1970 (0 for the zero time).
func (r *record) encode() []byte {
	flags := byte(0)
	set := func(on bool, f byte) {
		if on {
			flags |= f
		}
	}
	set(r.CancelRequested, isCancelRequested)
	set(r.DeadIfExpired, isDeadIfExpired)
	set(r.Duplicates, hasDuplicates)
	set(r.Result != nil && r.ResultBlob == 0, hasResult)
	set(r.ResultBlob > 0, hasResultBlob)
	set(r.PayloadBlob > 0, hasPayloadBlob)
	set(r.Dedup != nil, hasDedup)
	set(r.Place > 0 || r.Traceparent != "" || r.Event != "" || r.ConcurrencyKey != "" || r.Batch != "" || r.After != "" || r.Timeout > 0 ||
		len(r.Errors) > 0 || !r.FreedAt.IsZero() || !r.ExpiresAt.IsZero(), hasMore)

	b := make([]byte, 0, r.size()+len(r.LockID)+len(r.Traceparent))
	b = append(b, recordVersion, flags, byte(r.State))
	b = codec.AppendString(b, r.Function)
	b = codec.AppendString(b, r.Key)
	b = codec.AppendString(b, r.Owner)
	b = binary.AppendVarint(b, int64(r.Priority))
	b = binary.AppendUvarint(b, uint64(r.Attempt))
	b = binary.AppendUvarint(b, uint64(r.MaxAttempts))
	for _, t := range []time.Time{r.CreatedAt, r.RunAt, r.StartedAt, r.FinishedAt} {
		b = appendStamp(b, t)
	}
	b = codec.AppendString(b, r.LastToken)
	b = codec.AppendString(b, r.LockID)
	b = codec.AppendString(b, r.Error)
	if flags&hasMore != 0 {
		b = append(b, byte(r.Place))
		for _, s := range []string{r.Traceparent, r.Event, r.ConcurrencyKey, r.Batch, r.After} {
			b = codec.AppendString(b, s)
		}
		b = appendStamp(b, r.FreedAt)
		b = appendStamp(b, r.ExpiresAt)
		b = binary.AppendUvarint(b, uint64(r.Timeout/time.Microsecond))
		b = appendErrors(b, r.Errors)
	}
	switch r.State {
	case Replayed:
		b = codec.AppendString(b, r.ReplayedAs)
	case Active:
		b = append(b, r.slots)
		b = codec.AppendString(b, r.Lease.Worker)
		b = codec.AppendString(b, r.Lease.Token)
		b = appendStamp(b, r.Lease.Begun)
		b = appendStamp(b, r.Lease.Until)
		b = appendStamp(b, r.Lease.Deadline)
		b = binary.AppendUvarint(b, uint64(r.Lease.Duration/time.Microsecond))
	}
	if r.Dedup != nil {
		strategy := byte(r.Dedup.Strategy) << 1
		if r.Dedup.RescheduleOnce {
			strategy |= 1
		}
		b = append(b, strategy)
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
	flags := d.Byte()
	r.CancelRequested, r.DeadIfExpired, r.Duplicates = flags&isCancelRequested != 0, flags&isDeadIfExpired != 0, flags&hasDuplicates != 0
	r.State = State(d.Byte())
	r.Function, r.Key, r.Owner = d.String(), d.String(), d.String()
	r.Priority = int(d.Varint())
	r.Attempt = int(d.Uvarint())
	r.MaxAttempts = int(d.Uvarint())
	r.CreatedAt, r.RunAt, r.StartedAt, r.FinishedAt = d.stamp(), d.stamp(), d.stamp(), d.stamp()
	r.LastToken, r.LockID, r.Error = d.String(), d.String(), d.String()
	if flags&hasMore != 0 {
		r.Place = int(d.Byte())
		r.Traceparent, r.Event, r.ConcurrencyKey, r.Batch, r.After = d.String(), d.String(), d.String(), d.String(), d.String()
		r.FreedAt, r.ExpiresAt, r.Timeout, r.Errors = d.stamp(), d.stamp(), d.duration(), d.errors()
		if Traceparent(r.Traceparent) != r.Traceparent || r.Event != "" && CheckName("", r.Event) != nil || checkKey("", r.ConcurrencyKey, 0) != nil ||
			r.Batch != "" && CheckID("", r.Batch) != nil || r.After != "" && CheckID("", r.After) != nil {
			d.fail()
		}
	}
	switch r.State {
	case Replayed:
		if r.ReplayedAs = d.String(); CheckID("", r.ReplayedAs) != nil {
			d.fail()
		}
	case Active:
		if r.slots = d.Byte(); r.slots > slotFunction|slotKey || r.slots&slotKey != 0 && r.ConcurrencyKey == "" {
			d.fail()
		}
		r.Lease = &Lease{Worker: d.String(), Token: d.String(), Begun: d.stamp(), Until: d.stamp(), Deadline: d.stamp(), Duration: d.duration()}
	}
	if flags&hasDedup != 0 {
		strategy := d.Byte()
		r.Dedup = &Dedup{Strategy: Strategy(strategy >> 1), Key: d.String(), TTL: d.duration(), RescheduleOnce: strategy&1 != 0}
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
	if d.Err() == nil && (len(d.Rest()) != 0 || r.State < Scheduled || r.State > Expired ||
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
	return d.Byte()&(hasPayloadBlob|hasDedup) == 0 && d.Err() == nil
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
