// Package deep divides the tests between make test, which people run before each commit, and make test-deep, which runs the
// rest. A run is deep if TEST_DEEP=1.
package deep

import (
	"hash/crc32"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Env is the environment variable that make test-deep sets to 1.
const Env = "TEST_DEEP"

// On reports whether this run is deep.
func On() bool { return os.Getenv(Env) == "1" }

// Only skips the test unless the run is deep. A deep run then takes all cells of the test's matrix, because no other run does.
func Only(tb testing.TB) {
	tb.Helper()
	if !On() {
		tb.Skip("left to make test-deep")
	}
	name := tb.Name()
	only.Store(name, true)
	tb.Cleanup(func() { only.Delete(name) })
}

// only has the names of the running tests that called Only.
var only sync.Map

// whole reports whether this run takes what other tests leave to make test: Only was called for the test or for its parent.
func whole(tb testing.TB) bool {
	for name := tb.Name(); ; {
		if _, ok := only.Load(name); ok {
			return long()
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}

// Quick is the opposite of Only. It leaves a test that is the same in every run to make test and to the race detector.
func Quick(tb testing.TB) {
	tb.Helper()
	if long() {
		tb.Skip("make test runs it")
	}
}

// Sequential skips a test under the race detector, which finds nothing in code that runs on one goroutine.
func Sequential(tb testing.TB) {
	tb.Helper()
	if Race {
		tb.Skip("it runs on one goroutine; make test runs it without the race detector")
	}
}

// long reports whether a run takes the long way. The stage of make test-deep under the race detector does not: it takes what
// make test does, or less, because the detector makes everything several times as slow. The stage without it takes the rest.
func long() bool { return On() && !Race }

// rest is what takes the cells that a run leaves out.
func rest() string {
	if On() {
		return "the stage without the race detector"
	}
	return "make test-deep"
}

// Cells divides the cells of a matrix that a test runs in. make test takes one, which the test's name chooses, so that each
// cell is met by some test. make test-deep takes the others.
func Cells[T any](tb testing.TB, all []T) []T {
	tb.Helper()
	if len(all) < 2 || whole(tb) {
		return all
	}
	i := choose(tb.Name(), len(all))
	if long() {
		return slices.Concat(all[:i], all[i+1:])
	}
	tb.Logf("cells left to %s: %d", rest(), len(all)-1)
	return all[i : i+1]
}

// Crossed is Cells for a matrix with too many cells for each test to run in all of them. make test takes one cell. make test-deep
// takes as many as it needs to meet each row and each column in one of the two runs. make test-envoys runs all of them.
func Crossed(tb testing.TB, rows, columns int) (cells [][2]int) {
	tb.Helper()
	most := max(rows, columns)
	i := choose(tb.Name(), rows*columns)
	for k := range most {
		if (k > 0) == long() || most == 1 || whole(tb) {
			cells = append(cells, [2]int{(i/columns + k) % rows, (i + k) % columns})
		}
	}
	if more := most - 1; more > 0 && !long() {
		tb.Logf("cells left to %s: %d", rest(), more)
	}
	if more := rows*columns - most; more > 0 && !Race {
		tb.Logf("cells left to make test-envoys: %d", more)
	}
	return cells
}

func choose(name string, n int) int { return int(crc32.ChecksumIEEE([]byte(name)) % uint32(n)) }

// Case is Cells for a case of a suite that a test of its own runs in each cell. It skips the test unless its cell has the
// case in this run.
func Case(tb testing.TB, name, cell string, all []string) {
	tb.Helper()
	if chosen := all[choose(name, len(all))] == cell; chosen != long() {
		return
	}
	if long() {
		tb.Skip("make test runs it")
	}
	tb.Skip("left to " + rest())
}

// Keys is Cells for the keys of a map.
func Keys[V any](tb testing.TB, m map[string]V) []string {
	tb.Helper()
	return Cells(tb, slices.Sorted(maps.Keys(m)))
}

// Rounds is how often a test repeats itself: quick times in make test, deep times in make test-deep.
func Rounds(quick, deep int) int {
	if long() {
		return deep
	}
	return quick
}
