package sim

import (
	"os"
	"strings"
	"testing"
)

// holes are what the promise once did not cover, each with the powers that show it.
var holes = []struct {
	name            string
	allowed, forced Power
}{
	{"an outcome that is known is given up", Delay | Drop | Kill | Stop, Expire | Away | Kill},
	{"an unknown outcome is forgotten: cut", Delay, Expire | Cut},
	{"an unknown outcome is forgotten: left", Delay, Expire | Leave},
	{"an unknown outcome is forgotten: proxy killed", Delay, Expire | Restart},
	{"an unknown outcome is forgotten: trap", Delay, Expire | Trap},
	{"work that takes long loses its reservation", Delay, Expire | Slow},
	{"downtime counts", Delay, Expire | Away | Stop | Slow},
	{"the answer is lost when the client leaves", Delay, Leave | Slow},
	{"one bad record stops the sweeper", Delay, Spoil},
	{"the window forgets silently", Delay, Window},
	// A reservation that nobody gives back shows when it has become an unknown outcome, and only where no message is late.
	{"connections: an unanswered call counts as not made", 0, Drop | Duplicate | Kill | Away | Expire},
	{"connections: a reserve is not released after a cut", 0, Drop | Duplicate | Expire},
	{"keys go to another shard when theirs is down", Delay, Kill | Away | Busy},
	{"shards: the previous owner is not asked", Delay, Reshard},
	{"shards: a manager does not look into its list", Delay, Reshard},
	{"shards: a manager takes calls for others", Delay, Miswire},
	{"shards: the previous owner is forgotten too early", Delay, Reshard | Forget | Expire | Slow},
	{"an empty ledger runs the keys of a lost one: no quarantine", Delay, Lose},
	{"data centres: a new ledger does not wait for its peers", Delay, Centres | Lose | Restart | Partition},
	{"data centres: a second manager is not fenced", Delay, Centres | Twin | Restart},
	{"data centres: a ledger that was put back has grown since", Delay, Centres | Back | Restart | Partition},
	{"data centres: a hybrid clock starts again", Delay, Centres | Back | Restart | Partition},
}

// TestHoles shows how many seeds it takes to find each hole whose name has SIM_HOLES in it. It
// is for a branch on which one of them is open again.
func TestHoles(t *testing.T) {
	name := os.Getenv("SIM_HOLES")
	if name == "" {
		t.Skip("SIM_HOLES is not set")
	}
	for _, h := range holes {
		if !strings.Contains(h.name, name) {
			continue
		}
		found := 0
		var at []uint64
		most := uint64(3000)
		if h.forced&Centres != 0 {
			most = 100
		}
		for seed := uint64(1); seed <= most && found < 5; seed++ {
			if r := Run(t, seed, h.allowed, h.forced, false); len(r.Failures) > 0 {
				found++
				at = append(at, seed)
				if found == 1 {
					t.Logf("%s: seed %d: %s", h.name, seed, r.Failures[0])
				}
			}
		}
		t.Logf("%s: seeds %v", h.name, at)
	}
}
