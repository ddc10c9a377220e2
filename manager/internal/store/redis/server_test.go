package redis

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// The primary answers a read, and is lost before the read is proven. Its replica takes over, with a replica of its own.
// What that confirms says nothing about what the old primary had.
func TestAnotherServerProvesNothing(t *testing.T) {
	t.Parallel()
	chain := servers.RedisChain(t, false, 3)
	first, second := client(t, chain[0].URL), client(t, chain[1].URL)
	configure := func(c *goredis.Client, replicas string) {
		t.Helper()
		if err := c.ConfigSet(t.Context(), "min-replicas-to-write", replicas).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*goredis.Client{first, second} {
		eventually(t, "its replica is connected", func() bool {
			return strings.Contains(c.Info(t.Context(), "replication").Val(), "state=online")
		})
		configure(c, "1")
	}
	for url, want := range map[string]string{
		chain[1].URL: "the server is a replica, must be the primary",
		strings.Replace(chain[0].URL, "://", "://limited:secret@", 1): "does not show its replication",
	} {
		if err := first.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-info").Err(); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v: want %q", s, err, want)
		}
	}
	address := filepath.Join(t.TempDir(), "redis.sock") // follows the primary
	follow := func(primary *servers.Server) {
		t.Helper()
		_ = os.Remove(address)
		if err := os.Symlink(primary.Socket, address); err != nil {
			t.Fatal(err)
		}
	}
	follow(chain[0])
	s, err := Open(t.Context(), Options{URL: "unix://" + address + "?db=0", CheckInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := storetest.Put(t.Context(), s, "early", "1"); err != nil {
		t.Fatal(err)
	}

	if err := syscall.Kill(chain[1].PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := first.Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	configure(first, "0") // or it takes no write, as it has no replica
	if err := storetest.Put(t.Context(), open(t, chain[0].URL), "late", "1"); err != nil {
		t.Fatal(err)
	}

	const calls = 3
	var begun, answered sync.WaitGroup
	over := make(chan struct{})
	begun.Add(calls)
	there := errors.New("it is there")
	read := func(also ...string) func(store.Tx) error {
		failover := sync.OnceFunc(func() { begun.Done(); <-over })
		return func(tx store.Tx) error {
			_, err := tx.Get("things", "late")
			for _, key := range also {
				if _, err2 := tx.Get("things", key); err == nil {
					err = err2
				}
			}
			if tx.Now(); err == nil || errors.Is(err, store.ErrNotFound) {
				failover()
			}
			return err
		}
	}
	for name, call := range map[string]func() error{
		"view":     func() error { return s.View(t.Context(), read()) },
		"two read": func() error { return s.View(t.Context(), read("early")) },
		"refusal": func() error {
			r := read()
			return s.Update(t.Context(), func(tx store.Tx) error {
				if err := r(tx); err != nil {
					return err
				}
				return there
			})
		},
	} {
		answered.Go(func() {
			if err := call(); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: answered %v from what the primary does not have", name, err)
			}
		})
	}
	begun.Wait()
	chain[0].Kill()
	if err := syscall.Kill(chain[1].PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is the primary", func() bool { return second.ReplicaOf(t.Context(), "NO", "ONE").Err() == nil })
	eventually(t, "it has a replica", func() bool { return second.Wait(t.Context(), 1, time.Second).Val() == 1 })
	follow(chain[1])
	close(over)
	answered.Wait()

	eventually(t, "an answer", func() bool { v, err := storetest.Get(t.Context(), s, "early"); return v == "1" && err == nil })
	if _, err := storetest.Get(t.Context(), s, "late"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the new primary: %v", err)
	}
}
