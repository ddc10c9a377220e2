package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGroupsAgreeWithASimulation simulates a manager with the streams of its workers, on which calls come at random.
func TestGroupsAgreeWithASimulation(t *testing.T) {
	for _, c := range []struct {
		rate            float64 // new keys per second
		workers, shards int
	}{{100, 1, 1}, {3000, 1, 1}, {15000, 1, 1}, {20000, 1, 2}, {40000, 16, 4}, {200000, 90, 23}} {
		p := Plan{Site: DefaultSite, Rate: c.rate, Workers: c.workers}
		predicted := p.grouping(c.shards)
		simulated := simulate(rand.New(rand.NewPCG(1, 2)), c.workers, 2*c.rate/float64(c.shards), p.Site.Fsync)
		t.Logf("%+v: %+v predicted, %+v simulated", c, predicted, simulated)
		for name, of := range map[string]func(grouping) float64{
			"calls in a group": func(g grouping) float64 { return g.calls },
			"groups in a sync": func(g grouping) float64 { return g.groups },
		} {
			if ratio := of(predicted) / of(simulated); ratio < 0.67 || ratio > 1.5 {
				t.Errorf("%+v, %s: %.2f predicted, %.2f simulated", c, name, of(predicted), of(simulated))
			}
		}
	}
}

// TestManagersHaveTheModelsBounds: the model names what the manager's code decides.
func TestManagersHaveTheModelsBounds(t *testing.T) {
	for file, want := range map[string]string{
		"server/stream.go":   fmt.Sprintf("\tmaxGroups = %d\n", groupsAtWork),
		"httpd/server.go":    fmt.Sprintf("MaxConnections, %d)", managerConnections),
		"store/mem/store.go": fmt.Sprintf("DefaultFlushBytes = %d << 20\n", flushBytes>>20),
		"ledger/options.go":  "maxEntriesLimit = 1_000_000_000\n",
	} {
		source, err := os.ReadFile(filepath.Join("..", "..", "manager", "internal", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), want) {
			t.Errorf("%s lacks %q", file, want)
		}
	}
}

// simulate returns how a manager groups calls, by the rules of its streams and its log. A stream's reader takes all calls that
// have arrived, which are a group. It waits with the group while groupsAtWork others are at work, and later calls gather. A sync
// makes all groups durable that were at work when it began.
func simulate(random *rand.Rand, streams int, callsPerSecond float64, fsync time.Duration) grouping {
	type stream struct {
		arrived, atWork, syncing int
		reading                  bool // the reader waits with a group
	}
	all := make([]stream, streams)
	now, synced := 0.0, math.Inf(1)
	calls, groups, syncs := 0.0, 0.0, 0.0
	read := func(s *stream) {
		for !s.reading && s.arrived > 0 {
			calls, groups, s.arrived = calls+float64(s.arrived), groups+1, 0
			if s.reading = s.atWork == groupsAtWork; !s.reading {
				s.atWork++
			}
		}
	}
	begin := func() {
		synced = math.Inf(1)
		for i := range all {
			if all[i].syncing = all[i].atWork; all[i].atWork > 0 {
				synced = now + fsync.Seconds()
			}
		}
		if !math.IsInf(synced, 1) {
			syncs++
		}
	}
	for range 300_000 {
		next := now + random.ExpFloat64()/callsPerSecond
		for synced <= next {
			now = synced
			for i := range all {
				s := &all[i]
				s.atWork -= s.syncing
				if s.reading && s.syncing > 0 {
					s.reading = false
					s.atWork++
				}
				read(s)
			}
			begin()
		}
		now = next
		s := &all[random.IntN(streams)]
		s.arrived++
		read(s)
		if math.IsInf(synced, 1) {
			begin()
		}
	}
	return grouping{calls: calls / groups, groups: groups / syncs}
}
