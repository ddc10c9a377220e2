package overlay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// engine is a map that counts looks.
type engine struct {
	have  map[string]string
	looks []string
	err   error
}

func (e *engine) loadMany(rs []*Record) error {
	var keys []string
	for _, r := range rs {
		v, ok := e.have[r.Key]
		if r.Stored = ok; ok {
			r.StoredValue, r.StoredEntries, r.Version = []byte(v), []store.Entry{{Index: "old", SortKey: v}}, 7
		}
		keys = append(keys, r.Key)
	}
	e.looks = append(e.looks, strings.Join(keys, "+"))
	return e.err
}

func (e *engine) tx(assume bool) *Tx {
	return &Tx{Load: func(r *Record) error { return e.loadMany([]*Record{r}) }, LoadMany: e.loadMany, Assume: assume}
}

func newEngine() *engine { return &engine{have: map[string]string{"a": "1", "b": "2"}} }

// writes describes what a commit would do.
func writes(t *Tx) string {
	var out []string
	for _, r := range t.Writes() {
		what := "insert"
		switch {
		case r.Stored && r.Present:
			what = "update"
		case r.Stored:
			what = "delete"
		}
		out = append(out, fmt.Sprintf("%s %s=%s -%d +%d", what, r.Key, r.Value, len(r.Removed()), len(r.Added())))
	}
	return strings.Join(out, ", ")
}

func (e *engine) want(t *testing.T, looks ...string) {
	t.Helper()
	if !slices.Equal(e.looks, looks) {
		t.Errorf("looks %q, want %q", e.looks, looks)
	}
}

func TestEachRecordIsLookedAtOnce(t *testing.T) {
	e := newEngine()
	tx := e.tx(false)
	for range 2 {
		for key, want := range map[string]error{"a": nil, "c": store.ErrNotFound} {
			if _, err := tx.Get("things", key); !errors.Is(err, want) {
				t.Errorf("Get(%s): %v", key, err)
			}
		}
	}
	if err := tx.Put("things", "c", nil); err != nil {
		t.Fatal(err)
	}
	if v, err := tx.Get("things", "c"); err != nil || v == nil || len(v) != 0 {
		t.Errorf("an empty value became %#v, %v", v, err)
	}
	if tx.Reads() != 2 || len(e.looks) != 2 {
		t.Errorf("%d reads, looks %q", tx.Reads(), e.looks)
	}
}

func TestAssumedRecordsAreLoadedOnDemand(t *testing.T) {
	e := newEngine()
	tx := e.tx(true)
	put := func(key, value string) {
		t.Helper()
		if err := tx.Put("things", key, []byte(value), store.Entry{Index: "new", SortKey: value}); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "x")
	put("c", "y")
	if v, err := tx.Get("things", "a"); err != nil || string(v) != "x" {
		t.Fatalf("Get(a) = %q, %v", v, err)
	}
	e.want(t) // nobody has looked
	if tx.Reads() != 0 || tx.Loaded("things", "a") || len(tx.Assumed()) != 2 || len(tx.Records()) != 2 {
		t.Fatalf("%d reads, assumed %d", tx.Reads(), len(tx.Assumed()))
	}
	if got := writes(tx); got != "insert a=x -0 +1, insert c=y -0 +1" {
		t.Errorf("before the look: %s", got)
	}
	if err := tx.LoadAssumed(); err != nil {
		t.Fatal(err)
	}
	e.want(t, "a+c")
	if got := writes(tx); got != "update a=x -1 +1, insert c=y -0 +1" || tx.Reads() != 2 || len(tx.Assumed()) != 0 {
		t.Errorf("after the look: %s, %d reads", got, tx.Reads())
	}
	if err := tx.LoadAssumed(); err != nil || len(e.looks) != 1 {
		t.Errorf("settled twice: %v, looks %q", err, e.looks)
	}
}

// TestDeletingAnAssumedRecord: whether there is anything to delete is unknown
// until somebody looks.
func TestDeletingAnAssumedRecord(t *testing.T) {
	e := newEngine()
	tx := e.tx(true)
	for _, key := range []string{"a", "c"} {
		if err := errors.Join(tx.Put("things", key, []byte("x")), tx.Delete("things", key)); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Get("things", key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("Get(%s) after Delete: %v", key, err)
		}
	}
	e.want(t, "a", "c")
	if got := writes(tx); got != "delete a= -1 +0" || len(tx.Assumed()) != 0 {
		t.Errorf("writes %s, assumed %d", got, len(tx.Assumed()))
	}
}

func TestPreloadKeepsOwnWrites(t *testing.T) {
	e := newEngine()
	tx := e.tx(true)
	if _, err := tx.Get("things", "a"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Put("things", "b", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Record{
		{Collection: "things", Key: "a", Stored: true, StoredValue: []byte("newer")}, // looked at before: stays
		{Collection: "things", Key: "b", Stored: true, StoredValue: []byte("2"), StoredEntries: []store.Entry{{Index: "i"}}, Version: 9},
		{Collection: "things", Key: "d", Stored: true, StoredValue: []byte("4")},
	} {
		tx.Preload(r)
	}
	for key, want := range map[string]string{"a": "1", "b": "mine", "d": "4"} {
		if v, err := tx.Get("things", key); err != nil || string(v) != want {
			t.Errorf("Get(%s) = %q, %v, want %q", key, v, err, want)
		}
		if !tx.Loaded("things", key) {
			t.Errorf("%s is not known", key)
		}
	}
	e.want(t, "a")
	if got := writes(tx); got != "update b=mine -1 +0" {
		t.Errorf("writes %s", got)
	}
	if r := tx.Writes()[0]; r.Version != 9 || tx.Reads() != 3 {
		t.Errorf("version %d, %d reads", r.Version, tx.Reads())
	}
}

func TestPrefetchKeepsOwnWrites(t *testing.T) {
	e := newEngine()
	tx := e.tx(true)
	if err := tx.Put("things", "b", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	ids := func(keys ...string) (out []store.ID) {
		for _, k := range keys {
			out = append(out, store.ID{Collection: "things", Key: k})
		}
		return out
	}
	for range 2 {
		if err := tx.Prefetch(ids("a", "c", "a", "b")); err != nil {
			t.Fatal(err)
		}
	}
	e.want(t, "a+c")
	if v, err := tx.Get("things", "b"); err != nil || string(v) != "mine" {
		t.Errorf("Get(b) = %q, %v", v, err)
	}
	if err := tx.Prefetch(ids("d", "")); err == nil || tx.Err != nil {
		t.Errorf("an empty key: %v, transaction %v", err, tx.Err)
	}
	e.err = store.ErrUnavailable
	if err := tx.Prefetch(ids("e")); !errors.Is(err, store.ErrUnavailable) || !errors.Is(tx.Err, store.ErrUnavailable) {
		t.Errorf("error %v, transaction %v", err, tx.Err)
	}
	if err := tx.Prefetch(ids("f")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("after a failure: %v", err)
	}
}

// TestEngineErrorsFailTheTransaction even if the function ignores them.
func TestEngineErrorsFailTheTransaction(t *testing.T) {
	for name, f := range map[string]func(*Tx){
		"get":    func(tx *Tx) { _, _ = tx.Get("things", "a") },
		"put":    func(tx *Tx) { _ = tx.Put("things", "a", nil) },
		"delete": func(tx *Tx) { _ = tx.Delete("things", "a") },
		"settle": func(tx *Tx) {
			tx.Assume = true
			_ = tx.Put("things", "a", nil)
			_ = tx.LoadAssumed()
		},
		"delete an assumed": func(tx *Tx) {
			tx.Assume = true
			_ = tx.Put("things", "a", nil)
			_ = tx.Delete("things", "a")
		},
		"size": func(tx *Tx) {
			tx.Load = func(*Record) error { return nil }
			for i := range store.MaxTxBytes/store.MaxValueBytes + 1 {
				_ = tx.Put("things", fmt.Sprint(i), make([]byte, store.MaxValueBytes))
			}
		},
	} {
		e := newEngine()
		e.err = store.ErrUnavailable
		want := store.ErrUnavailable
		if name == "size" {
			want = store.ErrTooLarge
		}
		tx := e.tx(false)
		f(tx)
		if !errors.Is(tx.Err, want) {
			t.Errorf("%s: the transaction's error is %v, want %v", name, tx.Err, want)
		}
		if _, err := tx.Get("things", "z"); !errors.Is(err, want) {
			t.Errorf("%s: a later Get: %v", name, err)
		}
		if err := tx.Put("things", "z", nil); !errors.Is(err, want) {
			t.Errorf("%s: a later Put: %v", name, err)
		}
	}
}

func TestReadOnlyTransactionRefusesWrites(t *testing.T) {
	tx := newEngine().tx(false)
	tx.ReadOnly = true
	tx.Notify("topic")
	if err := tx.Put("things", "a", nil); !errors.Is(err, store.ErrReadOnly) {
		t.Error(err)
	}
	if err := tx.Delete("things", "a"); !errors.Is(err, store.ErrReadOnly) || len(tx.Topics()) != 0 {
		t.Errorf("%v, topics %q", err, tx.Topics())
	}
}
