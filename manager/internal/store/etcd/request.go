package etcd

import (
	"context"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
)

// maxMessage bounds a request to etcd, so that a larger one is etcd's to refuse.
const maxMessage = 2 << 20

// callOptions are those of the client library.
var callOptions = []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(maxMessage), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// txn sends a transaction. The client library copies each comparison and operation several times before it sends them, so
// this package makes the messages itself.
func (s *Store) txn(ctx context.Context, cmps []*pb.Compare, then, otherwise []*pb.RequestOp) (*pb.TxnResponse, error) {
	resp, err := s.kv.Txn(ctx, &pb.TxnRequest{Compare: cmps, Success: then, Failure: otherwise}, callOptions...)
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	return resp, nil
}

// same compares a key's revision, which is 0 if the key is absent.
func same(key string, rev int64) *pb.Compare {
	var m struct { // one allocation
		cmp pb.Compare
		rev pb.Compare_ModRevision
	}
	m.rev.ModRevision = rev
	m.cmp.Key, m.cmp.Target, m.cmp.Result, m.cmp.TargetUnion = []byte(key), pb.Compare_MOD, pb.Compare_EQUAL, &m.rev
	return &m.cmp
}

func put(key, value []byte) *pb.RequestOp { return putLeased(key, value, clientv3.NoLease) }

func putLeased(key, value []byte, lease clientv3.LeaseID) *pb.RequestOp {
	var m struct {
		op   pb.RequestOp
		kind pb.RequestOp_RequestPut
		put  pb.PutRequest
	}
	m.put.Key, m.put.Value, m.put.Lease = key, value, int64(lease)
	m.kind.RequestPut, m.op.Request = &m.put, &m.kind
	return &m.op
}

// keep puts a key with the value that it has, and without a lease. It fails if the key is absent.
func keep(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), IgnoreValue: true}}}
}

func get(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func getKey(key string) *pb.RequestOp { return get(&pb.RangeRequest{Key: []byte(key)}) }

func remove(key []byte) *pb.RequestOp { return removeRange(key, nil) }

func removeRange(key, end []byte) *pb.RequestOp {
	var m struct {
		op   pb.RequestOp
		kind pb.RequestOp_RequestDeleteRange
		del  pb.DeleteRangeRequest
	}
	m.del.Key, m.del.RangeEnd = key, end
	m.kind.RequestDeleteRange, m.op.Request = &m.del, &m.kind
	return &m.op
}

// inside is a transaction inside another.
func inside(cmps []*pb.Compare, then, otherwise []*pb.RequestOp) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Compare: cmps, Success: then, Failure: otherwise}}}
}

// prefixEnd is the end of the range of all keys with a prefix.
func prefixEnd(prefix string) []byte { return []byte(clientv3.GetPrefixRangeEnd(prefix)) }

// entryKey is the key of an index entry.
func (s *Store) entryKey(c store.Collection, e store.Entry, key string) []byte {
	b := make([]byte, 0, len(s.prefix)+len("/x///")+len(c)+len(e.Index)+len(e.SortKey)+2+len(key))
	b = append(append(append(append(append(append(b, s.prefix...), "/x/"...), c...), '/'), e.Index...), '/')
	return member.Append(b, e.SortKey, key)
}
