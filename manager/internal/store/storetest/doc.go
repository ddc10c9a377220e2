// Package storetest is the conformance suite of store engines: tests of what the contract in package store promises. An
// engine is wired with a Factory:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Opener {
//			dir := t.TempDir()
//			return func(t *testing.T) store.Store {
//				s, err := engine.Open(t.Context(), dir)
//				if err != nil {
//					t.Fatal(err)
//				}
//				return s
//			}
//		})
//	}
//
// The suite opens each store it uses, closes it, and opens it again if the engine says that it is durable. If an engine
// says that it is shared, the suite opens it several times, as several managers would.
//
// RunCrash adds tests for engines whose storage a test can inspect in the state that a power failure would leave.
//
// The suite requires nothing that the contract leaves open: functions may run again, scans may be stale for a moment,
// wake-ups may be spurious, counts may lag. It waits for conditions and never for time to pass.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Opener opens the engine, always on the same data. It is called again while a store is open only if the engine is
// shared, and after the store was closed only if the engine is durable.
type Opener func(t *testing.T) store.Store

// Factory prepares an empty set of data for one test. Tests run in parallel.
type Factory func(t *testing.T) Opener

// patience bounds everything the suite waits for, a whole case included. A test that exceeds it hangs.
const patience = 10 * time.Minute

// Run runs the suite against an engine. It is the same in every run (deep.Quick).
func Run(t *testing.T, factory Factory) {
	t.Helper()
	run(t, factory, func(t *testing.T, _ string) { deep.Quick(t) })
}

// RunExcept is Run without the tests that are named, for a store around an engine that cannot keep to the engine's exact
// sizes.
func RunExcept(t *testing.T, factory Factory, names ...string) {
	t.Helper()
	run(t, factory, func(t *testing.T, name string) {
		if slices.Contains(names, name) {
			t.Skip("the engine's exact sizes are not kept")
		}
		deep.Quick(t)
	})
}

// RunCell is Run for one of several settings of an engine, which share the cases between them (deep.Case).
func RunCell(t *testing.T, setting string, all []string, factory Factory) {
	t.Helper()
	run(t, factory, func(t *testing.T, name string) { deep.Case(t, name, setting, all) })
}

// run runs the cases that skip does not skip.
func run(t *testing.T, factory Factory, skip func(t *testing.T, name string)) {
	t.Helper()
	probe := &env{T: t, open: factory(t)}
	caps := probe.store().Capabilities()
	t.Logf("engine %q: durable %v, shared %v, sizes %v, time precision %v", caps.Name, caps.Durable, caps.Shared, caps.Sizes, caps.TimePrecision)
	if caps.Name == "" || caps.TimePrecision <= 0 {
		t.Errorf("capabilities are incomplete: %+v", caps)
	}
	for _, c := range cases {
		if c.durable && !caps.Durable || c.shared && !caps.Shared || c.alone && caps.Shared || c.sizes && !caps.Sizes {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			skip(t, c.name)
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c.test(&env{T: t, ctx: ctx, open: factory(t), caps: caps})
		})
	}
}

// testCase is a test; durable, shared, alone (not shared) and sizes say which engines it is for.
type testCase struct {
	name                          string
	test                          func(*env)
	durable, shared, alone, sizes bool
}

var cases = slices.Concat(recordCases, limitCases, scanCases, isolationCases, claimCases, prefetchCases, sizeCases, lifeCases)

// env is the environment of a test.
type env struct {
	*testing.T
	ctx  context.Context
	open Opener
	caps store.Capabilities
}

// store opens a store that is closed at the end of the test, unless the test closes it itself.
func (e *env) store() store.Store {
	e.Helper()
	s := e.open(e.T)
	e.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			e.Errorf("Close: %v", err)
		}
	})
	return s
}

// managers opens n stores on the same data if the engine is shared, and
// otherwise returns the same one n times.
func (e *env) managers(n int) []store.Store {
	e.Helper()
	all := []store.Store{e.store()}
	for len(all) < n {
		if e.caps.Shared {
			all = append(all, e.store())
		} else {
			all = append(all, all[0])
		}
	}
	return all
}

// The collection and indexes most tests use.
const (
	things  = store.Collection("things")
	byName  = "by_name"
	byState = "by_state"
)

// update is Update, repeated after ErrConflict as callers do.
func update(ctx context.Context, s store.Store, fn func(store.Tx) error) error {
	for {
		err := s.Update(ctx, fn)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (e *env) update(s store.Store, fn func(store.Tx) error) {
	e.Helper()
	if err := update(e.ctx, s, fn); err != nil {
		e.Fatalf("Update: %v", err)
	}
}

func (e *env) view(s store.Store, fn func(store.Tx) error) {
	e.Helper()
	if err := s.View(e.ctx, fn); err != nil {
		e.Fatalf("View: %v", err)
	}
}

func (e *env) put(s store.Store, key, value string, entries ...store.Entry) {
	e.Helper()
	e.update(s, func(tx store.Tx) error { return tx.Put(things, key, []byte(value), entries...) })
}

func (e *env) delete(s store.Store, key string) {
	e.Helper()
	e.update(s, func(tx store.Tx) error { return tx.Delete(things, key) })
}

// absent is what get returns for an absent record.
const absent = "<absent>"

func get(tx store.Tx, c store.Collection, key string) (string, error) {
	v, err := tx.Get(c, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return absent, nil
	case err != nil:
		return "", err
	}
	return string(v), nil
}

// getAll gets several records of things.
func getAll(tx store.Tx, keys ...string) (values []string, err error) {
	for _, key := range keys {
		v, err := get(tx, things, key)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// idsOf names records of things.
func idsOf(keys ...string) (ids []store.ID) {
	for _, key := range keys {
		ids = append(ids, store.ID{Collection: things, Key: key})
	}
	return ids
}

// calls are the two kinds of transactions of a store.
func calls(s store.Store) map[string]func(context.Context, func(store.Tx) error) error {
	return map[string]func(context.Context, func(store.Tx) error) error{"Update": s.Update, "View": s.View}
}

// close closes a store before the end of the test.
func (e *env) close(s store.Store) {
	e.Helper()
	if err := s.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
}

func (e *env) get(s store.Store, key string) string {
	e.Helper()
	var v string
	e.view(s, func(tx store.Tx) (err error) {
		v, err = get(tx, things, key)
		return err
	})
	return v
}

// want checks the records of things: key, value, key, value, ...
func (e *env) want(s store.Store, keysAndValues ...string) {
	e.Helper()
	for i := 0; i < len(keysAndValues); i += 2 {
		if got := e.get(s, keysAndValues[i]); got != keysAndValues[i+1] {
			e.Errorf("record %q is %.80q, want %.80q", keysAndValues[i], got, keysAndValues[i+1])
		}
	}
}

func (e *env) scan(s store.Store, index string, r store.Range) []store.Hit {
	e.Helper()
	var hits []store.Hit
	e.view(s, func(tx store.Tx) (err error) {
		hits, err = tx.Scan(things, index, r)
		return err
	})
	return hits
}

// wantScan waits until a scan returns the hits, each as "sortkey/key".
func (e *env) wantScan(s store.Store, index string, r store.Range, want ...string) {
	e.Helper()
	var got []string
	e.eventually(func() bool {
		got = hitsOf(e.scan(s, index, r))
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("scan of %s %+v is %q, want %q", index, r, got, want) })
}

// wantLen waits until a count is n.
func (e *env) wantLen(s store.Store, c store.Collection, index string, n int) {
	e.Helper()
	got := 0
	e.eventually(func() bool {
		var err error
		if got, err = s.Len(e.ctx, c, index); err != nil {
			e.Fatalf("Len: %v", err)
		}
		return got == n
	}, func() string { return fmt.Sprintf("Len(%s, %q) is %d, want %d", c, index, got, n) })
}

// eventually polls until ok returns true, and after patience fails with the text of complaint.
func (e *env) eventually(ok func() bool, complaint func() string) {
	e.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience / 2)
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			e.Fatal(complaint())
		}
	}
}
