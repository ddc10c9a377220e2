package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
)

// etcd's default limits, which this engine keeps to.
const (
	// maxOps is etcd's --max-txn-ops: comparisons, and operations, of a transaction together with one inside it.
	maxOps = 128
	// maxGroups bounds the transactions inside one. Two levels of them leave groupOps for the innermost.
	maxGroups = 24
	groupOps  = maxOps - 2*maxGroups - 4
	// maxRequest keeps away from --max-request-bytes, which is 1.5 MiB.
	maxRequest = 1 << 20
	// partBytes is the size of the parts of large values, and leastParts that of the smallest value kept in parts.
	partBytes  = 1 << 20
	leastParts = 16 << 10
	// opBytes is more than an operation takes beside its keys and value.
	opBytes = 32
)

// group is what belongs together in a commit: the comparison and the changes of a record.
type group struct {
	cmps []clientv3.Cmp
	ops  []clientv3.Op
}

// change is a record and its value as etcd will store it.
type change struct {
	r       *overlay.Record
	encoded []byte
	parts   string // where a large value is
}

func same(key string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", rev)
}

// commit writes in one transaction of etcd, on the condition that nothing has changed that the function read. A
// transaction without writes needs no check: all of its reads were of one state.
func (t *tx) commit() error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	if t.run > 0 { // the first run assumes that records are absent which it writes without having read them
		if err := t.LoadAssumed(); err != nil {
			return err
		}
	}
	writes := t.Writes()
	if len(writes) == 0 && len(t.Topics()) == 0 {
		return nil
	}
	puts := len(t.Topics()) > 0
	for _, r := range writes {
		puts = puts || r.Present
	}
	changes, err := t.encode(writes)
	if err != nil {
		return err
	}
	defer func() {
		if errors.Is(err, errChanged) || errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrNoSpace) { // else it may have happened
			t.unstage()
		}
	}()
	all, err := pack(t.groups(changes), t.s.refuse())
	if err != nil {
		return err
	}
	if !puts { // etcd takes deletions even without space, but no note beside them
		ok, cerr := t.s.send(t.ctx, t.call(all))
		if err = cerr; err == nil && !ok {
			err = errChanged
		}
		err = t.s.final(t.ctx, err)
		return err
	}
	err = t.commitNoted(all, t.inserted(changes))
	return err
}

// commitNoted goes on without a caller that leaves: the note can be used again only when its state is known.
func (t *tx) commitNoted(all group, inserted []*mvccpb.KeyValue) error {
	s := t.s
	note, number, err := s.notes.take(t.ctx)
	if err != nil {
		return s.final(t.ctx, err)
	}
	c, topics := t.call(all), t.Topics()
	c.note(note, number, topics)
	done := make(chan error, 1)
	s.commits.Go(func() { done <- s.commit(note, number, c, topics, inserted) })
	select {
	case err := <-done:
		return err
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}

// commit returns when it is known whether the call happened, or that this cannot be known.
func (s *Store) commit(note *note, number uint64, c *call, topics []string, inserted []*mvccpb.KeyValue) error {
	ok, err := s.send(s.life, c)
	if err == nil {
		ok = s.notes.judge(note, c, number)
	}
	if errors.Is(err, rpctypes.ErrNoSpace) { // also the answer to the change with which the quota ends
		happened, lerr := s.notes.look(s.life, note, number)
		if lerr != nil {
			return lerr
		}
		if happened {
			ok, err = true, nil
		}
	}
	if passing(err) { // perhaps it happened
		if ok, err = s.notes.settle(s.life, note, number); err != nil {
			return s.final(s.life, err)
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.notes.lost(note.session)
		return errChanged
	}
	revision := note.rev
	s.notes.give(note)
	switch {
	case err != nil:
		return s.final(s.life, err)
	case !ok:
		return errChanged
	}
	s.recent.add(inserted, revision)
	for _, topic := range topics {
		s.events.hub.Notify(topic) // at once for this process
	}
	return nil
}

// encode encodes what is written. If that is too much for one request, the largest values go into parts first. Nothing
// refers to the parts before the commit, and the lease removes them unless it happens.
func (t *tx) encode(writes []*overlay.Record) ([]change, error) {
	now := t.Now()
	changes := make([]change, len(writes))
	size := 0
	for i, r := range writes {
		changes[i].r = r
		for _, e := range append(r.Added(), r.Removed()...) {
			size += len(t.s.prefix) + len(r.Collection) + len(e.Index) + len(member.Escape(e.SortKey)) + len(r.Key) + opBytes
		}
		size += 2 * (len(t.s.recordKey(r.Collection, r.Key)) + opBytes)
		if r.Present {
			changes[i].encoded = encode(now, r, "")
			size += len(changes[i].encoded)
		}
	}
	for _, r := range t.Records() {
		if !r.Written {
			size += len(t.s.recordKey(r.Collection, r.Key)) + opBytes
		}
	}
	for _, topic := range t.Topics() {
		size += len(topic) + 4
	}
	t.size = size
	if size <= maxRequest {
		return changes, nil
	}
	bySize := make([]*change, 0, len(changes))
	for i := range changes {
		if len(changes[i].r.Value) >= leastParts {
			bySize = append(bySize, &changes[i])
		}
	}
	slices.SortFunc(bySize, func(a, b *change) int { return len(b.r.Value) - len(a.r.Value) })
	split := 0
	for ; size > maxRequest && split < len(bySize); split++ {
		size -= len(bySize[split].r.Value) - 200
	}
	if size > maxRequest {
		return nil, &store.LimitError{What: "bytes of a transaction's keys, index entries and small values", Value: size, Allowed: maxRequest}
	}
	for _, c := range bySize[:split] {
		parts, err := t.stage(c.r.Value)
		if err != nil {
			t.unstage()
			return nil, err
		}
		c.parts, c.encoded = parts, encode(now, c.r, parts)
	}
	return changes, nil
}

// stage writes the parts of a value and returns the suffix of their keys.
func (t *tx) stage(value []byte) (string, error) {
	ses, err := t.s.notes.current(t.ctx)
	if err != nil {
		return "", t.s.final(t.ctx, err)
	}
	parts := ses.name + "-" + strconv.FormatUint(t.s.notes.number(), 10) + "/"
	t.staged = append(t.staged, parts)
	for i := 0; i*partBytes < len(value); i++ {
		part := string(value[i*partBytes : min((i+1)*partBytes, len(value))])
		err := t.s.putPart(t.ctx, t.s.partKey(parts, i), part, ses.lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.s.notes.lost(ses)
			err = errChanged
		}
		if err != nil {
			return "", err
		}
	}
	return parts, nil
}

// putPart writes a part once. A request that was delayed until after the commit must change nothing: with its lease the
// part, and the committed value, would go when this manager does.
func (s *Store) putPart(ctx context.Context, key, part string, lease clientv3.LeaseID) error {
	return s.persist(ctx, func(ctx context.Context) error {
		_, err := s.c.Txn(ctx).If(same(key, 0)).Then(clientv3.OpPut(key, part, clientv3.WithLease(lease))).Commit()
		return err
	})
}

func (s *Store) partKey(parts string, i int) string {
	return s.partsKey() + parts + fmt.Sprintf("%02d", i)
}

// unstage removes parts to which nothing refers. If it fails, the lease does it.
func (t *tx) unstage() {
	for _, parts := range t.staged {
		_ = t.s.once(t.ctx, func(ctx context.Context) error {
			_, err := t.s.c.Delete(ctx, t.s.partsKey()+parts, clientv3.WithPrefix())
			return err
		})
	}
	t.staged = nil
}

// groups returns the comparisons of all records and the operations of those that change.
func (t *tx) groups(changes []change) []group {
	groups := make([]group, 0, len(changes))
	for _, c := range changes {
		groups = append(groups, t.group(c))
	}
	for _, r := range t.Records() {
		if !r.Written || !r.Stored && !r.Present {
			groups = append(groups, group{cmps: []clientv3.Cmp{same(t.s.recordKey(r.Collection, r.Key), r.Version)}})
		}
	}
	return groups
}

func (t *tx) group(c change) group {
	r, s := c.r, t.s
	key := s.recordKey(r.Collection, r.Key)
	g := group{cmps: []clientv3.Cmp{same(key, r.Version)}} // a record that is absent has revision 0
	if old := t.parts[store.ID{Collection: r.Collection, Key: r.Key}]; old != "" {
		g.ops = append(g.ops, clientv3.OpDelete(s.partsKey()+old, clientv3.WithPrefix()))
	}
	for _, e := range r.Removed() {
		g.ops = append(g.ops, clientv3.OpDelete(s.indexKey(r.Collection, e.Index)+member.Join(e.SortKey, r.Key)))
	}
	if !r.Present {
		g.ops = append(g.ops, clientv3.OpDelete(key))
		return g
	}
	g.ops = append(g.ops, clientv3.OpPut(key, string(c.encoded)))
	for _, e := range r.Added() {
		g.ops = append(g.ops, clientv3.OpPut(s.indexKey(r.Collection, e.Index)+member.Join(e.SortKey, r.Key), ""))
	}
	if c.parts != "" {
		for i := 0; i*partBytes < len(r.Value); i++ {
			// The same value without a lease. It fails, and the commit with it, if the part is gone.
			g.ops = append(g.ops, clientv3.OpPut(s.partKey(c.parts, i), "", clientv3.WithIgnoreValue()))
		}
	}
	return g
}

// call returns the call that makes the changes. Small ones share requests. One that has transactions inside does not:
// etcd would refuse the whole request with it, and there is no room around it.
func (t *tx) call(all group) *call {
	c := &call{cmps: all.cmps, ops: all.ops, size: t.size}
	if !slices.ContainsFunc(all.ops, clientv3.Op.IsTxn) && max(len(all.cmps), len(all.ops)) <= groupedOps && t.size <= groupedBytes {
		c.keys = t.keys()
	}
	return c
}

// note adds that the call replaces the note, on the condition that this is as its last commit left it.
func (c *call) note(n *note, number uint64, topics []string) {
	c.cmps = append([]clientv3.Cmp{same(n.key, n.rev)}, c.cmps...)
	c.ops = append([]clientv3.Op{clientv3.OpPut(n.key, string(appendNote(number, topics)), clientv3.WithLease(n.session.lease))}, c.ops...)
	c.otherwise = []clientv3.Op{clientv3.OpGet(n.key)}
}

// send sends a call once. ok is false when a comparison failed. The call's result must not be read after an error.
func (s *Store) send(ctx context.Context, c *call) (ok bool, err error) {
	err = s.once(ctx, func(ctx context.Context) error {
		if len(c.otherwise) == 0 || c.keys == nil {
			return s.writeOne(ctx, c)
		}
		return s.writes.do(ctx, c)
	})
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev), errors.Is(err, rpctypes.ErrKeyNotFound):
		return false, nil // refuse, or a part is gone
	case err != nil:
		return false, err
	}
	return c.ok, nil
}

// keys returns the records of the transaction by their keys in etcd, and whether it changes them.
func (t *tx) keys() map[string]bool {
	keys := make(map[string]bool)
	for _, r := range t.Records() {
		keys[t.s.recordKey(r.Collection, r.Key)] = r.Written
	}
	return keys
}

// refuse makes etcd refuse a whole transaction before it changes anything, because no such revision exists. The key is one
// that the user may read.
func (s *Store) refuse() clientv3.Op {
	return clientv3.OpGet(s.clockKey(), clientv3.WithRev(math.MaxInt64))
}

// pack puts the groups into transactions inside the one, and those into others where there are too many. It returns what
// the outermost one has.
func pack(groups []group, refuse clientv3.Op) (group, error) {
	cmps, ops := 0, 0
	for _, g := range groups {
		cmps, ops = cmps+len(g.cmps), ops+len(g.ops)
	}
	limit := groupOps
	if max(cmps, ops) < maxOps {
		limit = maxOps - 1 // the note is the last one
	}
	packed := []group{{}}
	for _, g := range groups {
		last := &packed[len(packed)-1]
		if len(last.cmps)+len(g.cmps) > limit || len(last.ops)+len(g.ops) > limit {
			packed = append(packed, group{})
			last = &packed[len(packed)-1]
		}
		last.cmps, last.ops = append(last.cmps, g.cmps...), append(last.ops, g.ops...)
	}
	if len(packed) > maxGroups*maxGroups {
		return group{}, &store.LimitError{What: "records and index entries that a transaction reads and changes", Value: max(cmps, ops), Allowed: maxGroups * maxGroups * groupOps}
	}
	for len(packed) > 1 {
		var outer []group
		for inside := range slices.Chunk(packed, maxGroups) {
			var g group
			for _, in := range inside {
				g.ops = append(g.ops, clientv3.OpTxn(in.cmps, in.ops, []clientv3.Op{refuse}))
			}
			outer = append(outer, g)
		}
		packed = outer
	}
	return packed[0], nil
}
