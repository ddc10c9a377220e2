package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

func TestMain(m *testing.M) {
	goredis.SetLogger(quiet{}) // the killed servers of these tests are no news
	os.Exit(servers.Sharing(m).Run())
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// database returns the URL of an empty database, on the server that the tests share.
func database(t *testing.T) string {
	t.Helper()
	return servers.SharedRedis(t).URL
}

func open(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*Store)
}

func TestRefusesAServerThatEvicts(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t, "--maxmemory-policy", "allkeys-lru")
	_, err := Open(t.Context(), Options{URL: srv.URL})
	if err == nil || !strings.Contains(err.Error(), `maxmemory-policy is "allkeys-lru", must be noeviction`) {
		t.Fatalf("error %v", err)
	}
}

func TestReportsWhetherTheServerIsDurable(t *testing.T) {
	t.Parallel()
	if s := open(t, database(t)); !s.Capabilities().Durable {
		t.Error("appendfsync always is not reported as durable")
	}
	if s := open(t, servers.Redis(t, "--appendfsync", "everysec").URL); s.Capabilities().Durable {
		t.Error("appendfsync everysec is reported as durable")
	}
}

func TestRefusesAnUnknownFormat(t *testing.T) {
	t.Parallel()
	url := database(t)
	s := open(t, url)
	if err := s.rdb.Set(t.Context(), s.ns+"format", "99", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), `format "99"`) {
		t.Fatalf("error %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{
		{URL: "http://localhost"},
		{URL: "redis://localhost:1", Namespace: "a b"},
		{URL: "redis://localhost:1", Namespace: strings.Repeat("n", 65)},
	} {
		if _, err := Open(t.Context(), o); err == nil || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%+v: error %v", o, err)
		}
	}
	_, err := Open(t.Context(), Options{URL: "redis://user:secret@127.0.0.1:1/x"})
	if err == nil || strings.Contains(err.Error(), "secret@") {
		t.Errorf("error %v", err)
	}
}

func TestAcknowledgedSurvivesAKilledServer(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t)
	s := open(t, srv.URL)
	var mu sync.Mutex
	acked := map[string]string{}
	var wg sync.WaitGroup
	enough := make(chan struct{})
	for w := range 8 {
		wg.Go(func() {
			for i := range 100000 {
				key, value := fmt.Sprintf("w%d-%d", w, i%50), fmt.Sprint(i)
				if err := storetest.Put(t.Context(), s, key, value); err != nil {
					return
				}
				mu.Lock()
				acked[key] = value
				if len(acked) == 8*50 {
					select {
					case <-enough:
					default:
						close(enough)
					}
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	srv.Kill()
	wg.Wait()
	if err := storetest.Put(t.Context(), s, "x", "y"); !errors.Is(err, store.ErrUnreached) {
		t.Fatalf("with the server gone: error %v", err)
	}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, value := range acked {
		got, err := storetest.Get(t.Context(), s, key)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		// An unacknowledged write may have happened after the last acknowledged one.
		var have, want int
		fmt.Sscan(got, &have)
		fmt.Sscan(value, &want)
		if have != want && have != want+50 {
			t.Fatalf("%s: %d is stored, %d was acknowledged", key, have, want)
		}
	}
}

func TestWakeUpsComeBackAfterAReconnect(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t)
	s := open(t, srv.URL)
	w := s.Watch("topic")
	defer w.Stop()
	srv.Kill()
	<-w.C() // the lost connection itself makes everyone look again
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := open(t, srv.URL)
	for {
		if err := other.Update(t.Context(), func(tx store.Tx) error { tx.Notify("topic"); return nil }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.C():
			return
		case <-t.Context().Done():
			t.Fatal("never woken")
		default:
		}
	}
}

func TestFullServerRefusesWritesAndHeals(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t)
	s := open(t, srv.URL)
	if err := storetest.Put(t.Context(), s, "before", "1"); err != nil {
		t.Fatal(err)
	}
	if err := s.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Put(t.Context(), s, "refused", "1"); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("error %v", err)
	}
	if v, err := storetest.Get(t.Context(), s, "before"); err != nil || v != "1" {
		t.Fatalf("reading while full: %q, %v", v, err)
	}
	if _, err := storetest.Get(t.Context(), s, "refused"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("a refused write is half there: %v", err)
	}
	if n, err := s.Len(t.Context(), "things", "byname"); err != nil || n != 1 {
		t.Fatalf("index has %d entries, error %v", n, err)
	}
	if err := s.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Put(t.Context(), s, "after", "1"); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableRecordIsTold(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, s *Store, key string) error{
		"garbage": func(t *testing.T, s *Store, key string) error { return s.rdb.Set(t.Context(), key, "\xff", 0).Err() },
		"another type": func(t *testing.T, s *Store, key string) error {
			return errors.Join(s.rdb.Del(t.Context(), key).Err(), s.rdb.HSet(t.Context(), key, "a", "b").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, database(t))
			storetest.Unreadable(t, s, func(c store.Collection, key string) {
				if err := damage(t, s, s.recordKey(c, key)); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestStrangersInAnIndex: what the engine did not write is nobody's entry, and
// does not make a scan seem to be at its end.
func TestStrangersInAnIndex(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for i := range 30 {
		if err := storetest.Put(t.Context(), s, fmt.Sprintf("k%02d", i), ""); err != nil {
			t.Fatal(err)
		}
		if err := s.rdb.ZAdd(t.Context(), s.indexKey("things", "byname"), goredis.Z{Member: fmt.Sprintf("k%02d no terminator", i/10)}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, claim := range []bool{false, true} {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("things", "byname", store.Range{Limit: 20, Claim: claim})
			if err == nil && (len(hits) != 20 || hits[19].Key != "k19") {
				t.Errorf("claim %v: got %v", claim, hits)
			}
			return err
		})
		if err != nil {
			t.Errorf("claim %v: %v", claim, err)
		}
	}
}

// TestClaimersOfOneProcessNeverMeet shows why claims scale: while one
// transaction claims the head of an index, another's scan starts after it.
func TestClaimersOfOneProcessNeverMeet(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for i := range 10 {
		if err := storetest.Put(t.Context(), s, fmt.Sprintf("k%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(tx store.Tx) string {
		hits, err := tx.Scan("things", "byname", store.Range{Limit: 2, Claim: true})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(hits)
	}
	err := s.Update(t.Context(), func(outer store.Tx) error {
		if got := scan(outer); got != "[{k0 k0} {k1 k1}]" {
			t.Errorf("first claimer got %s", got)
		}
		return s.Update(t.Context(), func(inner store.Tx) error {
			if got := scan(inner); got != "[{k2 k2} {k3 k3}]" {
				t.Errorf("second claimer got %s", got)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		if got := scan(tx); got != "[{k0 k0} {k1 k1}]" {
			t.Errorf("after both ended: %s", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestUsedCreatesNothing: a look at a server that no manager has used leaves it empty.
func TestUsedCreatesNothing(t *testing.T) {
	t.Parallel()
	url := database(t)
	if _, err := Open(t.Context(), Options{URL: url, Used: true}); !errors.Is(err, store.ErrUnused) {
		t.Errorf("an unused server: %v", err)
	}
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := goredis.NewClient(o)
	defer c.Close()
	if n, err := c.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("it has %d keys, %v", n, err)
	}
	open(t, url)
	s, err := Open(t.Context(), Options{URL: url, Used: true})
	if err != nil {
		t.Fatalf("a used server: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
