package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// distributions are sizes of answers. The table of the default size is divided for
// small ones, to save time.
var distributions = []struct {
	name    string
	divided int
	size    func(*rand.Rand) int
}{
	{"1 kB", 8, func(*rand.Rand) int { return 1000 }},
	{"4 kB", 4, func(*rand.Rand) int { return 4000 }},
	{"10 kB", 1, func(*rand.Rand) int { return 10000 }},
	{"50 kB", 1, func(*rand.Rand) int { return 50000 }},
	{"300 kB", 1, func(*rand.Rand) int { return 300000 }},
	{"512 KiB", 1, func(*rand.Rand) int { return 512 << 10 }},
	{"mixed", 1, func(r *rand.Rand) int { return []int{1000, 4000, 10000, 50000, 300000}[r.IntN(5)] }},
	{"1 kB to 300 kB, small ones more often", 1, func(r *rand.Rand) int {
		return 1000 + int(299000*r.Float64()*r.Float64()*r.Float64()*r.Float64())
	}},
}

// TestMostBytesCanBeUsed fills tables with answers of each distribution:
// at least 80 % of the bytes are used, and never more than all.
func TestMostBytesCanBeUsed(t *testing.T) {
	deep.Sequential(t)
	for _, sole := range []bool{false, true} {
		for _, d := range distributions {
			t.Run(fmt.Sprintf("%s, sole %v", d.name, sole), func(t *testing.T) {
				h := newHost(envoy)
				o := Options{MaxEntries: defaultEntries / d.divided, MaxBytes: defaultBytes / d.divided, MaxResultBytes: defaultResultBytes / d.divided}
				tab := newTable(h, o)
				rnd := rand.New(rand.NewPCG(1, 2))
				raw := make([]byte, 1<<20)
				full, lost, made := 0, 0, 0
				for pushed := 0; pushed < 2*o.MaxBytes; made++ {
					now := int64(made + 1)
					size := d.size(rnd)
					pushed += size
					hash, token := digest(made), tokenOf(made)
					var e Entry
					res, _ := tab.Reserve(&Reservation{Hash: hash, Token: token, Expires: 1 << 60, CacheOnly: sole}, now, &e)
					if res == Full {
						full++
						continue
					}
					if res != Created {
						t.Fatalf("Reserve = %d", res)
					}
					oc := Outcome{Hash: hash, Token: token, State: api.StateCommitted, Expires: 1 << 60, Raw: raw[:size], CacheOnly: sole}
					if res, _ := tab.Finish(&oc, now); res != Done {
						t.Fatalf("Finish = %d", res)
					}
					if !tab.Lookup(&hash, now, &e) {
						lost++
					} else if _, ok := tab.Body(&e); !ok {
						lost++
					}
				}
				kept := 0
				for i := range made {
					hash := digest(i)
					var e Entry
					if tab.Lookup(&hash, int64(made), &e) {
						if _, ok := tab.Body(&e); ok {
							kept++
						}
					}
				}
				share := float64(h.bytes) / float64(o.MaxBytes)
				t.Logf("%.1f %% used, at most %.1f %%; of %d keys %d were refused, %d answers were not kept, %d are there; %.2f calls per key",
					100*share, 100*float64(h.peak)/float64(o.MaxBytes), made, full, lost, kept, float64(h.gets+h.sets)/float64(made))
				if share < 0.8 {
					t.Errorf("%.1f %% of the bytes are used", 100*share)
				}
				if h.peak > o.MaxBytes {
					t.Errorf("%d bytes were stored", h.peak)
				}
				if sole && kept+full+lost != made {
					t.Errorf("of %d keys %d are there, %d were refused and %d were without an answer at once", made, kept, full, lost)
				}
			})
		}
	}
}
