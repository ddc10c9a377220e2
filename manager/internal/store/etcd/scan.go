package etcd

import (
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/internal/overlay"
)

// steps shortens scans. etcd walks a range to its end, to count it, whatever the limit. Of a long range a scan therefore
// asks for the beginning only, up to where aheadKeys keys were found before, and for the rest when that is not enough.
type steps struct {
	mu   sync.Mutex
	ends map[string]string // by the end of the whole range: where its beginning ends
}

const (
	// aheadKeys is how many keys the beginning of a range has when it is measured.
	aheadKeys = 250
	// longRange is the number of keys from which a range has a beginning of its own.
	longRange = 4 * aheadKeys
	// maxSteps bounds the ranges of which a beginning is known.
	maxSteps = 1000
)

// end returns where the beginning of the range ends, empty if nothing is known, and whether the range was found to be long.
func (s *steps) end(from, to string) (end string, long bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end, long = s.ends[to]; end <= from {
		end = ""
	}
	return end, long
}

// learn takes an answer for the range up to its end, or for a beginning that is too long, to a request for at most limit
// keys.
func (s *steps) learn(to string, limit int, r *pb.RangeResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Count < longRange:
		delete(s.ends, to)
	case limit < aheadKeys:
		s.set(to, "") // the next request measures
	default:
		s.set(to, string(r.Kvs[len(r.Kvs)-1].Key)+"\x00")
	}
}

func (s *steps) set(to, end string) {
	if s.ends == nil || len(s.ends) >= maxSteps {
		s.ends = make(map[string]string)
	}
	s.ends[to] = end
}

// Scan implements store.Tx. Its hits and the records are of one state.
func (t *tx) Scan(c store.Collection, index string, r store.Range) ([]store.Hit, error) {
	if err := store.CheckScan(c, index, r); err != nil {
		return nil, err
	}
	prefix := t.s.indexKey(c, index)
	from, to := prefix+member.Escape(r.From), clientv3.GetPrefixRangeEnd(prefix)
	if r.After != nil {
		from = prefix + member.Join(r.After.SortKey, r.After.Key) + "\x00"
	}
	if r.To != "" {
		to = prefix + member.Escape(r.To)
	}
	switch {
	case r.Claim && !t.ReadOnly:
		return t.claim(c, index, prefix, from, to, r)
	case r.Repeated && !t.ReadOnly:
		return t.head(prefix, from, to, r.Limit, 0, r)
	}
	return t.scan(prefix, from, to, r.Limit, r.With)
}

// head is scan for a range that is scanned again and again: it starts where the range lives (see package front). etcd
// walks through all keys that were deleted since it compacted. more is how many hits are welcome beyond the limit.
func (t *tx) head(prefix, from, to string, limit, more int, r store.Range) ([]store.Hit, error) {
	if r.After != nil {
		return t.scan(prefix, from, to, limit+more, r.With)
	}
	end := ""
	if r.To != "" {
		end = to
	}
	for whole := false; ; whole = true {
		s := t.s.fronts.Begin(t.mark, prefix, from, whole)
		hits, err := t.scan(prefix, s.From, to, limit+more, r.With)
		if err != nil {
			return nil, err
		}
		var first, last string
		if n := len(hits); n > 0 {
			first, last = hitKey(prefix, hits[0]), hitKey(prefix, hits[n-1])
		}
		if !s.End(len(hits), first, last, end, len(hits) < limit) {
			return hits, nil
		}
	}
}

// scan skips keys that the engine did not write, and reads more instead. So fewer hits than the limit mean the
// end of the range. The first request also reads the records with.
func (t *tx) scan(prefix, from, to string, limit int, with []store.ID) ([]store.Hit, error) {
	var hits []store.Hit
	records, err := t.Unread(with[:min(len(with), maxReads)])
	if err != nil {
		return nil, err
	}
	for from < to {
		want := limit - len(hits)
		end, long := t.s.steps.end(from, to)
		if end == "" {
			if end = to; long {
				want = max(want, aheadKeys)
			}
		}
		ops := append(t.gets(records), get(&pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), Limit: int64(want), KeysOnly: true, Revision: t.rev}))
		resp, err := t.read(ops...)
		if err != nil {
			return nil, err
		}
		if err := t.fillAll(records, firsts(resp[:len(records)])); err != nil {
			return nil, t.Fail(err)
		}
		for _, r := range records {
			t.Preload(r)
		}
		found := resp[len(records)].GetResponseRange()
		records = nil
		if end == to || found.Count >= longRange { // the second: what was its beginning is long itself
			t.s.steps.learn(to, want, found)
		}
		for _, kv := range found.Kvs {
			if h, err := member.Split(strings.TrimPrefix(string(kv.Key), prefix)); err == nil {
				hits = append(hits, h)
			}
			if len(hits) == limit {
				return hits, nil
			}
		}
		if from = end; len(found.Kvs) == want {
			from = string(found.Kvs[want-1].Key) + "\x00"
		}
	}
	return hits, nil
}

// claim returns up to limit hits that no other transaction of this process is claiming, and marks them as claimed.
// After conflicts with other processes it starts at a random position in a window that grows with every run.
func (t *tx) claim(c store.Collection, index, prefix, from, to string, r store.Range) ([]store.Hit, error) {
	name, more := from+"\x00"+to, 0
	if t.run == 0 && t.rev == 0 && r.After == nil && len(r.With) > 0 && t.s.recent.trusted() {
		t.asked = true
		var hits []store.Hit
		var with map[store.ID]*mvccpb.KeyValue
		hits, with, more = t.s.ahead.take(&t.s.fronts, t.mark, name, prefix, from, r.Limit)
		if len(hits) > 0 {
			if ok, err := t.claimAhead(c, index, hits, with, r); ok || err != nil {
				return hits, err
			}
			t.s.ahead.clear()
		}
	}
	hits, err := t.head(prefix, from, to, t.s.claims.Window(r.Limit, t.run), more, r)
	if err != nil {
		return nil, err
	}
	free, rest := t.s.claims.Take(&t.claimed, c, hits, r.Limit, t.run)
	var records []*overlay.Record
	for _, h := range free {
		if !t.Loaded(c, h.Key) {
			records = append(records, &overlay.Record{Collection: c, Key: h.Key})
		}
	}
	if err := t.readAhead(name, c, records, rest[:min(len(rest), more)], r.With); err != nil {
		return nil, t.Fail(err)
	}
	t.Preload(records...)
	t.taken = append(t.taken, records...)
	return free, nil
}
