package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// longIndex makes an index of so many entries, and returns the hits in order and the key of each.
func longIndex(tb testing.TB, s *Store, n int) (hits []store.Hit, keys []string) {
	tb.Helper()
	var ops []clientv3.Op
	for i := range n {
		h := store.Hit{SortKey: fmt.Sprintf("%06d", i), Key: "k"}
		key := s.indexKey("c", "i") + member.Join(h.SortKey, h.Key)
		hits, keys = append(hits, h), append(keys, key)
		if ops = append(ops, clientv3.OpPut(key, "")); len(ops) == 100 || i == n-1 {
			if _, err := s.c.Txn(tb.Context()).Then(ops...).Commit(); err != nil {
				tb.Fatal(err)
			}
			ops = nil
		}
	}
	return hits, keys
}

// TestScansOfALongIndex: a scan that asks for the beginning of a range first finds the same as one that asks for all.
// Entries go from the front, as those of a queue, and come anywhere.
func TestScansOfALongIndex(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	hits, keys := longIndex(t, s, longRange+2*aheadKeys)
	there := make([]bool, len(hits))
	for i := range there {
		there[i] = true
	}
	check := func(r store.Range) {
		t.Helper()
		var got, want []store.Hit
		err := s.View(t.Context(), func(tx store.Tx) (err error) {
			got, err = tx.Scan("c", "i", r)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, h := range hits {
			if there[i] && h.SortKey >= r.From && (r.To == "" || h.SortKey < r.To) && (r.After == nil || h.SortKey > r.After.SortKey) && len(want) < r.Limit {
				want = append(want, h)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %d hits, want %d, or others", r, len(got), len(want))
		}
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	limits := []int{1, 10, 100, aheadKeys, 3000, 10000}
	for gone := 0; gone < len(hits); gone += 1 + random.IntN(700) {
		for range 3 {
			check(store.Range{Limit: 1 + random.IntN(20)})
		}
		after := hits[random.IntN(len(hits))]
		check(store.Range{Limit: limits[random.IntN(len(limits))], After: &after})
		check(store.Range{Limit: limits[random.IntN(len(limits))], From: hits[random.IntN(len(hits))].SortKey, To: hits[random.IntN(len(hits))].SortKey})
		if _, err := s.c.Delete(t.Context(), keys[0], clientv3.WithRange(keys[gone])); err != nil {
			t.Fatal(err)
		}
		for i := range gone {
			there[i] = false
		}
		back := random.IntN(len(hits))
		if _, err := s.c.Put(t.Context(), keys[back], ""); err != nil {
			t.Fatal(err)
		}
		there[back] = true
	}
}

// TestBeginningThatBecameLong: entries came in front of those with which the beginning ended.
func TestBeginningThatBecameLong(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	hits, keys := longIndex(t, s, longRange+2*aheadKeys)
	from := s.indexKey("c", "i")
	to := clientv3.GetPrefixRangeEnd(from)
	s.steps.set(to, keys[longRange+aheadKeys])
	for range 3 {
		if err := s.View(t.Context(), func(tx store.Tx) error {
			got, err := tx.Scan("c", "i", store.Range{Limit: 1})
			if err == nil && !slices.Equal(got, hits[:1]) {
				t.Errorf("hits %v", got)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if end, _ := s.steps.end(from, to); end != keys[aheadKeys-1]+"\x00" {
		t.Errorf("it ends with %q", end)
	}
}

// BenchmarkScanOfALongIndex takes the first entries of a short index and of a long one.
func BenchmarkScanOfALongIndex(b *testing.B) {
	for _, n := range []int{longRange / 2, 25 * longRange} {
		b.Run(fmt.Sprint("entries=", n), func(b *testing.B) {
			s, err := Open(b.Context(), Options{DSN: servers.Etcd(b).URL})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			longIndex(b, s, n)
			least := time.Hour
			for b.Loop() {
				began := time.Now()
				if err := s.View(b.Context(), func(tx store.Tx) error {
					_, err := tx.Scan("c", "i", store.Range{Limit: 10})
					return err
				}); err != nil {
					b.Fatal(err)
				}
				least = min(least, time.Since(began))
			}
			b.ReportMetric(float64(least.Nanoseconds()), "ns/least")
		})
	}
}

// TestRequestsOfAClaim: what the caller is going to read comes with the hits. Then any member may answer, and one that is
// added does no harm.
func TestRequestsOfAClaim(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		return errors.Join(tx.Put("c", "job", []byte("1"), store.Entry{Index: "i", SortKey: "a"}), tx.Put("p", "policy", []byte("2")))
	}); err != nil {
		t.Fatal(err)
	}
	var quorum, any atomic.Int64
	added := false
	count := func(b *batcher, n *atomic.Int64, fails func() error) {
		send := b.send
		b.send = func(ctx context.Context, calls []*call) error {
			n.Add(1)
			if err := fails(); err != nil {
				return err
			}
			return send(ctx, calls)
		}
	}
	count(&s.reads, &quorum, func() error { return nil })
	count(&s.fixed, &any, func() error {
		if added {
			return rpctypes.ErrFutureRev
		}
		return nil
	})
	for _, want := range []struct{ quorum, any int64 }{{1, 1}, {2, 1}} {
		quorum.Store(0)
		any.Store(0)
		err := s.Update(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("c", "i", store.Range{Limit: 1, Claim: true, With: []store.ID{{Collection: "p", Key: "policy"}}})
			if err != nil || len(hits) != 1 {
				t.Fatalf("%v, %v", hits, err)
			}
			job, err1 := tx.Get("c", "job")
			policy, err2 := tx.Get("p", "policy")
			if string(job) != "1" || string(policy) != "2" {
				t.Errorf("%q, %q", job, policy)
			}
			return errors.Join(err1, err2)
		})
		if err != nil {
			t.Fatal(err)
		}
		if quorum.Load() != want.quorum || any.Load() != want.any {
			t.Errorf("behind %t: %d requests to a quorum and %d to any member, want %+v", added, quorum.Load(), any.Load(), want)
		}
		added = true
	}
}
