package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// callKind is what a call asks of the ledger.
type callKind uint8

const (
	callReserve callKind = iota
	callCommit
	callReject
	callRelease
	callRenew
	callUnknown
)

// ops are the kinds' names in the ledger's protocol.
var ops = [...]api.Op{
	callReserve: api.OpReserve, callCommit: api.OpCommit, callReject: api.OpReject,
	callRelease: api.OpRelease, callRenew: api.OpRenew, callUnknown: api.OpUnknown,
}

func (k callKind) path() string { return ops[k].Path() }

// state is the state that a commit, a reject or the report of an unknown outcome leads to.
func (k callKind) state() api.State {
	switch k {
	case callReject:
		return api.StateRejected
	case callUnknown:
		return api.StateUnknown
	}
	return api.StateCommitted
}

// outcome tells whether the call carries what became of a request.
func (k callKind) outcome() bool { return k == callCommit || k == callReject || k == callUnknown }

// call is one piece of work for the ledger. It belongs to the plugin, not to
// the stream that wanted it: it is sent, answered and repeated whether or not
// that stream still exists.
type call struct {
	kind callKind
	attempt

	// stream waits for the answer; nil when none does or it is gone.
	stream *Stream
	// renews is the reservation that waits for the answer to a renewal.
	renews *reservation
	// cached: what this call means for the cache is done; a repetition leaves the
	// cache alone.
	cached bool

	wait  time.Duration // callReserve: how long the manager may hold the call
	plain bool          // callReserve: in the form that managers know which do not know of unknown outcomes
	// message is the raw form of a commit or reject, kept for repetition; result
	// is its tail, the raw form of the answer.
	message, result []byte
	bare            bool // the answer's body was left out
	stripped        bool // and all else but the status

	// next is the next call in the chain, see ledger.outcome.
	next               *call
	chained, repeating bool

	// with is the next call of the same batch, and batched the number of calls in it; see batch.go.
	with    *call
	batched int  // of the first of them; 0: it went by itself
	alone   bool // it goes by itself from now on

	// again: a release that may have overtaken the reserve that it takes back.
	again bool

	id       uint32 // the host's, while it is under way
	attempts int
	sent     int64 // when, nanoseconds
	timeout  time.Duration
	// due: a repetition is not sent before. While a call has no room to be sent, it is when it is given up.
	due int64
	// deadline is after when a repetition is pointless: the ledger has forgotten the reservation
	// that is to be given back, or the outcome's own time is over. 0: that, from when it is sent first.
	deadline int64
}

// ledger sends calls to the manager. It keeps what could not be delivered, see kept.go.
//
// There is no map of calls on purpose: TinyGo's garbage collector does not know
// a pointer that was looked up in a map as a root, so one that is then deleted
// from the map can be freed while it is in use. What is loaded from a slice
// is safe.
type ledger struct {
	p             *Plugin
	shards        []shard
	ready         []*call     // to be sent as soon as the plugin context is active
	flying        []*call     // waiting for the host's answer; of a batch the first
	landings      []landing   // batches that have ended, until their calls are settled
	held          int         // bytes of the messages of all calls, and of answers being copied
	fat           int         // of those that are to be sent again, how many strip makes smaller
	queued        int         // calls that are to be sent again, of all shards
	headers       [][2]string // of the last call, to be used again
	authorization string      // empty: none
	trouble       trouble
	lost          bool // calls under way may have lost their answers

	stuck  bool // what is ready found no room to be sent, or waits for an answer
	fresh  bool // calls have become ready since the last turn
	turns  int  // queue callbacks that found new calls
	always bool // batches of one, too
	frame  []byte
	// spare is used again from batch to batch, while no landing has it.
	spare []api.BatchAnswer

	look   bool // some shard is to look for repetitions that are due
	chains [chains]*call
}

const (
	// maxReplyBytes bounds the answers of the manager that are read, with room for the largest that
	// any gate records: max_response_body_bytes goes up to 16 MiB. The VM's memory never shrinks.
	maxReplyBytes = 17 << 20
	// maxProblemBytes bounds the problems of the manager that are read.
	maxProblemBytes = 4 << 10
)

func (l *ledger) init(p *Plugin) {
	l.p, l.shards = p, ledgers(&p.config.Manager)
	if token := p.config.Manager.AuthToken; token != "" {
		l.authorization = "Bearer " + token
	}
	m := &p.config.Manager
	l.always = m.Batch == config.BatchAlways
	for i := range l.shards {
		l.shards[i].never = m.Batch == config.BatchNever
	}
}

func (l *ledger) idle() bool {
	return len(l.ready) == 0 && l.queued == 0 && len(l.flying) == 0 && len(l.landings) == 0
}

// due tells whether send has something to do.
func (l *ledger) due() bool {
	return len(l.ready) > 0 && !l.stuck || len(l.landings) > 0 || l.lost || l.look
}

// add queues a call for the next moment at which the plugin context is active,
// and asks for that moment: a callout sent from a stream's callback would lose
// its answer together with the stream.
func (l *ledger) add(c *call) {
	l.ready, l.stuck, l.fresh = append(l.ready, c), false, true
	l.held += len(c.message)
	if c.kind.outcome() && !c.chained {
		l.enchain(c)
	}
	l.p.kick()
}

// cancel takes back a call that was not sent yet.
func (l *ledger) cancel(c *call) bool {
	for i, r := range l.ready {
		if r == c && !c.alone {
			l.ready = append(l.ready[:i], l.ready[i+1:]...)
			l.held -= len(c.message)
			return true
		}
	}
	return false
}

// send starts the calls that are ready, those to one shard together, and gives up those whose
// answers got lost. It runs in the plugin context. When the callback is spent, or there is no
// room, the rest stays. false: there was nothing to do.
func (l *ledger) send() (busy bool) {
	busy = l.unload()
	if l.lost {
		l.lost = !l.giveUpLost()
	}
	ready := l.ready
	if again := l.repetitions(); len(again) > 0 {
		ready = append(again, ready...)
	} else if len(ready) == 0 || l.stuck {
		return busy
	}
	l.ready, l.stuck = nil, false
	full, waits, spent, back := false, false, false, 0
	for i, c := range ready {
		if c == nil {
			continue // it went with one before
		}
		ready[i] = nil
		room := l.shards[c.shard].room(c)
		wait := room && l.waits(c)
		if !room || wait || l.p.spent() {
			full, waits, spent = full || !room, waits || wait, spent || room && !wait
			ready[back] = c
			back++
			continue
		}
		busy = true
		l.gather(c, ready[i+1:])
		// The one before may have been refused, and its stream answered.
		l.p.choose(0)
		l.start(c)
	}
	if full {
		l.wait(ready[:back])
	}
	// What was refused at once may have made more ready.
	l.stuck = (full || waits) && !spent && len(l.ready) == 0
	l.ready = append(ready[:back], l.ready...)
	return busy
}

// giveUpLost settles the calls whose answers got lost, and those that found no room in their
// time; false: some are left.
func (l *ledger) giveUpLost() (all bool) {
	now := l.p.host.Now()
	for at := len(l.flying) - 1; at >= 0; at-- {
		if c := l.flying[at]; now-c.sent > int64(c.timeout+lostGrace) {
			if l.p.spent() {
				return false
			}
			l.landed(at)
			l.fail(c, &reply{kind: replyUnavailable, maybe: true, at: now, why: "neither an answer nor a timeout came from the proxy"})
		}
	}
	return l.giveUpWaiting(now)
}

// message returns the raw form of a call that is sent now.
func (l *ledger) message(c *call, now int64) []byte {
	p := l.p
	c.sent, c.due = now, 0
	c.timeout = p.config.Manager.Timeout + c.wait
	body := c.message
	switch c.kind {
	case callReserve, callRenew, callUnknown:
		r := api.ReserveRequest{
			Key: c.key, Scope: c.scope.String(), Fingerprint: c.fingerprint.String(), Token: hexString(c.token[:]),
			PendingTTL: c.route.PendingTTL, Wait: c.wait, UnknownTTL: c.unknownTTL(),
		}
		switch c.kind {
		case callUnknown:
			r.PendingTTL = 0
		case callReserve:
			if c.plain = c.plain || l.peer(c.shard).plain; c.plain {
				r.UnknownTTL = 0
			}
		}
		p.scratch = r.AppendRaw(p.scratch[:0])
		body = p.scratch
	case callRelease:
		r := api.ReleaseRequest{Key: c.key, Scope: c.scope.String(), Token: hexString(c.token[:])}
		p.scratch = r.AppendRaw(p.scratch[:0])
		body = p.scratch
	}
	if c.attempts > 0 {
		p.metrics.count(p.metrics.retries)
	}
	if c.deadline == 0 {
		c.deadline = c.sent + int64(c.ttl())
	}
	c.attempts++
	return body
}

// start makes the callout for a call, and for those that go with it.
func (l *ledger) start(c *call) {
	now := l.p.host.Now()
	if c.batched > 0 {
		l.launch(c, api.PathBatch, nil, l.batch(c, now))
		return
	}
	l.launch(c, c.kind.path(), c.trace, l.message(c, now))
}

func (l *ledger) launch(c *call, path string, trace [][2]string, body []byte) {
	p := l.p
	headers := l.headersTo(c.shard, path, trace)
	id, status := p.host.Call(l.shards[c.shard].name, headers, body, c.timeout)
	clear(headers)
	if status != CallSent {
		l.fail(c, &reply{kind: replyUnavailable, maybe: c.alone, at: c.sent, why: refusals[status]})
		return
	}
	c.id = id
	l.flying = append(l.flying, c)
	m := &l.shards[c.shard].peer
	m.flying += c.place()
	if c.clocked() {
		m.awaited, m.sent = c, l.turns
	}
}

// fail settles what went out together and has no answers.
func (l *ledger) fail(c *call, r *reply) {
	if c.batched > 0 {
		l.landings = append(l.landings, landing{calls: c, at: r.at, all: *r, suspect: r.maybe})
		return
	}
	l.settle(c, r)
}

// answered reads the answer to a callout.
func (l *ledger) answered(id uint32, bodySize int) {
	at := len(l.flying) - 1
	for at >= 0 && l.flying[at].id != id {
		at--
	}
	if at < 0 {
		// Given up already, or answered twice.
		return
	}
	c := l.flying[at]
	l.landed(at)
	p := l.p
	now := p.host.Now()
	p.metrics.sample(p.metrics.callout, (now-c.sent)/1e3)
	if c.batched > 0 {
		l.land(c, bodySize, now)
		return
	}
	r := l.read(c, bodySize)
	r.at = now
	l.settle(c, &r)
}

// landed takes a call out of flying; order does not matter there.
func (l *ledger) landed(at int) {
	last := len(l.flying) - 1
	c := l.flying[at]
	l.flying[at] = l.flying[last]
	l.flying[last] = nil
	l.flying = l.flying[:last]
	m := &l.shards[c.shard].peer
	m.flying -= c.place()
	if m.awaited == c {
		m.awaited = nil
	}
	l.stuck = false
}

// settle acts on the answer to a call.
func (l *ledger) settle(c *call, r *reply) {
	s := &l.shards[c.shard]
	l.held -= len(c.message)
	l.repeated(c)
	wasDown := s.down
	switch r.kind {
	case replyUnavailable, replyRefused:
		l.complain(s, c, r)
	default:
		l.answers(s)
	}
	if s.down = r.kind == replyUnavailable && r.astray != api.CodeKeyMoved; !s.down && wasDown {
		l.flush(s, r.at)
	}
	switch c.kind {
	case callReserve:
		l.p.reserved(c, r)
	case callRelease:
		l.p.released(c, r)
	case callRenew:
		l.p.renewed(c, r)
	case callUnknown:
		l.p.reported(c, r)
	default:
		l.p.recorded(c, r)
	}
}

// tick has send look for repetitions that are due and for answers that got lost.
func (l *ledger) tick() {
	l.lost, l.stuck = true, false
	for i := range l.shards {
		l.shards[i].awaited = nil // a call that takes so long holds up no others
		l.lookAt(&l.shards[i])
	}
}
