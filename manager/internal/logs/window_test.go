package logs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// TestWindowAgainstModel does at random what a log does with its window, and with a plain map.
func TestWindowAgainstModel(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var w window
		type known struct {
			number uint64
			at     int64
		}
		newest := make(map[Hash]known)
		var order []slot
		now, number := int64(0), uint64(0)
		const age = 1000
		hash := func() (h Hash) {
			// Few distinct starts, so that buckets of the table collide.
			binary.LittleEndian.PutUint64(h[:], uint64(rnd.IntN(50))*7)
			binary.LittleEndian.PutUint64(h[8:], uint64(rnd.IntN(40)))
			return h
		}
		for range 5000 {
			now += int64(rnd.IntN(20))
			var batch []slot
			for range rnd.IntN(8) {
				h := hash()
				if k, ok := newest[h]; ok && now-k.at < age {
					continue
				}
				if _, again := w.find(&h, now, age); again {
					continue // added by this batch
				}
				number++
				s := slot{hash: h, number: number, at: now}
				w.add(s)
				batch = append(batch, s)
			}
			if rnd.IntN(3) == 0 {
				w.undo()
			} else {
				w.keep()
				for _, s := range batch {
					newest[s.hash] = known{s.number, s.at}
				}
				order = append(order, batch...)
			}
			for n := rnd.IntN(12); n > 0 && len(order) > 0 && (now-order[0].at >= age || len(order) > 600); n-- {
				if newest[order[0].hash].number == order[0].number {
					delete(newest, order[0].hash)
				}
				order = order[1:]
				w.pop()
			}
			if w.len() != len(order) {
				t.Fatalf("seed %d: the window holds %d, want %d", seed, w.len(), len(order))
			}
			for range 5 {
				h := hash()
				s, ok := w.find(&h, now, age)
				want, has := newest[h]
				if has = has && now-want.at < age; ok != has || ok && s.number != want.number {
					t.Fatalf("seed %d: found %v %v, want %v %v", seed, s, ok, want, has)
				}
			}
		}
	}
}

// TestWindowOfAMillionIdsStaysSmall shows what an id takes when the window holds a million, and that a snapshot of
// them is read back in a fraction of what a start may take.
func TestWindowOfAMillionIdsStaysSmall(t *testing.T) {
	const keys = 1_000_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := NewState("log", HashKey{1}, DefaultConfig())
	var key [8]byte
	for i := range uint64(keys) {
		binary.LittleEndian.PutUint64(key[:], i)
		s.Replay(&Entry{Number: i + 1, ID: fmt.Sprintf("order-%d", i), Payload: key[:]}, int64(i))
	}
	took := heap() - before
	if s.win.len() != keys {
		t.Fatalf("the window holds %d ids", s.win.len())
	}
	each := float64(took) / keys
	t.Logf("%.1f bytes for each of %d ids, accounted %.1f", each, keys, float64(s.win.bytes())/keys)
	if each > 150 {
		t.Errorf("an id takes %.1f bytes, at most 150 are allowed", each)
	}
	var recs [][]byte
	if err := s.Snapshot().Write(func(rec []byte) error {
		recs = append(recs, append([]byte(nil), rec...))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var r *State
	for _, rec := range recs {
		var err error
		if r, _, err = RestoreState(r, rec); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("restored in %v", time.Since(start))
	for _, i := range []int{0, 1, keys / 2, keys - 1} {
		if n, err := r.Lookup(fmt.Sprintf("order-%d", i), 0, 0); err != nil || n != uint64(i)+1 {
			t.Errorf("id %d is entry %d, %v after the restore", i, n, err)
		}
	}
}
