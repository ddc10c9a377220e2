package deep

import (
	"fmt"
	"slices"
	"testing"
)

// Quick and deep runs together meet each cell of a test once. Over all tests, quick runs meet each cell.
func TestCellsDivideTheMatrix(t *testing.T) {
	all := []string{"a", "b", "c", "d"}
	met := map[string]bool{}
	for i := range 20 {
		t.Run(fmt.Sprint("test ", i), func(t *testing.T) {
			t.Setenv(Env, "")
			quick := Cells(t, all)
			t.Setenv(Env, "1")
			rest := Cells(t, all)
			want := quick // under the race detector, both runs take the same
			if !Race {
				want = slices.Sorted(slices.Values(all))
				rest = slices.Sorted(slices.Values(slices.Concat(quick, rest)))
			}
			if !slices.Equal(rest, want) || len(quick) != 1 {
				t.Errorf("quick %v, both %v", quick, rest)
			}
			for _, cell := range quick {
				met[cell] = true
			}
			// The only cell is in both runs.
			t.Setenv(Env, "")
			if got := Cells(t, all[:1]); len(got) != 1 {
				t.Errorf("of one: %v", got)
			}
		})
	}
	for _, run := range []string{"", "1"} {
		t.Setenv(Env, run)
		var ran []string
		for _, cell := range all {
			t.Run("case in "+cell+run, func(t *testing.T) {
				Case(t, "a case", cell, all)
				ran = append(ran, cell)
			})
		}
		want := 1
		if run == "1" && !Race {
			want = len(all) - 1
		}
		if len(ran) != want {
			t.Errorf("with %s=%q the case ran in %v", Env, run, ran)
		}
	}
	if len(met) != len(all) {
		t.Errorf("quick runs meet only %v", met)
	}
	if got := Keys(t, map[string]int{}); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// A test that make test leaves out meets all cells in the deep run.
func TestOnlyTakesAllCells(t *testing.T) {
	t.Setenv(Env, "1")
	t.Run("left out", func(t *testing.T) {
		Only(t)
		t.Run("part", func(t *testing.T) {
			all, crossed := Cells(t, []string{"a", "b", "c"}), Crossed(t, 2, 2)
			if want := !Race; (len(all) == 3) != want || (len(crossed) == 2) != want {
				t.Errorf("cells %v, crossed %v", all, crossed)
			}
		})
	})
	if got := len(Crossed(t, 2, 2)); got != 1 {
		t.Errorf("a test of both runs has %d cells", got)
	}
}

// Each run leaves out what another one shows just the same.
func TestRunsLeaveTestsToOthers(t *testing.T) {
	for _, run := range []string{"", "1"} {
		t.Setenv(Env, run)
		for name, leave := range map[string]struct {
			skip func(testing.TB)
			left bool
		}{
			"only":       {Only, run == ""},
			"quick":      {Quick, run == "1" && !Race},
			"sequential": {Sequential, Race},
		} {
			ran := false
			t.Run(name+run, func(t *testing.T) {
				leave.skip(t)
				ran = true
			})
			if ran == leave.left {
				t.Errorf("with %s=%q, %s: ran %v", Env, run, name, ran)
			}
		}
	}
}

// A quick and a deep run together meet each row and each column, and no cell twice.
func TestCrossedMeetsRowsAndColumns(t *testing.T) {
	for _, size := range [][2]int{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 2}, {2, 3}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Setenv(Env, "")
			quick := Crossed(t, size[0], size[1])
			t.Setenv(Env, "1")
			rest := Crossed(t, size[0], size[1])
			if len(quick) != 1 {
				t.Errorf("quick: %v", quick)
			}
			if Race || size == [2]int{1, 1} { // both runs take the same
				if !slices.Equal(rest, quick) {
					t.Errorf("quick %v, deep %v", quick, rest)
				}
				return
			}
			met := map[[2]int]bool{}
			rows, columns := map[int]bool{}, map[int]bool{}
			for _, cell := range slices.Concat(quick, rest) {
				if met[cell] || cell[0] >= size[0] || cell[1] >= size[1] {
					t.Errorf("cell %v of %v: quick %v, deep %v", cell, size, quick, rest)
				}
				met[cell], rows[cell[0]], columns[cell[1]] = true, true, true
			}
			if len(rows) != size[0] || len(columns) != size[1] {
				t.Errorf("quick %v, deep %v", quick, rest)
			}
		})
	}
}
