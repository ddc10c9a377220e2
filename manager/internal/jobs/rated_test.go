package jobs

import (
	"fmt"
	"testing"
)

// Events of functions that do not fit cost no look at those that do, and an idle function leaves its place.
func TestRatesOfMoreFunctionsThanFit(t *testing.T) {
	var r rates
	for i := range maxRated {
		r.addAt(fmt.Sprint("f", i), rateEnqueued, 1000)
	}
	r.addAt("more", rateEnqueued, 1000)
	r.series, r.all["f0"] = MaxSeries, new(activity) // idle, which the next look would find
	if r.addAt("more", rateEnqueued, 1000); r.all["more"] != nil || len(r.all) != maxRated {
		t.Errorf("a second look in one step: %d functions", len(r.all))
	}
	for i := range maxRated / 2 {
		r.addAt(fmt.Sprint("f", i), rateEnqueued, 1000+rateSteps-1)
	}
	r.addAt("more", rateEnqueued, 1000+rateSteps)
	if r.all["more"] == nil || r.all["f0"] == nil || r.all[fmt.Sprint("f", maxRated-1)] != nil || len(r.all) != maxRated/2+1 {
		t.Errorf("%d functions, the new one has %v", len(r.all), r.all["more"])
	}
}

func BenchmarkRatesOfMoreFunctionsThanFit(b *testing.B) {
	var r rates
	for i := range maxRated {
		r.add(fmt.Sprint("f", i), rateEnqueued)
	}
	for b.Loop() {
		r.add("more", rateEnqueued)
	}
}
