package cache

import (
	"bytes"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// frozen answers without copying, so that what remains is the table's own cost.
type frozen struct{ m map[string]hostValue }

func (f *frozen) Get(key string, _ []byte) ([]byte, uint32, Status) {
	v, ok := f.m[key]
	if !ok {
		return nil, 0, NotFound
	}
	return v.data, v.cas, OK
}

func (f *frozen) Set(key string, value []byte, cas uint32) Status {
	v, ok := f.m[key]
	if ok && cas != 0 && cas != v.cas {
		return CASMismatch
	}
	if ok && len(v.data) == len(value) {
		copy(v.data, value)
		v.cas++
		f.m[strings.Clone(key)] = v
		return OK
	}
	f.m[strings.Clone(key)] = hostValue{bytes.Clone(value), v.cas + 1}
	return OK
}

func frozenTable(touch int64) (*Table, Hash) {
	tab := New(&frozen{map[string]hostValue{}}, Semantics{ZeroOverwrites: true, Usable: true}, Options{})
	tab.touch = touch
	hash := hashOf(1, 1)
	for i := 1; i <= Ways; i++ { // a full bucket; the entry looked for comes last
		hash = hashOf(1, i)
		o := Outcome{Hash: hash, Token: tokenOf(i), State: api.StateCommitted, Expires: 1 << 60, Raw: bytes.Repeat([]byte("x"), 256)}
		tab.Finish(&o, 1)
	}
	return tab, hash
}

// TestHitAllocatesOnlyHostValues: a hit allocates nothing but the host's values.
func TestHitAllocatesOnlyHostValues(t *testing.T) {
	tab, hash := frozenTable(defaultTouch)
	var e Entry
	ok := true
	n := testing.AllocsPerRun(100, func() {
		found := tab.Lookup(&hash, 2, &e)
		body, has := tab.Body(&e)
		ok = ok && found && has && len(body) == 256
	})
	if !ok || n != 0 {
		t.Errorf("found %v, %v allocations per hit, want 0", ok, n)
	}
}

// TestMissAllocatesOnlyHostValues: once the buffers have grown, a reservation, its waiters and
// its end allocate nothing but the host's values.
func TestMissAllocatesOnlyHostValues(t *testing.T) {
	h := &frozen{map[string]hostValue{}}
	tab := New(h, Semantics{ZeroOverwrites: true, Usable: true}, Options{})
	hash, token := hashOf(1, 1), tokenOf(1)
	r := Reservation{Hash: hash, Token: token, Expires: 1 << 60}
	var e Entry
	ok := true
	n := testing.AllocsPerRun(100, func() {
		res, _ := tab.Reserve(&r, 1, &e)
		ok = ok && res == Created && tab.AddWaiter(&hash, 1, 1) == Waiting
		res, wake := tab.Release(&hash, &token, 1)
		ok = ok && res == Done && len(wake) == 1
	})
	// The host of this test copies keys and values: one each per set.
	if !ok || n > 8 {
		t.Errorf("ok %v, %v allocations", ok, n)
	}
}

func BenchmarkHit(b *testing.B) {
	tab, hash := frozenTable(defaultTouch)
	var e Entry
	b.ReportAllocs()
	for b.Loop() {
		if !tab.Lookup(&hash, 2, &e) {
			b.Fatal("lost")
		}
		if _, ok := tab.Body(&e); !ok {
			b.Fatal("lost")
		}
	}
}

// BenchmarkHitTouching is a hit that writes the last use back.
func BenchmarkHitTouching(b *testing.B) {
	tab, hash := frozenTable(0)
	var e Entry
	b.ReportAllocs()
	for b.Loop() {
		if !tab.Lookup(&hash, 2, &e) {
			b.Fatal("lost")
		}
	}
}

// BenchmarkMiss is a whole first request on a steady table: look, reserve,
// finish.
func BenchmarkMiss(b *testing.B) {
	h := newHost(envoy)
	tab := newTable(h, Options{MaxEntries: 8000})
	raw := bytes.Repeat([]byte("x"), 256)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		hash, token := digest(i), tokenOf(i)
		now := int64(i)
		var e Entry
		tab.Lookup(&hash, now, &e)
		tab.Reserve(&Reservation{Hash: hash, Token: token, Expires: now + 1e6}, now, &e)
		o := Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: now + 1e9, Raw: raw}
		tab.Finish(&o, now)
	}
	b.ReportMetric(float64(h.gets+h.sets)/float64(i), "hostcalls/op")
}
