package downtime

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection has two records: the last beat and, during an extension, its plan.
const (
	beatKey = "beat"
	planKey = "plan"
)

// Collection is where both are, for tools that read a store from outside.
const Collection store.Collection = "downtime"

// Both begin with a version. A time is in Unix nanoseconds, 0 for none:
//
//	beat := version(1) varint(time)
//	plan := version(1) varint(from) varint(to) uvarint(stage) uvarint(len(sort key)) sort key record key
const recordVersion = 1

// plan is an extension that is in progress or still to do.
type plan struct {
	away store.Away
	// stage is the index in Store.opts.Leases of the leases that are being extended.
	stage int
	// done is the position in their index after which all leases are extended, and up to which none is; zero before
	// the first.
	done store.Hit
}

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixNano())
}

func putBeat(tx store.Tx, at time.Time) error {
	return replace(tx, beatKey, appendTime([]byte{recordVersion}, at))
}

// getBeat returns the zero time when there is no beat or it cannot be read.
func getBeat(tx store.Tx) (time.Time, error) {
	return read(tx, beatKey, (*decoder).time)
}

func (p *plan) put(tx store.Tx) error {
	b := appendTime(appendTime([]byte{recordVersion}, p.away.From), p.away.To)
	b = binary.AppendUvarint(b, uint64(p.stage))
	b = append(codec.AppendString(b, p.done.SortKey), p.done.Key...)
	return replace(tx, planKey, b)
}

// getPlan returns nil when there is no plan. A plan that cannot be read counts as none: the new plan extends some
// leases twice at worst.
func getPlan(tx store.Tx) (*plan, error) {
	return read(tx, planKey, func(d *decoder) *plan {
		p := &plan{away: store.Away{From: d.time(), To: d.time()}, stage: int(d.Uvarint() & 0xff)}
		p.done = store.Hit{SortKey: d.String(), Key: string(d.Rest())}
		return p
	})
}

// read returns the zero value for a record that is absent or cannot be read.
func read[T any](tx store.Tx, key string, decode func(*decoder) T) (none T, err error) {
	b, err := tx.Get(Collection, key)
	if unknown(err) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	d := decoder{codec.NewReader(b)}
	version := d.Byte()
	if v := decode(&d); version == recordVersion && d.Err() == nil {
		return v, nil
	}
	return none, nil
}

// replace writes a record, even over one that the engine cannot read: both records can be made again, and a manager must
// be able to start.
func replace(tx store.Tx, key string, b []byte) error {
	if _, err := tx.Get(Collection, key); errors.Is(err, store.ErrUnreadable) {
		if err := tx.Delete(Collection, key); err != nil {
			return err
		}
	}
	return tx.Put(Collection, key, b)
}

func unknown(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable)
}

// decoder reads a record.
type decoder struct{ codec.Reader }

func (d *decoder) time() time.Time {
	v := d.Varint()
	if v == 0 {
		return time.Time{}
	}
	return time.Unix(0, v)
}
