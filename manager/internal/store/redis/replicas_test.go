package redis

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// pair is a server with a replica that a test stops and promotes.
type pair struct {
	primary, replica *servers.Server
	p, r             *goredis.Client
}

func newPair(t *testing.T, valkey bool, minReplicas string) *pair {
	t.Helper()
	x := new(pair)
	chain := servers.RedisChain(t, valkey, 2)
	x.primary, x.replica = chain[0], chain[1]
	x.p, x.r = client(t, x.primary.URL), client(t, x.replica.URL)
	eventually(t, "the replica is connected", func() bool {
		return strings.Contains(x.r.Info(t.Context(), "replication").Val(), "master_link_status:up") &&
			strings.Contains(x.p.Info(t.Context(), "replication").Val(), "state=online")
	})
	if err := x.p.ConfigSet(t.Context(), "min-replicas-to-write", minReplicas).Err(); err != nil {
		t.Fatal(err)
	}
	return x
}

func client(t *testing.T, url string) *goredis.Client {
	t.Helper()
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := goredis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (x *pair) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(x.replica.PID(), sig); err != nil {
		t.Fatal(err)
	}
}

// failover is what Sentinel does: the primary is gone, and the replica takes its place with what it has.
func (x *pair) failover(t *testing.T) *Store {
	t.Helper()
	x.primary.Kill()
	x.signal(t, syscall.SIGCONT)
	eventually(t, "the replica is the primary", func() bool { return x.r.ReplicaOf(t.Context(), "NO", "ONE").Err() == nil })
	return open(t, x.replica.URL)
}

// Replication is asynchronous: what was acknowledged to a client is lost if the replica had not received it. This is
// documented, and the reason for min-replicas-to-write.
func TestFailoverLosesWhatTheReplicaLacks(t *testing.T) {
	t.Parallel()
	x := newPair(t, false, "0")
	s := open(t, x.primary.URL)
	if err := storetest.Put(t.Context(), s, "early", "1"); err != nil {
		t.Fatal(err)
	}
	if n := x.p.Wait(t.Context(), 1, time.Minute).Val(); n != 1 {
		t.Log("the replica may lack the early write as well")
	}
	x.signal(t, syscall.SIGSTOP)
	if err := x.p.Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil { // or its socket would keep what it is sent
		t.Fatal(err)
	}
	if err := storetest.Put(t.Context(), s, "late", "1"); err != nil {
		t.Fatal("not acknowledged: ", err)
	}
	if v, err := storetest.Get(t.Context(), x.failover(t), "late"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%q, %v: the write was not lost; the docs say that it may be", v, err)
	}
}

// With min-replicas-to-write, nothing is acknowledged and nothing is answered from that a replica does not have.
func TestReplicasConfirm(t *testing.T) {
	t.Parallel()
	for name, valkey := range map[string]bool{"WAIT": false, "WAITAOF": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newPair(t, valkey, "1")
			s := open(t, x.primary.URL)
			if has := s.guard.set.Load().waitAOF; has != valkey {
				t.Fatalf("WAITAOF found: %t", has)
			}
			if err := storetest.Put(t.Context(), s, "early", "1"); err != nil {
				t.Fatal(err)
			}
			if v, err := storetest.Get(t.Context(), s, "early"); v != "1" || err != nil {
				t.Errorf("%q, %v", v, err)
			}
			x.signal(t, syscall.SIGSTOP)
			if err := storetest.Put(t.Context(), s, "late", "1"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("a write that no replica has: %v", err)
			}
			if x.p.Get(context.Background(), s.recordKey("things", "late")).Err() != nil {
				t.Error("the primary does not have the write")
			}
			view := func(s *Store) error {
				return s.View(t.Context(), func(tx store.Tx) error { _, err := tx.Get("things", "late"); return err })
			}
			refusal := s.Update(t.Context(), func(tx store.Tx) error {
				if _, err := tx.Get("things", "late"); err != nil {
					return err
				}
				return errors.New("it is there")
			})
			for what, err := range map[string]error{"view": view(s), "refusal": refusal} {
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s answered %v from what no replica has", what, err)
				}
			}
			x.signal(t, syscall.SIGCONT)
			eventually(t, "an answer", func() bool { return view(s) == nil })
			if v, err := storetest.Get(t.Context(), x.failover(t), "late"); v != "1" || err != nil {
				t.Errorf("after the failover: %q, %v", v, err)
			}
		})
	}
}
