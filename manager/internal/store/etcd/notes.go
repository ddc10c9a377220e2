package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// leaseSeconds is how long etcd keeps the notes of a manager that is gone, and the parts of values whose transactions
// never ended.
const leaseSeconds = 600

// notes are the keys to which this manager's commits write. Each commit takes one key, compares its revision, and
// replaces its value with the commit's number and the topics to notify. So the watch of this key's prefix wakes the
// other managers, and a commit whose answer is lost can be settled: either its number is there, or a fence
// replaces it, and then the commit can never happen any more.
type notes struct {
	s *Store

	renewing chan struct{} // has a value while a call asks for a session

	mu      sync.Mutex
	session *session
	free    []*note
	commits uint64
	err     error     // why no session could be made
	failed  time.Time // when
}

// session is the lease of a manager, and a name that no other manager has.
type session struct {
	name  string
	lease clientv3.LeaseID
	dead  chan struct{} // closed when the lease cannot be renewed any more
	notes int           // how many there are
}

// note is a key that only one commit uses at a time.
type note struct {
	key     string
	rev     int64 // of its last change, 0 before the first
	session *session
}

// begin makes the first session. An etcd without space grants no lease; then only what has expired can be removed.
func (n *notes) begin(ctx context.Context) error {
	_, err := n.current(ctx)
	if errors.Is(err, store.ErrNoSpace) {
		n.s.log.Error("etcd has no space: only deletions are possible", "prefix", n.s.prefix)
		return nil
	}
	return err
}

// alive returns the live session; nil when there is none.
func (n *notes) alive() *session {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session != nil {
		select {
		case <-n.session.dead:
		default:
			return n.session
		}
	}
	return nil
}

// current returns the live session, or makes one. Concurrent calls wait for the first of them that makes one,
// and not past the end of their contexts; if it fails, they fail with it.
func (n *notes) current(ctx context.Context) (*session, error) {
	if ses := n.alive(); ses != nil {
		return ses, nil
	}
	came := time.Now()
	select {
	case n.renewing <- struct{}{}:
		defer func() { <-n.renewing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if ses := n.alive(); ses != nil {
		return ses, nil
	}
	n.mu.Lock()
	failed, err := n.failed, n.err
	n.mu.Unlock()
	if failed.After(came) {
		return nil, err
	}
	ses, err := n.renew(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.session, n.free = ses, nil
	case ctx.Err() == nil: // else it is this call's own end
		n.err, n.failed = err, time.Now()
	}
	return ses, err
}

// renew makes a session.
func (n *notes) renew(ctx context.Context) (*session, error) {
	ses := &session{name: rand.Text(), dead: make(chan struct{})}
	err := n.s.persist(ctx, func(ctx context.Context) error {
		resp, err := n.s.c.Grant(ctx, leaseSeconds)
		if err == nil {
			ses.lease = resp.ID
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	alive, err := n.s.c.KeepAlive(n.s.c.Ctx(), ses.lease)
	if err != nil {
		return nil, unavailable(err)
	}
	go func() { // ends with the lease or the client
		for range alive {
		}
		close(ses.dead)
	}()
	return ses, nil
}

// take returns a note and the number of a commit.
func (n *notes) take(ctx context.Context) (*note, uint64, error) {
	ses, err := n.current(ctx)
	if err != nil {
		return nil, 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.commits++
	if last := len(n.free) - 1; last >= 0 && ses == n.session {
		note := n.free[last]
		n.free = n.free[:last]
		return note, n.commits, nil
	}
	ses.notes++
	return &note{key: n.s.eventsKey() + ses.name + "/" + strconv.Itoa(ses.notes), session: ses}, n.commits, nil
}

// give returns a note whose state is known.
func (n *notes) give(note *note) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if note.session == n.session {
		n.free = append(n.free, note)
	}
}

// judge takes the answer to the commit with a number, and reports whether it happened.
func (n *notes) judge(note *note, c *call, number uint64) bool {
	if c.ok {
		note.rev = c.revision
		return true
	}
	if len(c.responses) == 0 { // it was refused as a whole
		return false
	}
	// If the client library sent the request twice, the first one happened.
	return n.seen(note, c.responses[0].GetResponseRange().Kvs, number)
}

// look reads whether a commit that has ended happened.
func (n *notes) look(ctx context.Context, note *note, number uint64) (happened bool, err error) {
	resp, err := n.s.get(ctx, note.key)
	return err == nil && n.seen(note, resp.Kvs, number), err
}

// seen takes what etcd has of a note, and reports whether it is of the commit with the number.
func (n *notes) seen(note *note, kvs []*mvccpb.KeyValue, number uint64) bool {
	if len(kvs) == 0 {
		if note.rev > 0 { // its lease is gone
			n.lost(note.session)
		}
		return false
	}
	note.rev = kvs[0].ModRevision // an etcd that was restored may have an older one
	found, _, _ := splitNote(kvs[0].Value)
	return found == number
}

// lost ends a session whose lease etcd does not know any more.
func (n *notes) lost(ses *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == ses {
		n.session, n.free = nil, nil
	}
}

// number of a commit, for names that no other has.
func (n *notes) number() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.commits++
	return n.commits
}

// close lets etcd forget the notes.
func (n *notes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = n.s.c.Revoke(ctx, n.session.lease) // else it runs out
}

// settle finds out whether a commit with a lost answer happened. If it did not, settle makes sure that it never will.
func (n *notes) settle(ctx context.Context, note *note, number uint64) (happened bool, err error) {
	fence := n.number()
	var resp *pb.TxnResponse
	err = n.s.persist(ctx, func(ctx context.Context) (err error) {
		resp, err = n.s.txn(ctx, []*pb.Compare{same(note.key, note.rev)},
			[]*pb.RequestOp{putLeased([]byte(note.key), appendNote(fence, nil), note.session.lease)}, []*pb.RequestOp{getKey(note.key)})
		return err
	})
	if err != nil {
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			n.lost(note.session)
		}
		return false, fmt.Errorf("%w: %v", store.ErrUnavailable, err) // also without space
	}
	if resp.Succeeded {
		note.rev = resp.Header.Revision
		return false, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 { // the lease ran out
		n.lost(note.session)
		return false, errUnsettled
	}
	note.rev = kvs[0].ModRevision
	switch found, _, ok := splitNote(kvs[0].Value); {
	case ok && found == number:
		return true, nil
	case ok && found == fence: // an earlier attempt of this fence, whose answer was lost
		return false, nil
	}
	return false, errUnsettled
}

var errUnsettled = fmt.Errorf("%w: the note of a commit is gone", store.ErrUnavailable)

// A note is version(1) uvarint(number) (uvarint(length) topic)*.
const noteVersion = 1

func appendNote(number uint64, topics []string) []byte {
	b := binary.AppendUvarint([]byte{noteVersion}, number)
	for _, t := range topics {
		b = codec.AppendString(b, t)
	}
	return b
}

func splitNote(b []byte) (number uint64, topics []string, ok bool) {
	r := codec.NewReader(b)
	version, number := r.Byte(), r.Uvarint()
	for len(r.Rest()) > 0 {
		topics = append(topics, r.String())
	}
	if version != noteVersion || r.Err() != nil {
		return 0, nil, false
	}
	return number, topics, true
}
