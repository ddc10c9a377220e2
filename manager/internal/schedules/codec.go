package schedules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Collection has the schedules by their names.
const Collection store.Collection = "schedules"

// Indexes of Collection.
const (
	idxName = "name" // each schedule, in the order of their names
	idxNext = "next" // those that are not paused, by their next instant
)

const recordVersion = 1

// encode writes version, then the fields in the order below: texts with their length, times in microseconds since 1970 (0
// for the zero time), durations in microseconds.
func (s *Schedule) encode() []byte {
	b := make([]byte, 0, 256+len(s.Payload))
	b = append(b, recordVersion, byte(s.Missed), byte(s.Overlap), byte(s.DataCenters))
	b = codec.AppendString(b, s.Cron)
	b = codec.AppendString(b, s.TimeZone)
	b = codec.AppendString(b, s.Function)
	b = binary.AppendVarint(b, int64(s.Priority))
	b = binary.AppendUvarint(b, uint64(s.MaxAttempts))
	dead := byte(0)
	if s.DeadIfExpired {
		dead = 1
	}
	b = append(b, dead)
	b = binary.AppendUvarint(b, uint64(s.ExpiresIn/time.Microsecond))
	b = binary.AppendUvarint(b, uint64(s.Timeout/time.Microsecond))
	for _, t := range []time.Time{s.CreatedAt, s.ChangedAt, s.PausedAt, s.Next, s.Last} {
		if t.IsZero() {
			t = time.UnixMicro(0)
		}
		b = binary.AppendVarint(b, t.UnixMicro())
	}
	b = codec.AppendString(b, s.LastJob)
	b = codec.AppendString(b, s.DecidedBy)
	b = binary.AppendUvarint(b, s.MissedInstants)
	b = binary.AppendUvarint(b, s.OverlappedInstants)
	return codec.AppendString(b, s.Payload)
}

// decode is the inverse of encode. The payload aliases b. Its error is a *store.UnreadableError.
func decode(name string, b []byte) (*Schedule, error) {
	r := codec.NewReader(b)
	if v := r.Byte(); v != recordVersion && r.Err() == nil {
		r.Fail(fmt.Errorf("it has version %d, this program reads %d", v, recordVersion))
	}
	stamp := func() time.Time {
		if v := r.Varint(); v != 0 {
			return time.UnixMicro(v).UTC()
		}
		return time.Time{}
	}
	s := &Schedule{Name: name}
	s.Missed, s.Overlap, s.DataCenters = Missed(r.Byte()), Overlap(r.Byte()), DataCenters(r.Byte())
	s.Cron, s.TimeZone, s.Function = r.String(), r.String(), r.String()
	s.Priority, s.MaxAttempts = int(r.Varint()), int(r.Uvarint())
	s.DeadIfExpired = r.Byte() == 1
	s.ExpiresIn = time.Duration(r.Count(uint64(jobs.MaxDelay/time.Microsecond))) * time.Microsecond
	s.Timeout = time.Duration(r.Count(uint64(jobs.MaxLease/time.Microsecond))) * time.Microsecond
	s.CreatedAt, s.ChangedAt, s.PausedAt, s.Next, s.Last = stamp(), stamp(), stamp(), stamp(), stamp()
	s.LastJob, s.DecidedBy = r.String(), r.String()
	s.MissedInstants, s.OverlappedInstants = r.Uvarint(), r.Uvarint()
	s.Payload = r.Bytes()
	if r.Err() == nil && (len(r.Rest()) != 0 || jobs.CheckName("", name) != nil || jobs.CheckName("", s.Function) != nil ||
		s.Missed < MissedOne || s.Missed > MissedAll || s.Overlap < OverlapAllow || s.Overlap > OverlapSkip || s.DataCenters < DataCentersEach || s.DataCenters > DataCentersHome ||
		s.Priority < jobs.MinPriority || s.Priority > jobs.MaxPriority || s.MaxAttempts < 0 || s.MaxAttempts > jobs.MaxAttempts) {
		r.Fail(errors.New("it is damaged"))
	}
	if r.Err() != nil {
		return nil, unreadable(name, r.Err())
	}
	return s, nil
}

func unreadable(name string, reason error) error {
	return &store.UnreadableError{Collection: Collection, Key: name, Reason: reason.Error()}
}

// calendar reads the schedule's expression and zone. Its error is a *store.UnreadableError: another manager may know more
// time zones.
func (s *Schedule) calendar() (*calendar, error) {
	c, err := newCalendar(s.Cron, s.TimeZone)
	if err != nil {
		return nil, unreadable(s.Name, err)
	}
	return c, nil
}

// load reads a schedule. It returns nil when there is none.
func load(tx store.Tx, name string) (*Schedule, error) {
	return store.Read(tx, Collection, name, decode)
}

// find is load for a schedule that a caller named: a missing one is an error.
func find(tx store.Tx, name string) (*Schedule, error) {
	s, err := load(tx, name)
	if err == nil && s == nil {
		err = jobs.NotFound("schedule", name)
	}
	return s, err
}

func (s *Schedule) save(tx store.Tx) error {
	return tx.Put(Collection, s.Name, s.encode(), s.entries()...)
}

func (s *Schedule) entries() []store.Entry {
	entries := []store.Entry{{Index: idxName, SortKey: s.Name}}
	if !s.Next.IsZero() {
		entries = append(entries, store.Entry{Index: idxNext, SortKey: timeKey(s.Next)})
	}
	return entries
}

// timeKey makes keys that sort as the times do.
func timeKey(t time.Time) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(t.UnixMicro())))
}

// keyTime is the inverse of timeKey.
func keyTime(k string) time.Time {
	if len(k) < 8 {
		return time.Time{}
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64([]byte(k)))).UTC()
}

// Places are the indexes in which each record with index entries appears once.
func Places() []unread.Place { return []unread.Place{{Collection: Collection, Index: idxName}} }

// ReadRecord reads a record of Collection and returns its index entries. Its error is a *store.UnreadableError.
func ReadRecord(key string, value []byte) ([]store.Entry, error) {
	s, err := decode(key, value)
	if err != nil {
		return nil, err
	}
	return s.entries(), nil
}

// CheckStored reads a record of Collection. It returns nil, store.ErrNotFound, a *store.UnreadableError, or the store's
// error.
func CheckStored(tx store.Tx, key string) error {
	value, err := tx.Get(Collection, key)
	if err != nil {
		return err
	}
	s, err := decode(key, value)
	if err == nil {
		_, err = s.calendar()
	}
	return err
}
