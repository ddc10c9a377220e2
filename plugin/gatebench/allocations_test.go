package gatebench

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// allocated is how much the VMs of a process have allocated so far.
type allocated struct{ objects, bytes int64 }

// allocations plays n requests of one kind after n others, and returns how much one of them
// makes the VM allocate: objects, and bytes as the runtime rounds them. The host's values are
// included, because they are copied into the guest's memory. next makes the i-th request.
func allocations(tb testing.TB, config string, n int, next func(i int) request, check func(r *rig, calls int64)) (objects, bytes float64) {
	clock := hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := start(tb, hostsim.Config{Guest: module(tb, memstatsModule), PluginConfig: []byte(config), Clock: clock})
	// The gauges change on ticks, which allocate as well. A tick without requests before
	// it says how much.
	read := func() allocated {
		clock.Advance(200 * time.Millisecond)
		objects, _ := r.host.Process().Metric("memstats_objects")
		bytes, _ := r.host.Process().Metric("memstats_bytes")
		return allocated{int64(objects.Value), int64(bytes.Value)}
	}
	r.must(r.flow(n, 0, next))
	r.reached.Store(0)
	calls := r.ledger.calls.Load()
	before := read()
	tick := read()
	r.must(r.flow(n, 0, func(i int) request { return next(n + i) }))
	after := read()
	check(r, calls)
	if tick.objects == 0 {
		tb.Fatal("the module does not report its memory")
	}
	idle := allocated{tick.objects - before.objects, tick.bytes - before.bytes}
	return float64(after.objects-tick.objects-idle.objects) / float64(n), float64(after.bytes-tick.bytes-idle.bytes) / float64(n)
}

// BenchmarkHitAllocations reports what a hit allocates inside the VM. Its time is not
// that of a hit; see BenchmarkHit.
func BenchmarkHitAllocations(b *testing.B) {
	for _, c := range []struct{ name, config string }{{"headers", headersMode}, {"body", bodyMode}} {
		b.Run(c.name, func(b *testing.B) {
			var objects, bytes float64
			for range b.N {
				objects, bytes = allocations(b, c.config, hitKeys, hit, func(r *rig, calls int64) { r.onlyHits(hitKeys, calls) })
			}
			b.ReportMetric(objects, "vm-allocs/hit")
			b.ReportMetric(bytes, "vm-B/hit")
		})
	}
}

// BenchmarkMissAllocations is BenchmarkHitAllocations for first requests.
func BenchmarkMissAllocations(b *testing.B) {
	for _, c := range []struct{ name, config string }{{"headers", headersMode}, {"body", bodyMode}, {"continue", continueMode}} {
		b.Run(c.name, func(b *testing.B) {
			var objects, bytes float64
			for range b.N {
				objects, bytes = allocations(b, c.config, hitKeys, miss, func(r *rig, _ int64) {
					if n := r.reached.Load(); n != hitKeys || r.replays.Load() > 0 || r.odd.Load() > 0 {
						b.Fatalf("%d of %d requests reached upstream; %d replays, %d odd answers", n, hitKeys, r.replays.Load(), r.odd.Load())
					}
				})
			}
			b.ReportMetric(objects, "vm-allocs/miss")
			b.ReportMetric(bytes, "vm-B/miss")
		})
	}
}
