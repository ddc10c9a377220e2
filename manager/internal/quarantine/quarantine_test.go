package quarantine_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
)

func open(t *testing.T, dir string) *quarantine.Quarantine {
	t.Helper()
	q, err := quarantine.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func unchanged(_, _ quarantine.State) {}

// runDown runs it until it is over.
func runDown(t *testing.T, q *quarantine.Quarantine) {
	t.Helper()
	if q.Longest() == 0 {
		return
	}
	ctx, over := context.WithCancel(t.Context())
	defer over()
	q.Run(ctx, func(_, after quarantine.State) {
		if after.Remaining == 0 {
			over()
		}
	}, func(err error) { t.Error(err) })
}

func TestCountsOnlyWhileItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if left := open(t, dir).Remaining(); left != 0 {
			t.Fatalf("without a file: %v", left)
		}
		if err := quarantine.Write(dir, quarantine.Record{Remaining: time.Hour.Milliseconds(), RestoredTo: time.Unix(1, 0)}); err != nil {
			t.Fatal(err)
		}
		q := open(t, dir)
		time.Sleep(20 * time.Millisecond)
		first := q.Remaining()
		if first > time.Hour-20*time.Millisecond || first < time.Minute {
			t.Errorf("%v are left", first)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q.Run(ctx, unchanged, func(err error) { t.Error(err) }) // saves, as at the end of a manager
		again := open(t, dir)
		if left := again.Remaining(); left > first || !again.State().RestoredTo.Equal(time.Unix(1, 0)) {
			t.Errorf("%v are left after a restart, %v before", left, first)
		}
	})
}

func TestQuarantineThatEndsIsRemoved(t *testing.T) {
	dir := t.TempDir()
	if err := quarantine.Write(dir, quarantine.Record{Remaining: 30}); err != nil {
		t.Fatal(err)
	}
	q := open(t, dir)
	runDown(t, q)
	if left := q.Remaining(); left != 0 {
		t.Errorf("%v are left", left)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

func TestEpochFloorOutlivesTheQuarantine(t *testing.T) {
	dir := t.TempDir()
	if err := quarantine.Write(dir, quarantine.Record{Remaining: 1, EpochFloor: 7, RestoredTo: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		q := open(t, dir)
		runDown(t, q)
		if s := q.State(); s.EpochFloor != 7 || !s.RestoredTo.Equal(time.Unix(1, 0)) {
			t.Errorf("the floor is %d, restored to %v", s.EpochFloor, s.RestoredTo)
		}
	}
	if q := open(t, dir); q.Longest() != 0 {
		t.Errorf("%v are left", q.Longest())
	}
}

func TestMalformedFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"", "{", `{"remaining_ms":-1}`} {
		if err := os.WriteFile(filepath.Join(dir, quarantine.File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := quarantine.Open(dir); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// TestLogsHaveTheirOwnQuarantine: it may be longer or shorter than the ledger's.
func TestLogsHaveTheirOwnQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := quarantine.Write(dir, quarantine.Record{Remaining: 1, Logs: time.Hour.Milliseconds()}); err != nil {
			t.Fatal(err)
		}
		q := open(t, dir)
		time.Sleep(10 * time.Millisecond)
		check := func(q *quarantine.Quarantine) {
			t.Helper()
			if left, _ := q.LogsLeft(nil); left <= time.Minute || left >= time.Hour || q.Longest() != left || q.Remaining() != 0 {
				t.Errorf("%v are left, %v for the ledger, %v in all", left, q.Remaining(), q.Longest())
			}
		}
		check(q)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		q.Run(ctx, unchanged, func(err error) { t.Error(err) })
		check(open(t, dir))
		if err := os.WriteFile(filepath.Join(dir, quarantine.File), []byte(`{"remaining_ms":0,"logs_ms":-1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := quarantine.Open(dir); err == nil {
			t.Error("a negative time was read")
		}
	})
}
