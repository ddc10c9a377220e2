package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// slow is how long a slow disk takes to sync.
const slow = 250 * time.Millisecond

// faultRounds is how many faults TestFaults makes.
func faultRounds(t *testing.T) int {
	v := os.Getenv("ETCD_FAULT_ROUNDS")
	if v == "" {
		if deep.On() { // also under the race detector: the faults take their time in etcd
			return 10
		}
		return 3
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("ETCD_FAULT_ROUNDS=%q: must be a whole number from 1", v)
	}
	return n
}

// TestFaults takes away one member after the other, moves the leader, cuts members from each other, makes one slow, and
// compacts, while managers count. What was acknowledged is there, and nothing was done twice.
func TestFaults(t *testing.T) {
	t.Parallel()
	var between []*proxy
	members, err := servers.StartEtcdBehind(t.Context(), 3, func(_ int, listen string) (string, error) {
		p := startProxy(t, listen)
		between = append(between, p)
		return p.listener.Addr().String(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	urls := make([]string, len(members))
	for i, m := range members {
		t.Cleanup(m.Close)
		urls[i] = m.URL
	}
	dsn := strings.Join(urls, ",")
	const managers, counters = 2, 3
	var acked, unknown [counters]atomic.Int64
	var last atomic.Int64 // when something was acknowledged
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	stores := make([]*Store, managers)
	for i := range stores {
		stores[i] = open(t, Options{DSN: dsn})
	}
	add := func(tx store.Tx, key string) error {
		v, err := tx.Get("things", key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		n, _ := strconv.Atoi(string(v))
		return tx.Put("things", key, []byte(strconv.Itoa(n+1)), store.Entry{Index: "byname", SortKey: fmt.Sprintf("%08d", n+1)})
	}
	for w := range 6 {
		working.Go(func() {
			for ctx.Err() == nil {
				c := rand.IntN(counters)
				// Once the call is made it is left to end, so that each has an outcome.
				err := stores[w%managers].Update(context.WithoutCancel(ctx), func(tx store.Tx) error { return add(tx, fmt.Sprint("counter", c)) })
				switch {
				case err == nil:
					acked[c].Add(1)
					last.Store(time.Now().UnixNano())
				case errors.Is(err, store.ErrUnavailable):
					unknown[c].Add(1)
				case !errors.Is(err, store.ErrConflict):
					t.Errorf("Update: %v", err)
					return
				}
			}
		})
	}
	progress := func(what string) {
		t.Helper()
		from := time.Now()
		eventually(t, "work continues: "+what, func() bool { return last.Load() > from.UnixNano() })
		t.Logf("%s: service after %v", what, time.Since(from).Round(time.Millisecond))
	}
	progress("no fault")
	ids := make([]string, len(urls))
	for i, u := range urls {
		st, err := stores[0].c.Status(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = strconv.FormatUint(st.Header.MemberId, 16)
	}
	// between member i and the others, in both directions
	around := func(i int, f fault) {
		for j, p := range between {
			if j == i {
				p.set(all, f)
			} else {
				p.set(ids[i], f)
			}
		}
	}
	leader := func() int {
		t.Helper()
		found := -1
		eventually(t, "a leader", func() bool {
			for i, u := range urls {
				ask, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				st, err := stores[0].c.Status(ask, u)
				cancel()
				if err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId {
					found = i
					return true
				}
			}
			return false
		})
		return found
	}
	for round := range faultRounds(t) {
		i := leader()
		if round%2 == 1 {
			i = (i + 1) % len(members)
		}
		switch round % 10 {
		case 0, 1:
			members[i].Kill()
			progress(fmt.Sprint("member killed, the leader: ", round%2 == 0))
			if err := members[i].Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 2, 3:
			pid := members[i].PID()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			progress(fmt.Sprint("member silent, the leader: ", round%2 == 0))
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		case 4:
			c, err := clientv3.New(clientv3.Config{Endpoints: urls[i : i+1], DialTimeout: testPatience})
			if err != nil {
				t.Fatal(err)
			}
			to, err := c.Status(t.Context(), urls[(i+1)%len(urls)])
			if err == nil {
				_, err = c.MoveLeader(t.Context(), to.Header.MemberId)
			}
			_ = c.Close()
			if err != nil {
				t.Logf("the leader does not move: %v", err) // it has moved by itself
			}
			progress("leader moved")
		case 5:
			for _, p := range between { // no member reaches another one
				p.set(all, fault{cut: true})
			}
			eventually(t, "calls fail without a majority", func() bool {
				return errors.Is(storetest.Put(t.Context(), stores[0], "x", ""), store.ErrUnavailable)
			})
			for _, p := range between {
				p.set(all, fault{})
			}
			progress("members apart, and together again")
			resp, err := stores[0].c.Get(t.Context(), "x")
			if err == nil {
				_, err = stores[0].c.Compact(t.Context(), resp.Header.Revision)
			}
			if err != nil {
				t.Logf("compaction: %v", err)
			}
			progress("compacted")
		case 6, 7: // clients still reach it
			around(i, fault{cut: true})
			eventually(t, "the member is alone", func() bool {
				ask, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				st, err := stores[0].c.Status(ask, urls[i])
				return err == nil && st.Leader == 0
			})
			progress(fmt.Sprint("member cut from the others, the leader: ", round%2 == 0))
			around(i, fault{})
			progress("member back")
		case 8, 9: // as with a slow disk, all that the member confirms comes late
			around(i, fault{delay: slow})
			for range 3 {
				progress(fmt.Sprint("member slow, the leader: ", round%2 == 0))
			}
			around(i, fault{})
		}
	}
	stop()
	working.Wait()
	for c := range counters {
		key := fmt.Sprint("counter", c)
		var v string
		eventually(t, "a read", func() bool {
			var err error
			v, err = storetest.Get(t.Context(), stores[1], key)
			return err == nil
		})
		n, _ := strconv.ParseInt(v, 10, 64)
		if a, u := acked[c].Load(), unknown[c].Load(); n < a || n > a+u {
			t.Errorf("%s is %d; %d were acknowledged, the outcome of %d is unknown", key, n, a, u)
		} else {
			t.Logf("%s is %d, %d outcomes were unknown", key, n, u)
		}
		err := stores[0].View(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("things", "byname", store.Range{Limit: 100})
			// A write that failed without a majority may still have been done: its outcome is unknown.
			hits = slices.DeleteFunc(hits, func(h store.Hit) bool { return h.Key == "x" })
			if err == nil && len(hits) != counters {
				t.Errorf("index entries: %v", hits)
			}
			return err
		})
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
	}
}

// TestWakeUps: waiters on another manager are woken by its watch, also after the connection to its member broke.
func TestWakeUps(t *testing.T) {
	t.Parallel()
	srv := servers.SharedEtcd(t)
	p := startProxy(t, srv.Address)
	one, two := open(t, Options{DSN: srv.URL}), open(t, Options{DSN: "http://" + p.listener.Addr().String() + "?prefix=" + srv.Name})
	w := two.Watch("topic")
	defer w.Stop()
	for round := range 3 {
		if round > 0 {
			p.set(all, fault{cut: true})
			p.set(all, fault{})
			eventually(t, "it is connected again", func() bool { return storetest.Put(t.Context(), two, "x", "") == nil })
		}
		eventually(t, "a wake-up", func() bool {
			if err := one.Update(t.Context(), func(tx store.Tx) error { tx.Notify("topic"); return nil }); err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.C():
				return true
			case <-time.After(100 * time.Millisecond):
				return false
			}
		})
	}
}
