package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Power is something that the adversary may do.
type Power uint32

// The powers.
const (
	// Delay makes messages late, and those behind them. Drop breaks connections, in one direction or both, at any message;
	// the gate may not hear of it. Duplicate breaks connections when a message has left, so that the gate makes
	// the call once more. Between data centres, Drop and Duplicate happen to calls and answers.
	Delay Power = 1 << iota
	Drop
	Duplicate
	// Kill kills managers; data that was not synced is lost, torn or survives. Away leaves them
	// dead for longer than a reservation lasts. Stop stops them and lets them continue later.
	Kill
	Away
	Stop
	// Restart restarts proxies, whose caches are lost. Trap traps one VM of a proxy, in the
	// middle of a callback too: its streams hang, the others live on.
	Restart
	Trap
	// Update replaces the gates of a proxy by new ones, as a new configuration does. The old
	// ones first end their streams and then deliver their outcomes to the ledger.
	Update
	// Clock moves wall clocks by seconds.
	Clock
	// Leave has clients time out, leave and come back. Cut has upstream cut its connections,
	// before and after it has done the work. Slow has it work longer than a reservation holds.
	Leave
	Cut
	Slow
	// Refuse has upstream answer 4xx and 5xx, and ask for retries.
	Refuse
	// Expire makes reservations run out during a run; without it none does.
	Expire
	// Forget makes outcomes run out during a run.
	Forget
	// Window fills the ledger with keys of others.
	Window
	// Spoil makes records of others unreadable.
	Spoil
	// Operator has somebody resolve unknown outcomes, as executed.
	Operator
	// Open lets requests pass unprotected while the manager is away (failure_mode open).
	Open
	// Async lets answers pass before they are recorded (commit: async).
	Async
	// Busy keeps the gates' threads busy, so that many calls are ready in one callback, and has clients
	// send at the same moment.
	Busy
	// Garble has proxies between a gate and a manager cut messages short or replace them, and end connections with any
	// status.
	Garble
	// Reshard changes the list of shards, at every gate and manager at another moment.
	Reshard
	// Miswire connects a proxy's cluster to another shard's manager for a while, or removes it.
	Miswire
	// Partition cuts data centres off from each other. Pages loses what pages of a change feed hold, and
	// replays old pages. Both are without effect in worlds with one data centre.
	Partition
	Pages
	// Lose empties disks of managers, which then start as new ledgers.
	Lose
	// Back puts disks of data centres back to earlier states. Twin starts second managers of their origins. Both are
	// without effect in worlds with one data centre.
	Back
	Twin

	powers = iota
)

// All is every power.
const All Power = 1<<powers - 1

// Centres makes a world of three data centres, when it is forced.
const Centres Power = 1 << powers

// nearby are the powers that worlds with several data centres do without: what they do to one ledger needs
// no other data centre, and the checks of these worlds count on windows that hold everything.
const nearby = Forget | Window | Spoil | Operator | Open | Reshard | Miswire

var powerNames = [powers + 1]string{"delay", "drop", "duplicate", "kill", "away", "stop", "restart", "trap", "update", "clock", "leave", "cut",
	"slow", "refuse", "expire", "forget", "window", "spoil", "operator", "open", "async", "busy", "garble", "reshard", "miswire", "partition", "pages", "lose", "back", "twin", "centres"}

func (p Power) String() string {
	var names []string
	for i, name := range powerNames {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Plan is what one seed decides at the start.
type Plan struct {
	Powers       Power
	Body         bool // mode body
	Carry        carry
	Proxies      int
	Workers      int // of each proxy
	Ops          int
	Length       time.Duration // until the adversary leaves
	MaxKeys      int           // max_entries of the ledger
	SmallReplies bool          // managers take all recorded answers for large ones
	// Shards are the ledgers that the gates choose from, NewShards those after a change; nil: there is none.
	// Where Named is false, the only manager has no name, as without --shard.
	Shards, NewShards []string
	Named             bool
	changes           time.Duration // until when the list changes
	LayerBytes        int64         // of changes in memory

	ChangesKept int // of worlds with several data centres

	PendingTTL, CommittedTTL, RejectedTTL time.Duration
	PendingWait, ManagerTimeout           time.Duration
	RouteTimeout                          time.Duration
}

// carry says what makes upstream calls.
type carry uint8

const (
	carryRouter carry = iota // the router; client_abort: cancel
	carryInner               // the gate, through an inner listener
	carryRoute               // the gate, to the route's cluster
)

// The clusters of upstream.
const (
	clusterInner = "inner"
	clusterRoute = "payments"
)

// newPlan draws a plan with some of the powers: with all of them at once, most runs would
// look alike.
func newPlan(rnd *rand.Rand, allowed, forced Power) Plan {
	p := Plan{Powers: forced}
	for i := range powers {
		if rnd.IntN(2) == 0 {
			p.Powers |= allowed & (1 << i)
		}
	}
	if p.Has(Centres) {
		p.Powers &^= nearby
	} else {
		p.Powers &^= Partition | Pages | Back | Twin
	}
	switch { // a gate that has not met the lost ledger for as long as keys last takes the new one, which need not notice then
	case p.Has(Forget) && forced&Lose == 0:
		p.Powers &^= Lose
	case p.Has(Lose):
		p.Powers &^= Forget
	}
	if p.Powers&Open != 0 && rnd.IntN(4) > 0 && forced&Open == 0 {
		p.Powers &^= Open
	}
	p.Body = rnd.IntN(2) == 0
	if p.Body {
		p.Carry = carry(rnd.IntN(3))
	}
	p.Proxies = 1 + rnd.IntN(3)
	p.Workers = 1 + rnd.IntN(2)
	p.Ops = 2 + rnd.IntN(5)
	p.Length = time.Duration(20+rnd.IntN(30)) * time.Second
	p.MaxKeys = 1000
	p.LayerBytes = int64(2+rnd.IntN(30)) << 10
	p.PendingTTL = time.Hour
	p.CommittedTTL, p.RejectedTTL = 2*time.Hour, 2*time.Hour
	if p.Has(Expire) {
		p.PendingTTL = time.Duration(1500+rnd.IntN(3500)) * time.Millisecond
	}
	if p.Has(Forget) {
		p.CommittedTTL = time.Duration(8+rnd.IntN(12)) * time.Second
		p.RejectedTTL = time.Duration(5+rnd.IntN(7)) * time.Second
	}
	if p.Has(Window) {
		p.MaxKeys = 12 + rnd.IntN(20)
	}
	p.ManagerTimeout = time.Duration(500+rnd.IntN(1500)) * time.Millisecond
	p.PendingWait = time.Duration(1+rnd.IntN(4)) * time.Second
	p.RouteTimeout = 15 * time.Second
	p.SmallReplies = rnd.IntN(4) == 0
	if p.Has(Busy) {
		p.Ops += rnd.IntN(10)
	}
	if p.Has(Centres) {
		p.drawCentres(rnd)
	} else {
		p.drawShards(rnd)
	}
	p.changes = p.Length * 3 / 4
	if p.Has(Reshard) && p.Has(Forget) && p.Has(Expire) {
		// Only in these worlds a time comes at which no earlier entry is left.
		p.changes = p.Length / 3
		p.Length = p.changes + p.longest() + 20*time.Second
	}
	return p
}

// drawShards draws the ledgers that keep the keys. Half of the worlds have one ledger.
func (p *Plan) drawShards(rnd *rand.Rand) {
	all := []string{"m0", "m1", "m2", "m3"}
	n := 1
	if rnd.IntN(2) == 0 {
		n += rnd.IntN(3)
	}
	p.Shards = all[:n]
	p.Named = n > 1 || p.Has(Reshard|Miswire) || rnd.IntN(2) == 0
	if p.Has(Miswire) && n == 1 {
		p.Shards = all[:2]
	}
	if !p.Has(Reshard) {
		return
	}
	for p.NewShards == nil || slices.Equal(p.Shards, p.NewShards) {
		p.NewShards = nil
		for _, name := range all {
			if rnd.IntN(2) == 0 {
				p.NewShards = append(p.NewShards, name)
			}
		}
	}
}

// managers returns the names of all managers in this world.
func (p *Plan) managers() (names []string) {
	names = append(names, p.Shards...)
	for _, name := range p.NewShards {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// longest is how long entries that a shard took before it got a new list can stay there. A request may
// keep its reservation for as long as upstream may take, and the TTL of its outcome counts from then on.
func (p *Plan) longest() time.Duration {
	return p.RouteTimeout + p.PendingTTL + max(p.CommittedTTL, p.RejectedTTL)
}

// Has reports whether the adversary has a power in this world.
func (p *Plan) Has(power Power) bool { return p.Powers&power != 0 } // any of them

// String describes the plan.
func (p *Plan) String() string {
	mode := "headers"
	if p.Body {
		mode = "body"
	}
	if p.Carry != carryRouter {
		mode += ", client_abort continue"
	}
	shards := fmt.Sprintf("shards %v", p.Shards)
	if p.NewShards != nil {
		shards += fmt.Sprintf(", then %v", p.NewShards)
	}
	return fmt.Sprintf("powers %v; mode %s, %s, small replies %v, %d proxies of %d workers, %d operations in %v; pending %v, committed %v, rejected %v, wait %v, timeout %v, window %d",
		p.Powers, mode, shards, p.SmallReplies, p.Proxies, p.Workers, p.Ops, p.Length, p.PendingTTL, p.CommittedTTL, p.RejectedTTL, p.PendingWait, p.ManagerTimeout, p.MaxKeys)
}

// stage is how far a gate is in a change of the list of shards.
type stage uint8

const (
	stageOld  stage = iota // it has the old list
	stageBoth              // the new one, and the old one as the previous
	stageNew               // the new one alone
)

// shardFields are the fields of manager for a gate, whose cluster is used where there are no shards.
func (p *Plan) shardFields(s stage, cluster string) string {
	list := func(field string, names []string) string {
		return fmt.Sprintf(`"%s": ["%s"]`, field, strings.Join(names, `", "`))
	}
	switch {
	case !p.Named:
		return fmt.Sprintf(`"cluster": %q`, cluster)
	case p.NewShards == nil || s == stageOld:
		return list("shards", p.Shards)
	case s == stageBoth:
		return list("shards", p.NewShards) + ", " + list("previous_shards", p.Shards)
	default:
		return list("shards", p.NewShards)
	}
}

// config is the gate's configuration. near is the manager of the gate's data centre.
func (p *Plan) config(s stage, near string) string {
	mode, failure, commit := "headers", "closed", "before_reply"
	if p.Body {
		mode = "body"
	}
	if p.Has(Open) {
		failure = "open"
	}
	if p.Has(Async) {
		commit = "async"
	}
	abort, cluster := "cancel", ""
	if p.Carry != carryRouter {
		abort = "continue"
	}
	if p.Carry == carryInner {
		cluster = clusterInner
	}
	match := ""
	if p.Has(Centres) {
		match = `"match": [{"methods": ["POST"], "path_prefix": "/global/", "durability": "global"}, {"methods": ["POST"], "path_prefix": "/"}],`
	}
	return fmt.Sprintf(`{%s "anonymous": "shared", "manager": {%s, "timeout_ms": %d}, "mode": %q, "failure_mode": %q, "commit": %q,
		"pending_ttl_seconds": %g, "committed_ttl_seconds": %g, "rejected_ttl_seconds": %g, "pending_wait_timeout": %g,
		"max_entries": 64, "max_bytes": 262144, "max_response_body_bytes": 4096, "cleanup_interval_seconds": 2,
		"client_abort": %q, "upstream": {"cluster": %q}}`,
		match, p.shardFields(s, near), p.ManagerTimeout.Milliseconds(), mode, failure, commit,
		p.PendingTTL.Seconds(), p.CommittedTTL.Seconds(), p.RejectedTTL.Seconds(), p.PendingWait.Seconds(), abort, cluster)
}
