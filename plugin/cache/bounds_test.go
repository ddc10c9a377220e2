package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

func digest(n int) (h Hash) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
	copy(h[:], sum[:])
	return h
}

// TestBounds puts ten times as many distinct keys through the table as it
// holds, with answers of mixed sizes. Keys, entries and bytes stay bounded at
// every moment; recent entries are found.
func TestBounds(t *testing.T) {
	for _, o := range []Options{
		{MaxEntries: 800, MaxBytes: 2 << 20},
		{MaxEntries: 800, MaxBytes: 256 << 10, MaxResultBytes: 64 << 10},
		{MaxEntries: 8, MaxBytes: minBytes, MaxResultBytes: 1000},
		{MaxEntries: 100000, MaxBytes: minBytes}, // fewer entries than asked for
	} {
		h := newHost(envoy)
		tab := newTable(h, o)
		n := 10 * min(o.MaxEntries, 1000)
		values := 0
		for a := 0; a < tab.n; a++ {
			values += tab.areas[a].sets * (Ways + 1)
		}
		raw := bytes.Repeat([]byte("r"), 128<<10)
		for i := 0; i < n; i++ {
			now := int64(i + 1)
			hash := digest(i)
			var e Entry
			res, _ := tab.Reserve(&Reservation{Hash: hash, Token: tokenOf(i), Expires: now + 1<<40}, now, &e)
			if res != Created {
				t.Fatalf("%+v: Reserve %d = %d", o, i, res)
			}
			size := []int{0, 100, 700, 2000, 100, 100, 9000, 100, 300, 100}[i%10]
			if i%50 == 9 {
				size = 20000 + i%7*15000
			}
			oc := Outcome{Hash: hash, Token: tokenOf(i), State: api.StateCommitted, Expires: now + 1<<40, Raw: raw[:size]}
			if res, _ := tab.Finish(&oc, now); res != Done {
				t.Fatalf("%+v: Finish %d = %d", o, i, res)
			}
			if size == 100 {
				if body, ok, _ := answer(tab, hash, now); !ok || len(body) != size {
					t.Fatalf("%+v: entry %d is gone at once", o, i)
				}
			}
			if h.bytes > o.MaxBytes || len(h.m) > values+2 {
				t.Fatalf("%+v: after %d keys %d bytes in %d values; the bounds are %d and %d", o, i+1, h.bytes, len(h.m), o.MaxBytes, values+2)
			}
		}
		tab.Sweep(1<<30, int64(n))
		tab.Sweep(1<<30, int64(n))
		s := tab.Stats()
		if s.Entries == 0 || s.Entries > int64(min(o.MaxEntries, tab.areas[0].sets*Ways)) || s.Bytes == 0 || s.Bytes > int64(h.bytes) {
			t.Errorf("%+v: %+v with %d bytes stored", o, s, h.bytes)
		}
		if s.Evictions == 0 {
			t.Errorf("%+v: nothing was evicted: %+v", o, s)
		}
		// When all is over, the sweep leaves only the records.
		tab.Sweep(1<<30, 1<<50)
		tab.Sweep(1<<30, 1<<50)
		if limit := values*headerSize + fixedBytes; h.bytes > limit {
			t.Errorf("%+v: %d bytes are left when all is over, want at most %d", o, h.bytes, limit)
		}
		if s := tab.Stats(); s.Entries != 0 || s.Bytes != 0 {
			t.Errorf("%+v: %+v when all is over", o, s)
		}
	}
}

// TestLayout: for all sizes the areas fit into the bytes, and each one's sets
// are larger than those of the one before.
func TestLayout(t *testing.T) {
	for _, entries := range []int{1, 8, 9, 1000, 100000, 10000000} {
		for _, total := range []int{minBytes, 100 << 10, 1 << 20, 64 << 20, 1<<31 - 1} {
			for _, result := range []int{1, 1000, 576 << 10, 17 << 20} {
				areas, n := layout(entries, total, result)
				sum := fixedBytes
				for a := 0; a < n; a++ {
					sum += areas[a].sets * (areas[a].budget + setOverhead)
					if areas[a].sets < 1 || areas[a].budget < 1 || (a > 0 && areas[a].budget <= areas[a-1].budget) {
						t.Errorf("layout(%d, %d, %d) = %+v", entries, total, result, areas[:n])
					}
				}
				if sum > total || areas[0].sets*Ways > max(entries, Ways) {
					t.Errorf("layout(%d, %d, %d) takes %d bytes: %+v", entries, total, result, sum, areas[:n])
				}
			}
		}
	}
	// The defaults: every answer that is recorded finds a place.
	areas, n := layout(defaultEntries, defaultBytes, defaultResultBytes)
	if areas[0].sets != defaultEntries/Ways || areas[n-1].budget < defaultResultBytes+valueHeader {
		t.Errorf("the default layout is %+v", areas[:n])
	}
}

// TestFullestSets brings every bucket to its largest size: one answer of the
// whole budget, seven cleared values, eight ways and a full list of waiters.
func TestFullestSets(t *testing.T) {
	h := newHost(envoy)
	o := Options{MaxEntries: 512, MaxBytes: 1 << 20, MaxResultBytes: 1000}
	tab := newTable(h, o)
	for b := 0; b < tab.areas[0].sets; b++ {
		finish := func(id, size int, expires int64) {
			t.Helper()
			oc := Outcome{Hash: hashOf(b, id), Token: tokenOf(id), State: api.StateCommitted, Expires: expires, Sole: true, Raw: make([]byte, size)}
			if res, _ := tab.Finish(&oc, 10); res != Done {
				t.Fatalf("Finish = %d", res)
			}
		}
		for id := 1; id <= Ways-2; id++ {
			finish(id, 100, 1000)
		}
		finish(Ways-1, 100, 20)
		finish(Ways, 100, 20)
		tab.Sweep(1<<20, 30)
		mustReserve(t, tab, hashOf(b, 98), 98, 40)
		mustReserve(t, tab, hashOf(b, 99), 99, 40)
		hash := hashOf(b, 99)
		for q := uint32(0); q < MaxWaiters; q++ {
			tab.AddWaiter(&hash, q, 41)
		}
		finish(98, tab.areas[0].budget-valueHeader, 1000)
	}
	sum := 0
	for b := 0; b < tab.areas[0].sets; b++ {
		sum += len(h.m[tab.recordKey(0, b)].data)
	}
	if sum != tab.areas[0].sets*maxRecord {
		t.Errorf("the records take %d bytes, this test wants them at their largest", sum)
	}
	if h.bytes > o.MaxBytes {
		t.Errorf("%d bytes are stored, the bound is %d", h.bytes, o.MaxBytes)
	}
}

// TestSweepShares: VMs continue each other's sweep, a sweep of another size
// begins anew, and a foreign state is replaced.
func TestSweepShares(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		first, second := newTable(h, small), newTable(h, small)
		sets := first.areas[0].sets
		for i := 0; i < sets; i++ {
			hash := hashOf(i, 1)
			mustReserve(t, first, hash, i, 1)
			first.AddWaiter(&hash, uint32(i), 1)
		}
		var woken []uint32
		for i := 0; i < sets; i++ {
			tab := first
			if i%2 == 1 {
				tab = second
			}
			woken = append(woken, tab.Sweep(1, 1000)...)
		}
		for i := range woken {
			if woken[i] != uint32(i) {
				t.Errorf("%s: woken %v", r.name, woken)
				break
			}
		}
		if len(woken) != sets {
			t.Errorf("%s: %d of %d buckets were swept", r.name, len(woken), sets)
		}
		_, cas, _ := h.Get(first.sweepKey())
		h.Set(first.sweepKey(), []byte("not a sweep's state"), cas)
		hash := hashOf(0, 1)
		mustReserve(t, first, hash, 1, 1)
		second.Sweep(sets, 500)
		if s := second.Stats(); s.Entries != 1 {
			t.Errorf("%s: %+v, want 1 entry", r.name, s)
		}
		other := newTable(h, Options{MaxEntries: 8, MaxBytes: minBytes, MaxResultBytes: 1000})
		other.Sweep(1, 500)
		if s := other.Stats(); s.Entries != 1 {
			t.Errorf("%s: after another size %+v, want 1 entry", r.name, s)
		}
	}
}
