package jobstest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// How the tests damage records and check the queue afterwards.

// indexes of the collections whose records the tests damage.
var indexes = map[store.Collection][]string{
	"jobs":        {"queued", "scheduled", "active", "done", "dead", "function", "expires", "keyed", "batch"},
	"job_locks":   {"expiry"},
	"job_events":  {"name"},
	"job_batches": {"created", "done"},
	"job_slots":   {"ready", "blocked"},
}

// damages are the ways in which a value may be damaged.
var damages = map[string]func([]byte) []byte{
	"another version": func(b []byte) []byte { b[0]++; return b },
	"cut short":       func(b []byte) []byte { return b[:len(b)/2] },
	"empty":           func([]byte) []byte { return nil },
	"longer":          func(b []byte) []byte { return append(b, 0) },
	"nonsense":        func(b []byte) []byte { return bytes.Repeat([]byte{0xff}, len(b)) },
}

// rewrite changes the values of records, but not their index entries, as an edit
// from outside would.
func (e *env) rewrite(c store.Collection, change func([]byte) []byte, keys ...string) {
	e.Helper()
	wanted := make(map[string][]store.Entry, len(keys))
	for _, key := range keys {
		wanted[key] = nil
	}
	for _, index := range indexes[c] {
		var after *store.Hit
		for more := true; more; {
			e.ok(e.in.Store.View(e.ctx, func(tx store.Tx) error {
				hits, err := tx.Scan(c, index, store.Range{After: after, Limit: 1000})
				if err != nil {
					return err
				}
				for i := range hits {
					if _, ok := wanted[hits[i].Key]; ok {
						wanted[hits[i].Key] = append(wanted[hits[i].Key], store.Entry{Index: index, SortKey: hits[i].SortKey})
					}
				}
				if more = len(hits) == 1000; more {
					after = &hits[999]
				}
				return nil
			}))
		}
	}
	for chunk := range slices.Chunk(keys, 200) {
		e.ok(e.in.Store.Update(e.ctx, func(tx store.Tx) error {
			for _, key := range chunk {
				value, err := tx.Get(c, key)
				if err != nil {
					return fmt.Errorf("%s %q: %w", c, key, err)
				}
				if err := tx.Put(c, key, change(bytes.Clone(value)), wanted[key]...); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

func (e *env) value(c store.Collection, key string) []byte {
	e.Helper()
	var value []byte
	err := e.in.Store.View(e.ctx, func(tx store.Tx) error {
		v, err := tx.Get(c, key)
		value = bytes.Clone(v)
		return err
	})
	if err != nil {
		e.Fatalf("%s %q: %v", c, key, err)
	}
	return value
}

// wantUnreadable checks an answer about a record that cannot be read.
func (e *env) wantUnreadable(what string, err error, c store.Collection, key string) {
	e.Helper()
	var u *store.UnreadableError
	if !errors.As(err, &u) || u.Collection != c || u.Key != key || u.Reason == "" {
		e.Errorf("%s: %v, want an UnreadableError for %s %q", what, err, c, key)
	}
}

// callAll makes every call that can name a job, for a job that cannot be read.
func (e *env) callAll(id string) {
	e.Helper()
	before := e.value("jobs", id)
	_, err := e.q.Get(e.ctx, id)
	e.wantUnreadable("Get", err, "jobs", id)
	_, err = e.q.Wait(e.ctx, id, time.Minute)
	e.wantUnreadable("Wait", err, "jobs", id)
	_, err = e.q.Heartbeat(e.ctx, id, "token", 0, nil)
	e.wantUnreadable("Heartbeat", err, "jobs", id)
	_, err = e.q.Finish(e.ctx, jobs.Finish{ID: id, Token: "token", State: jobs.Complete})
	e.wantUnreadable("Finish", err, "jobs", id)
	_, err = e.q.Retry(e.ctx, jobs.Retry{ID: id})
	e.wantUnreadable("Retry", err, "jobs", id)
	_, err = e.q.Retry(e.ctx, jobs.Retry{ID: id, Token: "token"})
	e.wantUnreadable("Retry by a worker", err, "jobs", id)
	_, err = e.q.Cancel(e.ctx, id)
	e.wantUnreadable("Cancel", err, "jobs", id)
	_, err = e.q.Replay(e.ctx, "f", id)
	e.wantUnreadable("Replay", err, "jobs", id)
	_, err = e.q.Enqueue(e.ctx, jobs.Submission{Function: "f", ID: id})
	e.wantUnreadable("Enqueue", err, "jobs", id)
	if after := e.value("jobs", id); !bytes.Equal(before, after) {
		e.Errorf("job %s was %x and is %x", id, before, after)
	}
}

// names returns n ids.
func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return out
}

// met returns how often the queue has found records that cannot be read.
func (e *env) met(c store.Collection) uint64 { return e.q.Unreadable().Counts()[c].Met }

func (e *env) locks() []string {
	e.Helper()
	var keys []string
	e.ok(e.in.Store.View(e.ctx, func(tx store.Tx) error {
		keys = nil
		hits, err := tx.Scan("job_locks", "expiry", store.Range{Limit: 100})
		for _, h := range hits {
			keys = append(keys, h.Key)
		}
		return err
	}))
	slices.Sort(keys)
	return keys
}
