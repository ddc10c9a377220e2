package redis

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// logged is a logger's output.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// openChecked is open with a check interval, with what the store logs and with
// a connection of an operator.
func openChecked(t *testing.T, url string, every time.Duration) (*Store, *logged, *goredis.Client) {
	t.Helper()
	log := new(logged)
	s, err := Open(t.Context(), Options{URL: url, CheckInterval: every, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	operator := goredis.NewClient(o)
	t.Cleanup(func() { _ = operator.Close() })
	return s.(*Store), log, operator
}

func setPolicy(t *testing.T, operator *goredis.Client, policy string) {
	t.Helper()
	if err := operator.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
		t.Fatal(err)
	}
}

// refusedFor reports whether a call was refused because of the policy.
func refusedFor(err error, policy string) bool {
	return errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), `maxmemory-policy is "`+policy+`", must be noeviction`)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestStopsWhileTheServerMayEvict: the policy may change long after the start.
func TestStopsWhileTheServerMayEvict(t *testing.T) {
	t.Parallel()
	s, log, operator := openChecked(t, servers.Redis(t).URL, 5*time.Millisecond)
	if err := storetest.Put(t.Context(), s, "k", "1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		setPolicy(t, operator, "volatile-lru")
		eventually(t, "the store stops", func() bool {
			err := storetest.Put(t.Context(), s, "k", "2")
			if err != nil && !refusedFor(err, "volatile-lru") {
				t.Fatal(err)
			}
			return err != nil
		})
		if _, err := storetest.Get(t.Context(), s, "k"); !refusedFor(err, "volatile-lru") {
			t.Errorf("View: %v", err)
		}
		if _, err := s.Len(t.Context(), "things", ""); !refusedFor(err, "volatile-lru") {
			t.Errorf("Len: %v", err)
		}
		setPolicy(t, operator, "noeviction")
		eventually(t, "the store works again", func() bool { return storetest.Put(t.Context(), s, "k", "3") == nil })
	}
	if a, b := log.count("level=ERROR"), log.count("used again"); a != 2 || b != 2 {
		t.Errorf("logged %d times that it stops, %d times that it works again", a, b)
	}
	if err := operator.ConfigSet(t.Context(), "appendfsync", "everysec").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a warning", func() bool { return log.count("may lose acknowledged transactions") == 1 })
}

// TestNewConnectionsAreChecked: at an address there may be another server
// from one connection to the next.
func TestNewConnectionsAreChecked(t *testing.T) {
	t.Parallel()
	s, _, operator := openChecked(t, servers.Redis(t).URL, time.Hour)
	if err := storetest.Put(t.Context(), s, "k", "1"); err != nil {
		t.Fatal(err)
	}
	setPolicy(t, operator, "allkeys-random")
	for _, kind := range []string{"normal", "pubsub"} {
		if err := operator.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a new connection is refused", func() bool {
		err := storetest.Put(t.Context(), s, "k", "2") // the first may find its connection gone
		return refusedFor(err, "allkeys-random")
	})
	for range 3 {
		if _, err := storetest.Get(t.Context(), s, "k"); !refusedFor(err, "allkeys-random") {
			t.Errorf("View: %v", err)
		}
	}
	setPolicy(t, operator, "noeviction")
	eventually(t, "the store works again", func() bool { return storetest.Put(t.Context(), s, "k", "3") == nil })
	// The subscription, too, is back.
	w := s.Watch("topic")
	defer w.Stop()
	eventually(t, "a wake-up", func() bool {
		err := s.Update(t.Context(), func(tx store.Tx) error { tx.Notify("topic"); return nil })
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.C():
			return true
		default:
			return false
		}
	})
}

// TestServerThatHidesItsSettings: some services forbid CONFIG. They are used, and
// not called durable.
func TestServerThatHidesItsSettings(t *testing.T) {
	t.Parallel()
	srv := servers.Redis(t)
	_, _, operator := openChecked(t, srv.URL, time.Hour)
	user := []any{"ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-config"}
	if err := operator.Do(t.Context(), user...).Err(); err != nil {
		t.Fatal(err)
	}
	s, log, _ := openChecked(t, strings.Replace(srv.URL, "://", "://limited:secret@", 1), 5*time.Millisecond)
	if s.Capabilities().Durable {
		t.Error("called durable")
	}
	if log.count("does not show its settings") != 1 {
		t.Error("nothing was logged")
	}
	if err := storetest.Put(t.Context(), s, "k", "1"); err != nil {
		t.Fatal(err)
	}
	// Once they are shown they count.
	if err := operator.Do(t.Context(), "ACL", "SETUSER", "limited", "+config").Err(); err != nil {
		t.Fatal(err)
	}
	setPolicy(t, operator, "allkeys-lfu")
	eventually(t, "the store stops", func() bool { return refusedFor(storetest.Put(t.Context(), s, "k", "2"), "allkeys-lfu") })
}

// An answer that says "not now" must not pass for one that says
// "never".
func TestHiddenSettingsAreNotTakenForGood(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	loading := s.rdb.Eval(context.Background(), `return redis.error_reply("LOADING Redis is loading the dataset in memory")`, nil).Err()
	unknown := s.rdb.Do(context.Background(), "NONESUCH").Err()
	if loading == nil || hidden(loading) || unknown == nil || !hidden(unknown) || hidden(errors.New("unknown command")) {
		t.Errorf("%v: %v; %v: %v", loading, hidden(loading), unknown, hidden(unknown))
	}
}
