package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

func digest(n int) (h Hash) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
	copy(h[:], sum[:])
	return h
}

// TestTableStaysWithinItsBounds puts ten times as many distinct keys through the table as it
// holds, with answers of mixed sizes. Keys, entries and bytes stay bounded at
// every moment; recent entries are found.
func TestTableStaysWithinItsBounds(t *testing.T) {
	for _, o := range []Options{
		{MaxEntries: 800, MaxBytes: 2 << 20},
		{MaxEntries: 800, MaxBytes: 256 << 10, MaxResultBytes: 64 << 10},
		{MaxEntries: 8, MaxBytes: minBytes, MaxResultBytes: 1000},
		{MaxEntries: 100000, MaxBytes: minBytes}, // fewer entries than asked for
	} {
		h := newHost(envoy)
		tab := newTable(h, o)
		n := 10 * min(o.MaxEntries, 1000)
		values := tab.buckets*(Ways+1) + tab.regions
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
		if s.Entries == 0 || s.Entries > int64(min(o.MaxEntries, tab.buckets*Ways)) || s.Bytes == 0 || s.Bytes > int64(h.bytes) {
			t.Errorf("%+v: %+v with %d bytes stored", o, s, h.bytes)
		}
		if s.Evictions == 0 {
			t.Errorf("%+v: nothing was evicted: %+v", o, s)
		}
		// When all is over, the sweep leaves only the records.
		tab.Sweep(1<<30, 1<<50)
		tab.Sweep(1<<30, 1<<50)
		if limit := values*headerSize + tab.regions*(regionHeader+shareSize*tab.span) + fixedBytes; h.bytes > limit {
			t.Errorf("%+v: %d bytes are left when all is over, want at most %d", o, h.bytes, limit)
		}
		if s := tab.Stats(); s.Entries != 0 || s.Bytes != 0 {
			t.Errorf("%+v: %+v when all is over", o, s)
		}
	}
}

// TestLayoutFitsIntoTheBytes: for all sizes records and answers fit into the bytes, and a region
// has room for the largest answer, if the whole table has.
func TestLayoutFitsIntoTheBytes(t *testing.T) {
	for _, entries := range []int{1, 8, 9, 1000, 100000, 10000000} {
		for _, total := range []int{minBytes, 100 << 10, 1 << 20, 64 << 20, 1<<31 - 1} {
			for _, result := range []int{1, 1000, 576 << 10, 17 << 20} {
				l := newLayout(entries, total, result)
				sum := fixedBytes + l.buckets*(maxRecord+Ways) + l.regions*(regionHeader+shareSize*l.span+l.budget*l.unit)
				if sum > total || l.buckets*Ways > max(entries, Ways) || l.budget > maxUnits || l.regions*l.span < l.buckets || (l.regions-1)*l.span >= l.buckets {
					t.Errorf("layout(%d, %d, %d) takes %d bytes: %+v", entries, total, result, sum, l)
				}
				if l.largest < min(result, total/3) {
					t.Errorf("layout(%d, %d, %d) keeps answers of %d bytes", entries, total, result, l.largest)
				}
			}
		}
	}
	if l := newLayout(defaultEntries, defaultBytes, defaultResultBytes); l.buckets != defaultEntries/Ways || l.regions < 4 {
		t.Errorf("the default layout is %+v", l)
	}
}

// TestFullestBucketsFitIntoTheBytes brings every bucket to its largest size: eight ways, a full
// list of waiters, and all bytes of the region in answers.
func TestFullestBucketsFitIntoTheBytes(t *testing.T) {
	h := newHost(envoy)
	o := Options{MaxEntries: 512, MaxBytes: 1 << 20, MaxResultBytes: 1 << 20}
	tab := newTable(h, o)
	for b := 0; b < tab.buckets; b++ {
		for id := 1; id <= Ways; id++ {
			mustReserve(t, tab, hashOf(b, id), id, 10)
		}
		for id := 1; id < Ways; id++ {
			size := 100
			if b == 0 && id == 1 {
				size = (tab.budget - tab.buckets*tab.units(Ways*(100+valueHeader))) * tab.unit
			}
			mustFinish(t, tab, hashOf(b, id), id, strings.Repeat("x", size), 20)
		}
		hash := hashOf(b, Ways)
		for q := uint32(0); q < MaxWaiters; q++ {
			tab.AddWaiter(&hash, q, 41)
		}
	}
	sum := 0
	for b := 0; b < tab.buckets; b++ {
		sum += len(h.m[tab.recordKey(b)].data)
	}
	if sum != tab.buckets*maxRecord {
		t.Errorf("the records take %d bytes, this test wants them at their largest", sum)
	}
	if h.peak > o.MaxBytes || h.peak < o.MaxBytes*98/100 {
		t.Errorf("%d bytes were stored, the bound is %d", h.peak, o.MaxBytes)
	}
}

// TestSweepsContinueEachOther: VMs continue each other's sweep. A table of another size starts
// the sweep from the beginning, and a foreign state is replaced.
func TestSweepsContinueEachOther(t *testing.T) {
	for _, r := range usableHosts {
		h := newHost(r)
		first, second := newTable(h, small), newTable(h, small)
		sets := first.buckets
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
		_, cas, _ := h.Get(first.sweepKey(), nil)
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
