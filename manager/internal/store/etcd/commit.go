package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
	// opBytes is more than an operation takes besides its keys and value.
	opBytes = 32
)

// group is what belongs together in a commit: the comparison and the changes of a record.
type group struct {
	cmps []*pb.Compare
	ops  []*pb.RequestOp
}

// change is a record and its value as etcd will store it.
type change struct {
	r              *overlay.Record
	added, removed []store.Entry
	encoded        []byte
	parts          string // where a large value is
}

// commit writes in one transaction of etcd, on the condition that nothing has changed that the function read. A
// transaction without writes needs no check: all of its reads were of one state.
func (t *tx) commit() (err error) {
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
	c, err := t.call(t.groups(changes))
	if err != nil {
		return err
	}
	if puts {
		return t.commitNoted(c, changes)
	}
	// etcd takes deletions even without space, but no note with them.
	t.sent = true
	ok, err := t.s.send(t.ctx, c)
	t.s.recent.add(t.wrote(changes), 0) // nothing remains of them
	if err == nil && !ok {
		return errChanged
	}
	return t.s.final(t.ctx, err)
}

// addedBy reports to the fronts what a commit may have added.
func (s *Store) addedBy(changes []change) {
	for _, c := range changes {
		for _, e := range c.added {
			prefix := s.indexKey(c.r.Collection, e.Index)
			s.fronts.Added(prefix, prefix+member.Join(e.SortKey, c.r.Key))
		}
	}
}

// commitNoted continues when its caller leaves: the note can be used again only when its state is known.
func (t *tx) commitNoted(c *call, changes []change) error {
	s := t.s
	note, number, err := s.notes.take(t.ctx)
	if err != nil {
		return s.final(t.ctx, err)
	}
	topics, written := t.Topics(), t.wrote(changes)
	c.note(note, number, topics)
	done := make(chan error, 1)
	t.sent = true
	s.work.Go(func() {
		revision, err := s.commit(note, number, c)
		s.addedBy(changes) // before anybody looks for them
		if err == nil {
			s.recent.add(written, revision)
			for _, topic := range topics {
				s.hub.Notify(topic) // at once for this process
			}
		}
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}

// commit returns once it knows whether the call happened and at which revision, or knows that it cannot find out.
func (s *Store) commit(note *note, number uint64, c *call) (revision int64, err error) {
	ok, err := s.send(s.life, c)
	if err == nil {
		ok = s.notes.judge(note, c, number)
	}
	if errors.Is(err, rpctypes.ErrNoSpace) { // also the answer to the change with which the quota ends
		happened, lerr := s.notes.look(s.life, note, number)
		if lerr != nil {
			return 0, lerr
		}
		if happened {
			ok, err = true, nil
		}
	}
	if passing(err) { // perhaps it happened
		if ok, err = s.notes.settle(s.life, note, number); err != nil {
			return 0, s.final(s.life, err)
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.notes.lost(note.session)
		return 0, errChanged
	}
	revision = note.rev
	s.notes.give(note)
	switch {
	case err != nil:
		return 0, s.final(s.life, err)
	case !ok:
		return 0, errChanged
	}
	return revision, nil
}

// encode encodes what is written. If that is too much for one request, the largest values go into parts first. Nothing
// refers to the parts before the commit, and the lease removes them unless it happens.
func (t *tx) encode(writes []*overlay.Record) ([]change, error) {
	now := t.Now()
	changes := make([]change, len(writes))
	size := 0
	for i, r := range writes {
		changes[i] = change{r: r, added: r.Added(), removed: r.Removed()}
		for _, entries := range [...][]store.Entry{changes[i].added, changes[i].removed} {
			for _, e := range entries {
				size += len(t.s.prefix) + len(r.Collection) + len(e.Index) + len(member.Escape(e.SortKey)) + len(r.Key) + opBytes
			}
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
		part := value[i*partBytes : min((i+1)*partBytes, len(value))]
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
// part, and the committed value, would expire with this manager's session.
func (s *Store) putPart(ctx context.Context, key string, part []byte, lease clientv3.LeaseID) error {
	return s.persist(ctx, func(ctx context.Context) error {
		_, err := s.txn(ctx, []*pb.Compare{same(key, 0)}, []*pb.RequestOp{putLeased([]byte(key), part, lease)}, nil)
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
			groups = append(groups, group{cmps: []*pb.Compare{same(t.s.recordKey(r.Collection, r.Key), r.Version)}})
		}
	}
	return groups
}

func (t *tx) group(c change) group {
	r, s := c.r, t.s
	key := s.recordKey(r.Collection, r.Key)
	g := group{cmps: []*pb.Compare{same(key, r.Version)}} // a record that is absent has revision 0
	if old := t.parts[store.ID{Collection: r.Collection, Key: r.Key}]; old != "" {
		g.ops = append(g.ops, removeRange([]byte(s.partsKey()+old), prefixEnd(s.partsKey()+old)))
	}
	for _, e := range c.removed {
		g.ops = append(g.ops, remove(s.entryKey(r.Collection, e, r.Key)))
	}
	if !r.Present {
		g.ops = append(g.ops, remove([]byte(key)))
		return g
	}
	g.ops = append(g.ops, put([]byte(key), c.encoded))
	for _, e := range c.added {
		g.ops = append(g.ops, put(s.entryKey(r.Collection, e, r.Key), nil))
	}
	if c.parts != "" {
		for i := 0; i*partBytes < len(r.Value); i++ {
			// The same value without a lease. It fails, and the commit with it, if the part is gone.
			g.ops = append(g.ops, keep(s.partKey(c.parts, i)))
		}
	}
	return g
}

// call returns the call that makes the changes of the groups. A call shares requests unless it has conditions inside: etcd
// would refuse the whole request with it, and there is no room around it.
func (t *tx) call(groups []group) (*call, error) {
	c := &call{size: t.size}
	for _, g := range groups {
		c.cmps, c.ops = append(c.cmps, g.cmps...), append(c.ops, g.ops...)
	}
	within := maxOps - maxLarge - (len(c.cmps) + 1) // the note is one more
	switch {
	case max(len(c.cmps), len(c.ops)) <= groupedOps && t.size <= groupedBytes:
		c.keys, c.beside = t.keys(), maxGrouped
	case within >= leastWithin && len(c.ops) <= len(c.cmps)*within && t.size <= largeBytes:
		// The transactions inside compare nothing, so they always happen.
		var ops []*pb.RequestOp
		for chunk := range slices.Chunk(c.ops, within) {
			ops = append(ops, inside(nil, chunk, nil))
		}
		c.ops, c.keys, c.beside = ops, t.keys(), maxLarge
	default:
		all, err := pack(groups, t.s.refuse())
		if err != nil {
			return nil, err
		}
		c.cmps, c.ops = all.cmps, all.ops
	}
	return c, nil
}

// note adds that the call replaces the note, on the condition that this is as its last commit left it.
func (c *call) note(n *note, number uint64, topics []string) {
	c.cmps = append([]*pb.Compare{same(n.key, n.rev)}, c.cmps...)
	c.ops = append([]*pb.RequestOp{putLeased([]byte(n.key), appendNote(number, topics), n.session.lease)}, c.ops...)
	c.otherwise = []*pb.RequestOp{getKey(n.key)}
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
func (s *Store) refuse() *pb.RequestOp {
	return get(&pb.RangeRequest{Key: []byte(s.clockKey()), Revision: math.MaxInt64})
}

// pack puts the groups into transactions inside the one, and those into others where there are too many. It returns what
// the outermost one has.
func pack(groups []group, refuse *pb.RequestOp) (group, error) {
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
		for chunk := range slices.Chunk(packed, maxGroups) {
			var g group
			for _, in := range chunk {
				g.ops = append(g.ops, inside(in.cmps, in.ops, []*pb.RequestOp{refuse}))
			}
			outer = append(outer, g)
		}
		packed = outer
	}
	return packed[0], nil
}
