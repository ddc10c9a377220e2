package gatebench

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// allocated is how much the VMs of a process have allocated so far.
type allocated struct{ objects, bytes int64 }

// allocations plays n requests, all of the same kind, on a gate that knows their keys,
// and returns how much one of them makes the VM allocate: objects, and bytes as the
// runtime rounds them. The host's values are included, because they are copied into
// the guest's memory.
func allocations(tb testing.TB, config string, n int) (objects, bytes float64) {
	clock := hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := start(tb, hostsim.Config{Guest: module(tb, memstatsModule), PluginConfig: []byte(config), Clock: clock})
	// The gauges change on ticks, which allocate as well. A tick without requests before
	// it tells how much.
	read := func() (a allocated) {
		clock.Advance(200 * time.Millisecond)
		for _, m := range r.host.Process().Metrics() {
			switch m.Name {
			case "memstats_objects":
				a.objects = int64(m.Value)
			case "memstats_bytes":
				a.bytes = int64(m.Value)
			}
		}
		return a
	}
	r.must(r.flow(n, 0, hit))
	r.reached.Store(0)
	calls := r.ledger.calls.Load()
	before := read()
	tick := read()
	r.must(r.flow(n, 0, hit))
	after := read()
	r.onlyHits(int64(n), calls)
	if tick.objects == 0 {
		tb.Fatal("the module tells nothing of its memory")
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
				objects, bytes = allocations(b, c.config, hitKeys)
			}
			b.ReportMetric(objects, "vm-allocs/hit")
			b.ReportMetric(bytes, "vm-B/hit")
		})
	}
}
