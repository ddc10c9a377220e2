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
