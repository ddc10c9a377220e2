package e2e

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/etcd"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/internal/store/redis"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// TestSchedulesSurviveCrashes kills the real program again and again while it enqueues the jobs of instants that it missed,
// and of those that are due meanwhile. In the end each instant must have one job. On the shared engines three managers
// compete for each of them, and in every other round their server is killed as well.
func TestSchedulesSurviveCrashes(t *testing.T) {
	t.Parallel()
	each(t, deep.Keys(t, crashSetups), func(t *testing.T, name string) {
		c := crashSetups[name]
		srv, args := c.store(t)
		var st store.Store
		var err error
		switch name {
		case "wal":
			st, err = mem.Open(t.Context(), args[1], mem.Options{})
		case "sqlite":
			st, err = sqlite.Open(t.Context(), filepath.Join(args[3], "oncegate.db"), sqlite.Options{})
		case "redis":
			st, err = redis.Open(t.Context(), redis.Options{URL: srv.URL})
		case "postgres":
			st, err = postgres.Open(t.Context(), postgres.Options{DSN: srv.URL})
		case "etcd":
			st, err = etcd.Open(t.Context(), etcd.Options{DSN: srv.URL})
		}
		if err != nil {
			t.Fatal(err)
		}
		const count, missed = 8, 300 // fewer than a schedule may make up for
		begin := time.Now().Add(-missed * time.Minute)
		putSchedules(t, st, begin, count)

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		m := &movingManager{next: &http.Transport{}, addrs: make([]atomic.Pointer[string], c.managers)}
		defer m.next.CloseIdleConnections()
		cl, err := client.New(client.Options{
			URL: "http://manager", HTTP: &http.Client{Transport: m}, Timeout: patience, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		a := admin.New(cl)
		running := make([]*process, c.managers)
		start := func(i int) {
			running[i] = startManager(t, args...)
			addr := running[i].addr["api"]
			m.addrs[i].Store(&addr)
		}
		for i := range running {
			start(i)
		}
		// decided is how many instants have been decided, and ahead whether none is due.
		decided := func() (n int, ahead bool) {
			page, err := a.Schedules(ctx, count, "")
			if err != nil || len(page.Schedules) != count {
				t.Fatalf("%+v, %v", page, err)
			}
			now := time.Now()
			ahead = true
			for _, s := range page.Schedules {
				n += int(s.NextAt.Sub(begin) / time.Minute)
				ahead = ahead && s.NextAt.After(now)
			}
			return n, ahead
		}
		rounds := (crashRounds(t, 5, 10) + c.slower - 1) / c.slower
		for round := range rounds {
			goal := count * missed * (round + 1) / (rounds + 1)
			waitFor(t, "some instants are decided", func() bool { n, _ := decided(); return n >= goal })
			running[round%c.managers].kill()
			if srv != nil && round%2 == 1 {
				srv.Kill()
				if err := srv.Start(ctx); err != nil {
					t.Fatal(err)
				}
			}
			start(round % c.managers)
		}
		waitFor(t, "no instant is due", func() bool { _, ahead := decided(); return ahead })

		// Instants may come between this list and that of the jobs.
		page, err := a.Schedules(ctx, count, "")
		if err != nil || len(page.Schedules) != count {
			t.Fatalf("%+v, %v", page, err)
		}
		byKey := map[string]int{}
		for cursor := ""; ; {
			page, err := a.List(ctx, admin.ListQuery{Limit: 1000, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				byKey[j.Key]++
			}
			if cursor = page.Cursor; cursor == "" {
				break
			}
		}
		want := 0
		for _, s := range page.Schedules {
			if s.MissedInstants+s.OverlappedInstants != 0 {
				t.Errorf("instants without a job: %+v", s)
			}
			for at := begin.Truncate(time.Minute).Add(time.Minute); !at.After(s.LastAt); at = at.Add(time.Minute) {
				want++
				if n := byKey[schedules.InstantKey(s.Name, at)]; n != 1 {
					t.Errorf("%s at %s has %d jobs", s.Name, at, n)
				}
			}
		}
		total := 0
		for key, n := range byKey {
			if total += n; !strings.Contains(key, "@") {
				t.Errorf("a job with the key %q", key)
			}
		}
		if want < count*missed || total < want || total > want+count {
			t.Errorf("%d jobs for %d instants", total, want)
		}
		t.Logf("%d instants in %d crashes", want, rounds)
	})
}

func scheduleName(i int) string { return fmt.Sprint("s", i) }

// putSchedules makes schedules of each minute, at an earlier time of day than it is, and closes the store.
func putSchedules(t *testing.T, st store.Store, at time.Time, count int) {
	t.Helper()
	q, err := jobs.New(st, jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := schedules.New(earlierStore{st, at}, q, schedules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		spec := schedules.Spec{Cron: "* * * * *", Function: "f", Missed: schedules.MissedAll}
		if _, _, err := s.Put(t.Context(), scheduleName(i), spec); err != nil {
			t.Fatal(err)
		}
	}
	q.Close()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// earlierStore shows a time of its own.
type earlierStore struct {
	store.Store
	at time.Time
}

func (s earlierStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error { return fn(earlierTx{tx, s.at}) })
}

type earlierTx struct {
	store.Tx
	at time.Time
}

func (t earlierTx) Wall() time.Time { return t.at }
