package batch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	bad, away := errors.New("bad"), errors.New("away")
	for _, c := range []struct {
		calls       []error // of each call: what it makes a run fail with
		runs, dones string
	}{
		{nil, "[0]", "[0:<nil>]"},
		{[]error{nil, nil, nil}, "[3]", "[3:<nil>]"},
		{[]error{bad}, "[1]", "[1:bad]"},
		{[]error{nil, nil, nil, nil, bad, nil, nil}, "[7 3 4 2 1 1 2]", "[3:<nil> 1:<nil> 1:bad 2:<nil>]"},
		{[]error{away, nil}, "[2]", "[2:away]"},
		{[]error{bad, nil, away, nil}, "[4 2 1 1 2]", "[1:bad 1:<nil> 2:away]"},
	} {
		calls := make([]int, len(c.calls))
		for i := range calls {
			calls[i] = i
		}
		var runs, order []int
		dones := []string{}
		Split(calls, func(calls []int) error {
			runs = append(runs, len(calls))
			for _, i := range calls {
				if c.calls[i] != nil {
					return c.calls[i]
				}
			}
			return nil
		}, func(err error) bool { return errors.Is(err, bad) }, func(calls []int, err error) {
			order = append(order, calls...)
			dones = append(dones, fmt.Sprint(len(calls), ":", err))
		})
		if fmt.Sprint(runs) != c.runs || fmt.Sprint(dones) != c.dones || !slices.Equal(order, calls) {
			t.Errorf("%v: runs of %v, want %v; answers %v, want %v; order %v", c.calls, runs, c.runs, dones, c.dones, order)
		}
	}
}
