package downtime

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// collection has two records: the last beat and, during an extension, its plan.
const (
	beatKey = "beat"
	planKey = "plan"
)

const collection store.Collection = "downtime"

// Collection is where both are, for tools that read a store from outside.
const Collection = collection

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
	b, err := tx.Get(collection, beatKey)
	if unknown(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	d := open(b)
	at := d.time()
	if d.Err() != nil {
		return time.Time{}, nil
	}
	return at, nil
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
	b, err := tx.Get(collection, planKey)
	if unknown(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := open(b)
	p := &plan{away: store.Away{From: d.time(), To: d.time()}, stage: int(d.Uvarint() & 0xff)}
	p.done = store.Hit{SortKey: d.String(), Key: string(d.Rest())}
	if d.Err() != nil {
		return nil, nil
	}
	return p, nil
}

// replace writes a record, even over one that the engine cannot read: both records can be made again, and a manager must
// be able to start.
func replace(tx store.Tx, key string, b []byte) error {
	if _, err := tx.Get(collection, key); errors.Is(err, store.ErrUnreadable) {
		if err := tx.Delete(collection, key); err != nil {
			return err
		}
	}
	return tx.Put(collection, key, b)
}

func unknown(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable)
}

// decoder reads a record.
type decoder struct{ codec.Reader }

// open returns a decoder of what follows the version.
func open(b []byte) decoder {
	d := decoder{codec.NewReader(b)}
	if d.Byte() != recordVersion {
		d.Fail(codec.ErrShort)
	}
	return d
}

func (d *decoder) time() time.Time {
	v := d.Varint()
	if v == 0 {
		return time.Time{}
	}
	return time.Unix(0, v)
}
