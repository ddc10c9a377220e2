package jobs_test

import (
	"context"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/jobs/jobstest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// suite runs the suite, and checks the sums of what jobs take.
func suite(t *testing.T, e jobstest.Engine) {
	e.CheckSums = jobs.CheckSums
	jobstest.Run(t, e)
}

func TestMemory(t *testing.T) {
	suite(t, jobstest.Engine{Name: "memory", Open: func(t testing.TB) *jobstest.Instance {
		s := mem.New(mem.Options{})
		t.Cleanup(func() { _ = s.Close() })
		return &jobstest.Instance{Store: s}
	}})
}

func TestWAL(t *testing.T) {
	suite(t, jobstest.Engine{Name: "wal", Open: func(t testing.TB) *jobstest.Instance {
		dir := t.TempDir()
		var s *mem.Store
		open := func(t testing.TB) store.Store {
			var err error
			if s, err = mem.Open(context.Background(), dir, mem.Options{}); err != nil {
				t.Fatalf("open %s: %v", dir, err)
			}
			return s
		}
		in := &jobstest.Instance{Store: open(t)}
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
