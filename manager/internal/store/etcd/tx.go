package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/front"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
	"github.com/oncegate/oncegate/manager/internal/store/internal/reccodec"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
)

// errChanged makes the function run again.
var errChanged = errors.New("etcd store: what the transaction read has changed")

// maxReads bounds the records of one request.
const maxReads = 100

type tx struct {
	overlay.Tx
	s   *Store
	ctx context.Context
	run int

	rev     int64     // all reads see the state of this revision; 0 before the first
	now     time.Time // what Now returned first, and Wall
	wall    time.Time
	claimed remote.Claimer
	asked   bool                // for what was read ahead
	taken   []*overlay.Record   // by a claim that asked
	next    *upcoming           // what it read ahead
	mark    front.Mark          // before rev was fixed
	parts   map[store.ID]string // where the parts of stored large values are
	staged  []string            // where this transaction wrote parts
	size    int                 // bytes of the request that commits, set by encode
	sent    bool                // the commit was sent, so it may have happened

	guessed  bool // a record was not read, see prefetch
	remember bool // the records that the commit inserts
}

func (s *Store) newTx(ctx context.Context, run int, readOnly bool) *tx {
	t := &tx{s: s, ctx: ctx, run: run, mark: s.fronts.Mark()}
	t.ReadOnly, t.Load, t.LoadMany, t.Assume = readOnly, t.load, t.loadMany, true
	return t
}

// Now implements store.Tx. It is never before the Now of a transaction that wrote a record that this one reads.
func (t *tx) Now() time.Time {
	if t.now.IsZero() {
		t.now, t.wall = t.s.clock.times()
	}
	return t.now
}

// Wall implements store.Tx.
func (t *tx) Wall() time.Time {
	t.Now()
	return t.wall
}

// read sends a request at the transaction's revision, or fixes the revision. Any member may answer for a fixed revision:
// what it has of that never changes, and without it it says so. Then a quorum is asked.
func (t *tx) read(ops ...*pb.RequestOp) ([]*pb.ResponseOp, error) {
	if t.Err != nil {
		return nil, t.Err
	}
	var c *call
	anyMember := t.rev > 0
	err := t.s.persist(t.ctx, func(ctx context.Context) error {
		if anyMember {
			c = &call{ops: serializable(ops), size: len(ops)}
			if err := t.s.fixed.do(ctx, c); !errors.Is(err, rpctypes.ErrFutureRev) {
				return err
			}
			anyMember = false
		}
		c = &call{ops: ops, size: len(ops)}
		return t.s.reads.do(ctx, c)
	})
	if err != nil {
		return nil, t.Fail(err)
	}
	if t.rev == 0 {
		t.rev = c.revision
	}
	return c.responses, nil
}

// serializable returns the reads for any member.
func serializable(ops []*pb.RequestOp) []*pb.RequestOp {
	out := make([]*pb.RequestOp, len(ops))
	for i, op := range ops {
		r := *op.GetRequestRange()
		r.Serializable = true
		out[i] = get(&r)
	}
	return out
}

func (t *tx) load(r *overlay.Record) error { return t.loadMany([]*overlay.Record{r}) }

func (t *tx) loadMany(records []*overlay.Record) error {
	found, err := t.fetch(records)
	if err != nil {
		return err
	}
	return t.fillAll(records, found)
}

// fetch reads what etcd has of the records; nil for an absent one.
func (t *tx) fetch(records []*overlay.Record) ([]*mvccpb.KeyValue, error) {
	found := make([]*mvccpb.KeyValue, 0, len(records))
	for chunk := range slices.Chunk(records, maxReads) {
		resp, err := t.read(t.gets(chunk)...)
		if err != nil {
			return nil, err
		}
		found = append(found, firsts(resp)...)
	}
	return found, nil
}

// firsts are the answers to gets; nil where there is none.
func firsts(resp []*pb.ResponseOp) []*mvccpb.KeyValue {
	found := make([]*mvccpb.KeyValue, len(resp))
	for i, r := range resp {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			found[i] = kvs[0]
		}
	}
	return found
}

// gets are the requests for the records.
func (t *tx) gets(records []*overlay.Record) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, len(records), len(records)+1)
	for i, r := range records {
		ops[i] = get(&pb.RangeRequest{Key: []byte(t.s.recordKey(r.Collection, r.Key)), Revision: t.rev})
	}
	return ops
}

// fillAll stores what etcd has of the records in them. There may be more of it than records.
func (t *tx) fillAll(records []*overlay.Record, found []*mvccpb.KeyValue) error {
	for i, r := range records {
		if found[i] != nil {
			if err := t.fill(r, found[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// A record's value in etcd:
//
//	version(1) varint(time) entries 0 value
//	version(1) varint(time) entries 1 uvarint(length) suffix of the key of the parts
//
// time is the Now of the transaction that wrote it, in Unix microseconds; entries are encoded by package reccodec.
const (
	recordVersion = 1
	valueInside   = 0
	valueInParts  = 1
)

func encode(now time.Time, r *overlay.Record, parts string) []byte {
	b := make([]byte, 0, len(r.Value)+64)
	b = binary.AppendVarint(append(b, recordVersion), now.UnixMicro())
	b = reccodec.Append(b, r.Entries)
	if parts == "" {
		return append(append(b, valueInside), r.Value...)
	}
	return append(binary.AppendUvarint(append(b, valueInParts), uint64(len(r.Value))), parts...)
}

// split returns the time at which a stored record was written, its entries, and what follows them. why says what is wrong
// with it, if anything.
func split(b []byte) (written time.Time, entries []store.Entry, rest []byte, why string) {
	if len(b) < 2 || b[0] != recordVersion {
		return written, nil, nil, "its format is unknown"
	}
	at, n := binary.Varint(b[1:])
	entries, rest, err := reccodec.Split(b[1+max(n, 0):])
	if n <= 0 || err != nil || len(rest) == 0 || rest[0] > valueInParts {
		return written, nil, nil, "it is malformed"
	}
	return time.UnixMicro(at), entries, rest, ""
}

// fill stores what etcd has in r.
func (t *tx) fill(r *overlay.Record, kv *mvccpb.KeyValue) error {
	r.Stored, r.Version = true, kv.ModRevision
	written, entries, rest, why := split(kv.Value)
	if why != "" {
		r.Unreadable = why
		return nil
	}
	if t.s.clock.reach(written) && !t.now.IsZero() && t.now.Before(written) {
		return errChanged // Now was too early for this record
	}
	r.StoredEntries, r.StoredValue = entries, rest[1:]
	if rest[0] == valueInParts {
		return t.fillParts(r, rest[1:])
	}
	return nil
}

func (t *tx) fillParts(r *overlay.Record, b []byte) error {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > store.MaxValueBytes || n == len(b) {
		r.Unreadable = "the reference to its value is malformed"
		return nil
	}
	parts := string(b[n:])
	if t.parts == nil {
		t.parts = make(map[store.ID]string)
	}
	t.parts[store.ID{Collection: r.Collection, Key: r.Key}] = parts
	prefix := t.s.partsKey() + parts
	resp, err := t.read(get(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: prefixEnd(prefix), Revision: t.rev}))
	if err != nil {
		return err
	}
	value := make([]byte, 0, length)
	for _, kv := range resp[0].GetResponseRange().Kvs { // in the order of their keys
		value = append(value, kv.Value...)
	}
	if uint64(len(value)) != length {
		r.Unreadable = fmt.Sprintf("%d bytes of its value are there, of %d", len(value), length)
	}
	r.StoredValue = value
	return nil
}
