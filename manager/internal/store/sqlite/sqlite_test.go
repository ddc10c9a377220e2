package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"modernc.org/sqlite"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func put(ctx context.Context, s store.Store, key string, value []byte) error {
	return s.Update(ctx, func(tx store.Tx) error {
		return tx.Put("things", key, value, store.Entry{Index: "byname", SortKey: key})
	})
}

func has(ctx context.Context, s store.Store, key string) error {
	return s.View(ctx, func(tx store.Tx) error {
		_, err := tx.Get("things", key)
		return err
	})
}

func TestUnreadableRecordIsTold(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	storetest.Unreadable(t, s, func(c store.Collection, key string) {
		if _, err := s.db.ExecContext(t.Context(), `UPDATE records SET entries = x'ff' WHERE coll = ? AND key = ?`, string(c), []byte(key)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o?d na%me.db")
	s := open(t, path)
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), "another program holds the lock") {
		t.Fatalf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	if err := put(t.Context(), again, "k", nil); err != nil {
		t.Fatal(err)
	}
}

func TestRefusesAnUnknownFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`PRAGMA user_version = 7`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), "format version 7") {
		t.Fatalf("error %v", err)
	}
	// The failed Open has let the lock go.
	f, err := lockFile(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGroupMembersDoNotHarmEachOther runs updates that fail, panic and are
// cancelled among updates that must succeed, all sharing commits.
func TestGroupMembersDoNotHarmEachOther(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	boom := errors.New("boom")
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			key := fmt.Sprintf("k%03d", i)
			switch i % 4 {
			case 0:
				if err := put(t.Context(), s, key, nil); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			case 1:
				err := s.Update(t.Context(), func(tx store.Tx) error {
					if err := tx.Put("things", key, nil); err != nil {
						return err
					}
					return boom
				})
				if !errors.Is(err, boom) {
					t.Errorf("%s: error %v", key, err)
				}
			case 2:
				func() {
					defer func() {
						if r := recover(); r != "panic of the function" {
							t.Errorf("%s: recovered %v", key, r)
						}
					}()
					_ = s.Update(t.Context(), func(tx store.Tx) error {
						if err := tx.Put("things", key, nil); err != nil {
							return err
						}
						panic("panic of the function")
					})
				}()
			case 3:
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := put(ctx, s, key, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: error %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 400 {
		err := has(t.Context(), s, fmt.Sprintf("k%03d", i))
		if i%4 == 0 && err != nil {
			t.Errorf("k%03d: %v", i, err)
		}
		if (i%4 == 1 || i%4 == 2) && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("k%03d of a failed update: %v", i, err)
		}
	}
}

// TestTheFunctionNeverOutlivesItsUpdate: a caller whose context ends while its
// function runs gets its variables back only when the function is through.
func TestTheFunctionNeverOutlivesItsUpdate(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		written := 0 // the race detector watches it
		err := s.Update(ctx, func(tx store.Tx) error {
			cancel()
			for range 100 {
				written++
			}
			return tx.Put("things", "k", nil)
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnconfirmed) || written != 100 {
			t.Fatalf("error %v, the function wrote %d", err, written)
		}
	}
	if err := has(t.Context(), s, "k"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("an update whose context ended before its commit: %v", err)
	}
}

// TestCallerThatLeavesDuringTheCommit: it hears that its writes are only not durable yet.
func TestCallerThatLeavesDuringTheCommit(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	if err := s.w.conn.Raw(func(c any) error {
		c.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 {
			cancel()
			<-left
			return 0
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := put(ctx, s, "k", nil)
	close(left)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("error %v", err)
	}
	// A transaction behind it sees the write.
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.Get("things", "k")
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestNobodyIsRefusedForWhatNeverWas: two updates share a commit that fails. The
// second one's function refused because of what the first one wrote; its caller
// must not get that answer.
func TestNobodyIsRefusedForWhatNeverWas(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	if err := s.w.conn.Raw(func(c any) error {
		c.(sqlite.HookRegisterer).RegisterCommitHook(func() int32 { return 1 }) // every commit fails
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	running, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // keeps the writer busy until both are queued
		if err := s.Update(t.Context(), func(store.Tx) error {
			close(running)
			<-goOn
			return nil
		}); err != nil {
			t.Errorf("an update that writes nothing: %v", err)
		}
	})
	<-running
	queued := func(n int, fn func(store.Tx) error) <-chan error {
		answer := make(chan error, 1)
		wg.Go(func() { answer <- s.Update(t.Context(), fn) })
		for s.updates.Waiting() < n {
			runtime.Gosched()
		}
		return answer
	}
	taken := errors.New("taken")
	first := queued(1, func(tx store.Tx) error { return tx.Put("things", "k", nil) })
	second := queued(2, func(tx store.Tx) error {
		if _, err := tx.Get("things", "k"); !errors.Is(err, store.ErrNotFound) {
			return errors.Join(taken, err)
		}
		return nil
	})
	close(goOn)
	wg.Wait()
	for _, answer := range []<-chan error{first, second} {
		if err := <-answer; !errors.Is(err, store.ErrFailed) || errors.Is(err, taken) {
			t.Errorf("answered with %v, want ErrFailed", err)
		}
	}
}

func TestFullDiskRefusesWritesAndHeals(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	if err := put(t.Context(), s, "before", nil); err != nil {
		t.Fatal(err)
	}
	// SQLite reports a database at its page limit just as it does a full disk.
	limit := func(n int) {
		s.w.conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n))
	}
	limit(1) // clamped to the current size
	big := make([]byte, 1<<20)
	if err := put(t.Context(), s, "refused", big); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("error %v", err)
	}
	if err := has(t.Context(), s, "before"); err != nil {
		t.Fatalf("reading while full: %v", err)
	}
	if err := has(t.Context(), s, "refused"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("a refused write is there: %v", err)
	}
	if n, err := s.Len(t.Context(), "things", ""); err != nil || n != 1 {
		t.Fatalf("%d records, error %v", n, err)
	}
	limit(1 << 20)
	if err := put(t.Context(), s, "after", big); err != nil {
		t.Fatal(err)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestCountsSurviveReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := open(t, path)
	for i := range 10 {
		if err := put(t.Context(), s, fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		return errors.Join(tx.Delete("things", "3"), tx.Put("things", "4", nil))
	}); err != nil {
		t.Fatal(err)
	}
	check := func(s *Store) {
		t.Helper()
		all, err1 := s.Len(t.Context(), "things", "")
		indexed, err2 := s.Len(t.Context(), "things", "byname")
		if err := errors.Join(err1, err2); err != nil || all != 9 || indexed != 8 {
			t.Fatalf("%d records, %d indexed, error %v; want 9 and 8", all, indexed, err)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, path))
}
