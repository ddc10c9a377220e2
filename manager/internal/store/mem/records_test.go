package mem

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Keys whose hashes collide are kept apart, through any sequence of changes.
func TestRecordsWithCollidingHashes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	r := newRecords()
	r.hash = func(key string) uint64 { return uint64(key[len(key)-1]) % 3 }
	model := make(map[string]*record)
	for step := range 20000 {
		key := fmt.Sprint("key", rnd.IntN(20))
		switch rnd.IntN(3) {
		case 0:
			if old := r.delete(key); old != model[key] {
				t.Fatalf("step %d: delete of %s returned %v, want %v", step, key, old, model[key])
			}
			delete(model, key)
		case 1:
			rec := newRecord(key, 0, nil)
			if old := r.put(rec); old != model[key] {
				t.Fatalf("step %d: put of %s returned %v, want %v", step, key, old, model[key])
			}
			model[key] = rec
		}
		if got := r.get(key); got != model[key] {
			t.Fatalf("step %d: %s is %v, want %v", step, key, got, model[key])
		}
		if r.len() != len(model) {
			t.Fatalf("step %d: %d records, want %d", step, r.len(), len(model))
		}
	}
	met := 0
	for rec := range r.all() {
		met++
		if model[rec.key()] != rec {
			t.Errorf("the walk meets %s as another record", rec.key())
		}
	}
	if met != len(model) {
		t.Errorf("the walk meets %d records, want %d", met, len(model))
	}
}

// A record with two index entries, as a ledger's, takes at most 300 bytes
// besides its key and value.
func TestMemoryPerRecord(t *testing.T) {
	const n = 100000
	s := New(Options{})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	payload := 0
	for i := range n {
		key, value := benchKey(i), make([]byte, 256)
		payload += len(key) + len(value)
		sort := fmt.Sprintf("%016x", i)
		err := s.Update(t.Context(), func(tx store.Tx) error {
			return tx.Put("ledger", key, value, store.Entry{Index: "expiry", SortKey: sort}, store.Entry{Index: "used", SortKey: sort})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	per := float64(heap()-before-uint64(payload)) / n
	t.Logf("%.0f bytes per record besides %d of key and value", per, payload/n)
	if per > 300 {
		t.Errorf("%.0f bytes per record, want at most 300", per)
	}
	runtime.KeepAlive(s)
}
