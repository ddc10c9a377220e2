package jobs_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/jobs/jobstest"
	"github.com/oncegate/oncegate/manager/store"
	"github.com/oncegate/oncegate/manager/store/mem"
)

// movable is a clock that runs and that a test can move ahead.
type movable struct{ offset atomic.Int64 }

func (c *movable) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *movable) advance(d time.Duration) { c.offset.Add(int64(d)) }

func TestMemory(t *testing.T) {
	jobstest.Run(t, jobstest.Engine{Name: "memory", Open: func(t testing.TB) *jobstest.Instance {
		clock := new(movable)
		s := mem.New(mem.Options{Clock: clock.now})
		t.Cleanup(func() { _ = s.Close() })
		return &jobstest.Instance{Store: s, Advance: clock.advance}
	}})
}

func TestWAL(t *testing.T) {
	jobstest.Run(t, jobstest.Engine{Name: "wal", Open: func(t testing.TB) *jobstest.Instance {
		clock := new(movable)
		dir := t.TempDir()
		var s *mem.Store
		open := func(t testing.TB) store.Store {
			var err error
			if s, err = mem.Open(context.Background(), dir, mem.Options{Clock: clock.now}); err != nil {
				t.Fatalf("open %s: %v", dir, err)
			}
			return s
		}
		in := &jobstest.Instance{Store: open(t), Advance: clock.advance}
		in.Reopen = func(t testing.TB) store.Store {
			if err := s.Close(); err != nil {
				t.Fatalf("close: %v", err)
			}
			return open(t)
		}
		t.Cleanup(func() { _ = s.Close() })
		return in
	}})
}
