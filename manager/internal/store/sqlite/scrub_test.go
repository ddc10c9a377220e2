package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestScrub: nothing that was replaced is in the files after a scrub, and callers that work meanwhile see no error.
func TestScrub(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), filepath.Join(dir, "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(ctx context.Context, key string, value []byte) error {
		return s.Update(ctx, func(tx store.Tx) error { return tx.Put("c", key, value) })
	}
	secret := []byte("4242-4242")
	for i := range 200 {
		if err := put(t.Context(), fmt.Sprint(i), bytes.Repeat(secret, 200)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 {
		if err := put(t.Context(), fmt.Sprint(i), []byte("sealed")); err != nil {
			t.Fatal(err)
		}
	}
	has := func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(b, secret) {
				return true
			}
		}
		return false
	}
	if !has() {
		t.Fatal("the search finds nothing before the scrub")
	}
	var stop atomic.Bool
	var callers sync.WaitGroup
	for c := range 3 {
		callers.Go(func() {
			for n := 0; !stop.Load(); n++ {
				key := fmt.Sprintf("%d-%d", c, n%10)
				if err := put(t.Context(), key, []byte("other")); err != nil {
					t.Error(err)
					return
				}
				err := s.View(t.Context(), func(tx store.Tx) error {
					_, err := tx.Get("c", key)
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		if err := s.Scrub(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	callers.Wait()
	if has() {
		t.Error("a replaced value is still there")
	}
}

// TestScrubEndsWithItsContext: a scrub that is asked to end harms neither a caller that waits for it nor what follows.
func TestScrubEndsWithItsContext(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value []byte) {
		t.Helper()
		if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.Put("c", key, value) }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		put(fmt.Sprint(i), bytes.Repeat([]byte{byte(i)}, 100_000))
	}
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		if i == 0 {
			cancel()
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Scrub(ctx, nil) }()
		time.Sleep(time.Duration(i) * time.Millisecond / 2) // at different points of its work, or before
		cancel()
		put("after", []byte{byte(i)})
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("scrub %d: %v", i, err)
		}
	}
	if err := s.Scrub(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Err(), s.Close()); err != nil {
		t.Error(err)
	}
}
