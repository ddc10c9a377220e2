// Package objecttest has the suite that every object.Store must pass, servers of
// object storage, and a proxy in front of them that has faults.
package objecttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// limit of one test of the suite: far more than any takes.
const limit = 2 * time.Minute

// Run runs the suite. open returns an empty store.
func Run(t *testing.T, open func(t *testing.T) object.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, context.Context, object.Store)
	}{
		{"create only once", createOnce},
		{"replace only what is still there", replace},
		{"get what is missing", missing},
		{"bodies come back as they were", bodies},
		{"list in order and from a name on", list},
		{"list page by page", listPages},
		{"delete twice", deleteTwice},
		{"one of many creates", race},
		{"replaces lose none", counter},
		{"names and sizes that are refused", refused},
		{"a context that ended", cancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			c.run(t, ctx, open(t))
		})
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
}

func createOnce(t *testing.T, ctx context.Context, s object.Store) {
	v := must(s.Create(ctx, "a/b", []byte("one")))(t)
	_, err := s.Create(ctx, "a/b", []byte("two"))
	want(t, err, object.ErrExists)
	b, got, err := s.Get(ctx, "a/b")
	if err != nil || string(b) != "one" || got != v || v == "" {
		t.Fatalf("got %q %q %v, want %q %q", b, got, err, "one", v)
	}
}

func replace(t *testing.T, ctx context.Context, s object.Store) {
	_, err := s.Replace(ctx, "lease", []byte("x"), "0123456789abcdef0123456789abcdef")
	want(t, err, object.ErrChanged)
	v1 := must(s.Create(ctx, "lease", []byte("one")))(t)
	v2 := must(s.Replace(ctx, "lease", []byte("two"), v1))(t)
	if v1 == v2 {
		t.Fatalf("both versions are %q", v1)
	}
	_, err = s.Replace(ctx, "lease", []byte("three"), v1)
	want(t, err, object.ErrChanged)
	if b, v, err := s.Get(ctx, "lease"); err != nil || string(b) != "two" || v != v2 {
		t.Fatalf("got %q %q %v", b, v, err)
	}
	if err := s.Delete(ctx, "lease"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Replace(ctx, "lease", []byte("four"), v2)
	want(t, err, object.ErrChanged)
}

func missing(t *testing.T, ctx context.Context, s object.Store) {
	_, _, err := s.Get(ctx, "none")
	want(t, err, object.ErrNotFound)
	_, _, err = s.Get(ctx, "none/at/all")
	want(t, err, object.ErrNotFound)
	if infos, err := s.List(ctx, "none", ""); err != nil || len(infos) != 0 {
		t.Fatalf("listed %v, %v", infos, err)
	}
}

func bodies(t *testing.T, ctx context.Context, s object.Store) {
	for i, n := range []int{1, 100, 64 << 10, 9 << 20} {
		body := make([]byte, n)
		for j := range body {
			body[j] = byte(j * (i + 7) >> 3)
		}
		name := fmt.Sprintf("body.%d", n)
		old := must(s.Create(ctx, name, slices.Clone(body)))(t)
		body[n/2]++
		must(s.Replace(ctx, name, slices.Clone(body), old))(t)
		_, err := s.Replace(ctx, name, slices.Clone(body), old)
		for err != nil && !errors.Is(err, object.ErrChanged) && ctx.Err() == nil {
			// A server may refuse a body before it has read it, and its answer is lost with the connection.
			_, err = s.Replace(ctx, name, slices.Clone(body), old)
		}
		if !errors.Is(err, object.ErrChanged) {
			t.Fatalf("%d bytes: replaced by the old version: %v", n, err)
		}
		if got, _, err := s.Get(ctx, name); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
}

func list(t *testing.T, ctx context.Context, s object.Store) {
	for _, name := range []string{"p/2", "p/1", "q/1", "p/10", "p/sub/x", "p.x"} {
		must(s.Create(ctx, name, []byte(name)))(t)
	}
	for _, c := range []struct{ prefix, after, want string }{
		{"p/", "", "p/1 p/10 p/2 p/sub/x"},
		{"p/", "p/1", "p/10 p/2 p/sub/x"},
		{"p/1", "", "p/1 p/10"},
		{"p", "", "p.x p/1 p/10 p/2 p/sub/x"},
		{"", "p/sub/x", "q/1"},
		{"", "z", ""},
	} {
		var names []string
		for _, o := range must(s.List(ctx, c.prefix, c.after))(t) {
			names = append(names, o.Name)
			if o.Bytes != int64(len(o.Name)) || o.Modified.IsZero() {
				t.Errorf("%+v", o)
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("prefix %q after %q: %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func listPages(t *testing.T, ctx context.Context, s object.Store) {
	const n = object.MaxList + 5
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := s.Create(ctx, fmt.Sprintf("n/%05d", i), []byte{1}); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
	next := 0
	err := object.All(ctx, s, "n/", func(o object.Info) error {
		if o.Name != fmt.Sprintf("n/%05d", next) {
			return fmt.Errorf("number %d is %s", next, o.Name)
		}
		next++
		return nil
	})
	if err != nil || next != n {
		t.Fatalf("%d of %d listed: %v", next, n, err)
	}
}

func deleteTwice(t *testing.T, ctx context.Context, s object.Store) {
	must(s.Create(ctx, "d/1", []byte("x")))(t)
	for range 2 {
		if err := s.Delete(ctx, "d/1"); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.Get(ctx, "d/1")
	want(t, err, object.ErrNotFound)
	must(s.Create(ctx, "d/1", []byte("again")))(t)
}

// race has many callers create one object: one of them does.
func race(t *testing.T, ctx context.Context, s object.Store) {
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := s.Create(ctx, "prize", fmt.Appendf(nil, "%d", i))
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, object.ErrExists) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d callers created it", won.Load())
	}
}

// counter has callers count together: each replaces what it read.
func counter(t *testing.T, ctx context.Context, s object.Store) {
	const callers, each = 4, 10
	must(s.Create(ctx, "count", []byte{'|'}))(t)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for done := 0; done < each; {
				b, v, err := s.Get(ctx, "count")
				if err == nil {
					_, err = s.Replace(ctx, "count", append(b, '+'), v)
				}
				if err == nil {
					done++
				} else if !errors.Is(err, object.ErrChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if b, _, err := s.Get(ctx, "count"); err != nil || len(b) != callers*each+1 {
		t.Fatalf("counted %d, %v", len(b), err)
	}
}

func refused(t *testing.T, ctx context.Context, s object.Store) {
	for _, name := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a b", "a\x00", "ä", strings.Repeat("x", object.MaxName+1)} {
		if _, err := s.Create(ctx, name, nil); err == nil {
			t.Errorf("name %q was created", name)
		}
		if _, _, err := s.Get(ctx, name); err == nil || errors.Is(err, object.ErrNotFound) {
			t.Errorf("get of name %q: %v", name, err)
		}
		if err := s.Delete(ctx, name); err == nil {
			t.Errorf("name %q was deleted", name)
		}
	}
	if _, err := s.Create(ctx, "empty", nil); err == nil {
		t.Error("an empty object was created")
	}
	_, err := s.Create(ctx, "large", make([]byte, object.MaxBytes+1))
	want(t, err, object.ErrTooLarge)
}

func cancelled(t *testing.T, ctx context.Context, s object.Store) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.Create(ctx, "a", []byte{1})
	want(t, err, context.Canceled)
	_, _, err = s.Get(ctx, "a")
	want(t, err, context.Canceled)
	_, err = s.List(ctx, "a", "")
	want(t, err, context.Canceled)
	want(t, s.Delete(ctx, "a"), context.Canceled)
}
