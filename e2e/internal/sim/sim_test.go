package sim

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

var (
	oneSeed = flag.Uint64("sim.seed", number("SIM_SEED", 0), "run this seed only and print its timeline; also SIM_SEED")
	seeds   = flag.Uint64("sim.seeds", number("SIM_SEEDS", 0), "how many seeds TestSeeds runs; also SIM_SEEDS")
	first   = flag.Uint64("sim.first", number("SIM_FIRST", 1), "the first of them; also SIM_FIRST")
	without = flag.String("sim.without", "", "powers that the adversary must not have, with + between them")
	forced  = flag.String("sim.with", "", "powers that it has in every world")
)

// named are the powers of a flag.
func named(t *testing.T, text string) (p Power) {
	for name := range strings.SplitSeq(text, "+") {
		i := slices.Index(powerNames[:], name)
		if i < 0 && name != "" {
			t.Fatalf("there is no power %q", name)
		}
		if i >= 0 {
			p |= 1 << i
		}
	}
	return p
}

func number(name string, def uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return def
}

// seedsPerTest is how many seeds TestSeeds runs when nothing else is said.
func seedsPerTest() uint64 {
	if deep.Race {
		return 100
	}
	return uint64(deep.Rounds(600, 4000))
}

// TestSeeds runs worlds. One that fails prints its seed, and its timeline into a file.
func TestSeeds(t *testing.T) {
	allowed, forced := All&^named(t, *without), named(t, *forced)
	if *oneSeed != 0 {
		r := Run(t, *oneSeed, allowed, forced, true)
		t.Log("\n" + strings.Join(r.Timeline, "\n"))
		for _, f := range r.Failures {
			t.Error(f)
		}
		return
	}
	n := *seeds
	if n == 0 {
		n = seedsPerTest()
	}
	explore(t, allowed, forced, *first, n)
}

// TestCentres runs worlds of three data centres, one for each 200 that TestSeeds is asked for.
func TestCentres(t *testing.T) {
	n := *seeds / 200
	if n == 0 {
		n = seedsPerTest() / 100
	}
	explore(t, All, Centres, *first, n)
}

// explore runs n seeds on all processors and stops at the first that fails, which it returns.
func explore(t *testing.T, allowed, forced Power, from, n uint64) {
	var next, ran, executions, calls, cuts, conflicts, repeats atomic.Uint64
	next.Store(from)
	began := time.Now()
	t.Run("worlds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					seed := next.Add(1) - 1
					if seed >= from+n {
						return
					}
					r := Run(t, seed, allowed, forced, false)
					ran.Add(1)
					executions.Add(uint64(r.Runs))
					calls.Add(uint64(r.Calls))
					cuts.Add(uint64(r.Cuts))
					conflicts.Add(uint64(r.Conflicts))
					repeats.Add(uint64(r.Repeats))
					if len(r.Failures) > 0 {
						next.Store(from + n)
						report(t, &r)
					}
				}
			})
		}
	})
	took := time.Since(began)
	t.Logf("%d seeds in %v, %.0f a minute: %d executions, %d calls of managers, %d connections that broke, %d conflicts of data centres, %d executions that losses cost",
		ran.Load(), took.Round(time.Millisecond), float64(ran.Load())/took.Minutes(), executions.Load(), calls.Load(), cuts.Load(), conflicts.Load(), repeats.Load())
}

// report describes a seed that fails.
func report(t *testing.T, r *Report) {
	file := filepath.Join(os.TempDir(), "oncegate-sim-"+strconv.FormatUint(r.Seed, 10)+".txt")
	where := file
	if err := os.WriteFile(file, []byte(strings.Join(r.Timeline, "\n")+"\n"), 0o600); err != nil {
		where = err.Error()
	}
	tail := r.Timeline[max(len(r.Timeline)-60, 0):]
	t.Errorf("seed %d fails (again with -sim.seed=%d; the whole timeline: %s)\n%s\n%s\n%s",
		r.Seed, r.Seed, where, r.Timeline[0], strings.Join(tail, "\n"), strings.Join(r.Failures, "\n"))
}

// sameSeeds is how many seeds are run twice. The race detector looks at the same code in TestSeeds and TestCentres.
func sameSeeds(quick, deeply int) uint64 {
	if deep.Race {
		return 2
	}
	return uint64(deep.Rounds(quick, deeply))
}

// TestSameSeed: a seed is one world, whatever else the machine does. Worlds with stopped managers
// are left out: when one continues, many of its goroutines wake at the same instant.
func TestSameSeed(t *testing.T) {
	for seed := uint64(1); seed <= sameSeeds(40, 200); seed++ {
		one, two := Run(t, seed, All&^Stop, 0, true), Run(t, seed, All&^Stop, 0, true)
		for i := range max(len(one.Timeline), len(two.Timeline)) {
			if i >= len(one.Timeline) || i >= len(two.Timeline) || one.Timeline[i] != two.Timeline[i] {
				t.Fatalf("seed %d: line %d differs:\n%s\n%s", seed, i,
					strings.Join(one.Timeline[max(i-5, 0):min(i+2, len(one.Timeline))], "\n"), strings.Join(two.Timeline[max(i-5, 0):min(i+2, len(two.Timeline))], "\n"))
			}
		}
	}
}

// TestSameSeedOfCentres: so are worlds of several data centres.
func TestSameSeedOfCentres(t *testing.T) {
	for seed := uint64(1); seed <= sameSeeds(8, 8); seed++ {
		one, two := Run(t, seed, All&^Stop, Centres, true), Run(t, seed, All&^Stop, Centres, true)
		if a, b := strings.Join(one.Timeline, "\n"), strings.Join(two.Timeline, "\n"); a != b {
			t.Fatalf("seed %d is two worlds", seed)
		}
	}
}
