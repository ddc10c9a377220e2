package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestQuota: an etcd without space takes no writes, does nothing by half, and takes deletions.
func TestQuota(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t, "--quota-backend-bytes", "4194304")
	s := open(t, Options{DSN: srv.URL})
	for _, key := range []string{"a", "b"} {
		if err := storetest.Put(t.Context(), s, key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	if space := s.Capabilities().Space(t.Context()); !space.Majority || space.Full || space.Bytes == 0 {
		t.Errorf("with room: %+v", space)
	}
	value := strings.Repeat("x", 200<<10)
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		err = storetest.Put(t.Context(), s, fmt.Sprint("big", i), value)
	}
	if !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("error %v", err)
	}
	// Servers before 3.6 do not tell their quota.
	if space := s.Capabilities().Space(t.Context()); !space.Majority || !space.Full || space.Bytes < 3<<20 || space.Quota != 0 && space.Quota != 4194304 {
		t.Errorf("without room: %+v", space)
	}
	err = s.Update(t.Context(), func(tx store.Tx) error { return errors.Join(tx.Delete("things", "a"), tx.Put("things", "c", nil)) })
	if !errors.Is(err, store.ErrFull) {
		t.Errorf("error %v", err)
	}
	for range 2 { // together
		put := func(key string) func(store.Tx) error {
			return func(tx store.Tx) error { return tx.Put("things", key, nil) }
		}
		_, errs := atOnce(t, s, put("e"), put("f"))
		for _, err := range errs {
			if !errors.Is(err, store.ErrFull) {
				t.Errorf("error %v", err)
			}
		}
	}
	if v, err := storetest.Get(t.Context(), s, "a"); err != nil || v != "1" {
		t.Errorf("%q, %v", v, err)
	}
	// A guess that the record is absent would write.
	s.recent.wary = 0
	err = s.Update(t.Context(), func(tx store.Tx) error {
		if err := tx.PrefetchNew([]store.ID{{Collection: "things", Key: "a"}}); err != nil {
			return err
		}
		_, err := tx.Get("things", "a")
		if errors.Is(err, store.ErrNotFound) {
			return tx.Put("things", "a", nil)
		}
		return err
	})
	if err != nil {
		t.Errorf("a transaction that has nothing to write failed without space: %v", err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.Delete("things", "a") }); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	// A manager that starts now can do the same, and its clock runs.
	two := open(t, Options{DSN: srv.URL})
	before := now(t, two)
	eventually(t, "the clock runs", func() bool { return now(t, two).After(before) })
	if err := two.Update(t.Context(), func(tx store.Tx) error { return tx.Delete("things", "b") }); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	if err := storetest.Put(t.Context(), two, "d", ""); !errors.Is(err, store.ErrFull) {
		t.Errorf("error %v", err)
	}
	// An operator makes space.
	if _, err := s.c.Delete(t.Context(), s.recordKey("things", "big"), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	resp, err := s.c.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Defragment(t.Context(), srv.URL); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes go on", func() bool { return storetest.Put(t.Context(), two, "d", "") == nil })
	if space := s.Capabilities().Space(t.Context()); !space.Majority || space.Full {
		t.Errorf("with room again: %+v", space)
	}
}

// TestChangeThatEndsTheQuota: the member makes it, and answers that it has no space.
func TestChangeThatEndsTheQuota(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	b := &s.writes
	send := b.send
	b.send = func(ctx context.Context, calls []*call) error {
		return errors.Join(send(ctx, calls), rpctypes.ErrNoSpace)
	}
	for _, want := range []string{"1", "2"} {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			if _, err := tx.Get("things", "a"); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			return tx.Put("things", "a", []byte(want))
		})
		if err != nil {
			t.Error(err)
		}
		if v, err := storetest.Get(t.Context(), s, "a"); err != nil || v != want {
			t.Errorf("%q, %v; want %s", v, err, want)
		}
	}
}

// TestLostMajority: a cluster that has lost its majority says so, and one that is back as well.
func TestLostMajority(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	members, err := servers.StartEtcdMembers(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	urls := make([]string, len(members))
	for i, m := range members {
		t.Cleanup(m.Close)
		urls[i] = m.URL
	}
	s := open(t, Options{DSN: strings.Join(urls, ",")})
	space := s.Capabilities().Space
	members[0].Kill()
	eventually(t, "two of three are a majority", func() bool { return space(t.Context()).Majority })
	members[1].Kill()
	eventually(t, "one of three is none", func() bool { a := space(t.Context()); return !a.Majority && a.Bytes > 0 })
	members[2].Kill()
	if a := space(t.Context()); a != (store.Space{}) {
		t.Errorf("nobody answers: %+v", a)
	}
	var starts sync.WaitGroup
	for _, m := range members[:2] {
		starts.Go(func() { // each is ready when both are
			if err := m.Start(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	eventually(t, "two are back", func() bool { return space(t.Context()).Majority })
}
