package gatebench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncegate/oncegate/hostsim"
)

// hitKeys are visited in turn.
const hitKeys = 1024

// The two modes in which the gate decides, the one in which it also makes the upstream calls, and headers mode with a
// secret for scopes and for fingerprints.
const (
	secretMode   = `{"scope_secret": "0123456789abcdef"}`
	headersMode  = `{"mode": "headers"}`
	bodyMode     = `{"mode": "body"}`
	continueMode = `{"mode": "body", "client_abort": "continue", "upstream": {"cluster": "upstream"}}`
)

var requestBody = []byte(`{"amount": 100, "currency": "EUR", "to": "acct_1J0Q2b", "memo": "invoice 4711"}`)

// hitKey makes keys of the kind that most clients send: a UUID.
func hitKey(i int) string { return fmt.Sprintf("7d9f3c52-0b1e-4c55-9f6a-%012d", i%hitKeys) }

func hit(i int) request { return request{key: hitKey(i), body: requestBody} }

// miss makes requests with new keys.
func miss(i int) request {
	return request{key: fmt.Sprintf("0d3b7e11-9c55-4f02-8a6e-%012d", i), body: requestBody}
}

// passing is a rig without a gate, which gets the same requests.
func passing(tb testing.TB, guest hostsim.Source) *rig {
	return start(tb, hostsim.Config{Guest: guest})
}

// warm is a rig whose gate knows all keys.
func warm(tb testing.TB, guest hostsim.Source, workers int, config string) *rig {
	r := start(tb, hostsim.Config{Guest: guest, Workers: workers, PluginConfig: []byte(config)})
	r.must(r.flow(hitKeys, 0, hit))
	if n := r.reached.Load(); n != hitKeys {
		tb.Fatalf("%d of %d first requests reached upstream", n, hitKeys)
	}
	r.reached.Store(0)
	return r
}

// onlyHits fails unless every request since warm was answered from the cache.
func (r *rig) onlyHits(n, calls int64) {
	r.tb.Helper()
	if up, re, odd, c := r.reached.Load(), r.replays.Load(), r.odd.Load(), r.ledger.calls.Load(); up != 0 || re != n || odd != 0 || c != calls {
		r.tb.Fatalf("of %d requests %d were replays, %d reached upstream, %d had odd answers; %d calls to the ledger, want %d", n, re, up, odd, c, calls)
	}
}

// BenchmarkFilter is a stream from request to answer: through the host alone, through a
// filter that does nothing (upstream answers at once), and as a hit in both modes.
func BenchmarkFilter(b *testing.B) {
	for _, c := range []struct {
		name  string
		guest func() hostsim.Source
	}{
		{"host-only", nothing},
		{"noop", func() hostsim.Source { return module(b, noopModule) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := passing(b, c.guest())
			b.ResetTimer()
			r.must(r.flow(b.N, 0, hit))
		})
	}
	for _, c := range []struct{ name, config string }{{"hit-headers", headersMode}, {"hit-secret", secretMode}, {"hit-body", bodyMode}} {
		b.Run(c.name, func(b *testing.B) {
			r := warm(b, module(b, gateModule), 1, c.config)
			calls := r.ledger.calls.Load()
			b.ResetTimer()
			r.must(r.flow(b.N, 0, hit))
			b.StopTimer()
			r.onlyHits(int64(b.N), calls)
		})
	}
}

// BenchmarkHit compares hits with the filter that does nothing in one run. It measures
// slices of each in turn, so that other load on the machine affects all alike. One
// operation is one hit.
//
//   - x-noop is the ratio of a hit's time to that of a stream through the filter that
//     does nothing;
//   - x-noop-cpu is the same by the CPU time that the process used, which other
//     processes hardly disturb;
//   - x-noop-net is x-noop-cpu without the host's own part, which both contain;
//   - host-, noop- and hit-cpu-ns/op are those CPU times.
func BenchmarkHit(b *testing.B) {
	for _, c := range []struct{ name, config string }{{"headers", headersMode}, {"body", bodyMode}} {
		b.Run(c.name, func(b *testing.B) {
			gate := warm(b, module(b, gateModule), 1, c.config)
			noop, bare := passing(b, module(b, noopModule)), passing(b, nothing())
			calls := gate.ledger.calls.Load()
			const slice = 16 * window
			var took, cpu [3]time.Duration
			b.ResetTimer()
			b.StopTimer()
			for done := 0; done < b.N; done += slice {
				n := min(slice, b.N-done)
				for i, r := range []*rig{bare, noop, gate} {
					if i == 2 {
						b.StartTimer()
					}
					began, used := time.Now(), cpuTime(b)
					r.must(r.flow(n, 0, hit))
					took[i] += time.Since(began)
					cpu[i] += cpuTime(b) - used
					b.StopTimer()
				}
			}
			gate.onlyHits(int64(b.N), calls)
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N) }
			b.ReportMetric(float64(took[2])/float64(took[1]), "x-noop")
			b.ReportMetric(float64(cpu[2])/float64(cpu[1]), "x-noop-cpu")
			b.ReportMetric(float64(cpu[2]-cpu[0])/float64(cpu[1]-cpu[0]), "x-noop-net")
			b.ReportMetric(per(cpu[0]), "host-cpu-ns/op")
			b.ReportMetric(per(cpu[1]), "noop-cpu-ns/op")
			b.ReportMetric(per(cpu[2]), "hit-cpu-ns/op")
		})
	}
}

// BenchmarkHitWorkers measures hits on several workers, each with its own VM and
// goroutine, on one table. hits/s is the rate of all of them together.
func BenchmarkHitWorkers(b *testing.B) {
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			r := warm(b, module(b, gateModule), workers, headersMode)
			calls := r.ledger.calls.Load()
			b.ResetTimer()
			var clients errgroup.Group // one goroutine per worker
			for w := range workers {
				share := b.N / workers
				if w < b.N%workers {
					share++
				}
				clients.Go(func() error {
					return r.flow(share, w, func(i int) request { return hit(i*workers + w) })
				})
			}
			r.must(clients.Wait())
			b.StopTimer()
			r.onlyHits(int64(b.N), calls)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "hits/s")
			b.ReportMetric(float64(runtime.GOMAXPROCS(0)), "cores")
		})
	}
}
