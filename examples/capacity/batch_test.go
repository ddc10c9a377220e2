package main

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestBatchesAgreeWithASimulation simulates one worker and its shards. Calls come at random. Those for a shard that
// answers a callout wait for that answer and then go out together, as the gate sends them.
func TestBatchesAgreeWithASimulation(t *testing.T) {
	for _, c := range []struct {
		rate   float64 // new keys per second of one worker
		shards int
	}{{100, 1}, {3000, 1}, {5000, 4}, {5000, 64}, {20000, 2}} {
		s := DefaultSite
		p := Plan{Site: s, Rate: c.rate, Workers: 1}
		predicted := p.callsInFlight(c.shards)
		simulated := simulateBatches(rand.New(rand.NewPCG(1, 2)), 2*c.rate, c.shards, s.RoundTrip+s.Fsync)
		t.Logf("%v keys/s on %d shards: %.2f calls in a callout predicted, %.2f simulated", c.rate, c.shards, predicted, simulated)
		if simulated < predicted*0.6 || simulated > predicted*1.6 {
			t.Errorf("%v keys/s on %d shards: %.2f calls in a callout predicted, %.2f simulated", c.rate, c.shards, predicted, simulated)
		}
	}
}

// simulateBatches returns the average number of calls in a callout.
func simulateBatches(random *rand.Rand, callsPerSecond float64, shards int, callout time.Duration) float64 {
	type shard struct {
		until   float64 // when the callout under way is answered
		waiting int
	}
	all := make([]shard, shards)
	now, calls, callouts := 0.0, 0, 0
	for range 200_000 {
		now += random.ExpFloat64() / callsPerSecond
		s := &all[random.IntN(shards)]
		// Calls that waited went out as soon as the callout before them was answered.
		for s.waiting > 0 && s.until <= now {
			calls, callouts = calls+s.waiting, callouts+1
			s.waiting, s.until = 0, s.until+callout.Seconds()
		}
		if s.until <= now {
			calls, callouts = calls+1, callouts+1
			s.until = now + callout.Seconds()
		} else {
			s.waiting++
		}
	}
	return float64(calls) / float64(callouts)
}
