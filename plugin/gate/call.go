package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// callKind says what a call asks of the ledger.
type callKind uint8

const (
	callReserve callKind = iota
	callCommit
	callReject
	callRelease
	callRenew
	callUnknown
	callLookUp // asks what became of a key; never in a batch
)

// ops are the kinds' names in the ledger's protocol.
var ops = [...]api.Op{
	callReserve: api.OpReserve, callCommit: api.OpCommit, callReject: api.OpReject,
	callRelease: api.OpRelease, callRenew: api.OpRenew, callUnknown: api.OpUnknown,
}

func (k callKind) path() string {
	if k == callLookUp {
		return api.PathLookUp
	}
	return ops[k].Path()
}

// state returns the entry's state after a commit, a reject or the report of an unknown outcome.
func (k callKind) state() api.State {
	switch k {
	case callReject:
		return api.StateRejected
	case callUnknown:
		return api.StateUnknown
	}
	return api.StateCommitted
}

// isOutcome reports whether calls of this kind report a request's outcome to the ledger.
func (k callKind) isOutcome() bool { return k == callCommit || k == callReject || k == callUnknown }

// call is one request to the ledger. It belongs to the plugin, not to the stream
// that asked for it: the plugin sends, settles and repeats it whether or not that
// stream still exists.
type call struct {
	kind callKind
	attempt

	// stream waits for the answer; nil: none does, or it has ended.
	stream *Stream
	// renews is the reservation that waits for the answer to a renewal.
	renews *reservation
	// cached: the cache has the outcome of this call; a repetition does not write it again.
	cached bool

	wait time.Duration // callReserve: how long the manager may hold the call
	// message is the raw form of a commit or reject, kept for repetition. result
	// is its tail, the raw form of the answer.
	message, result []byte
	// cacheFor is how long the cache may answer with the outcome, if the ledger says so; 0: for as long as it lasts.
	cacheFor time.Duration
	noBody   bool // result has no body
	stripped bool // result has nothing but the status

	// next is the next call in the chain; see ledger.outcomeCall.
	next               *call
	chained, repeating bool

	// nextInBatch is the next call of the same batch; see batch.go.
	nextInBatch *call
	batched     int  // in the first call of a batch: the number of its calls; 0: it went by itself
	alone       bool // it goes by itself from now on
	open        bool // an earlier attempt may have been carried out, now or later

	// sendTwice: the call is a release that may arrive before the call that it takes back, so it is
	// sent a second time; see overtakeDelay.
	sendTwice bool

	id       uint32 // the host's id, while the callout is under way
	attempts int
	sent     int64 // time of the last attempt, nanoseconds
	timeout  time.Duration
	// due is the time before which a repetition is not sent. For a call that finds no slot it is the
	// time at which the gate gives the call up.
	due int64
	// deadline is the time after which a repetition is pointless: the ledger has forgotten the
	// reservation that a release gives back, or the outcome's own TTL is over. 0: the TTL counts from the
	// first attempt.
	deadline int64
}

// ledger sends calls to the managers. It keeps the calls that it could not deliver; see kept.go.
//
// Calls are in slices and not in a map: TinyGo's garbage collector does not treat a
// pointer that was looked up in a map as a root. If the pointer is then deleted from
// the map, its target can be freed while it is in use. Pointers from a slice are safe.
type ledger struct {
	p             *Plugin
	shards        []shard
	ready         []*call      // to be sent as soon as the plugin context is active
	inFlight      []*call      // callouts under way; of a batch its first call
	endedBatches  []endedBatch // batches that have ended, until their calls are settled
	heldBytes     int          // bytes of the messages of all calls, and of answers that are being copied
	strippable    int          // calls kept for repetition that strip would make smaller
	queued        int          // calls kept for repetition, of all shards
	headers       [][2]string  // of the last call; its memory is reused
	authorization string       // empty: none
	trouble       trouble
	lost          bool // calls under way may have lost their answers

	blocked     bool // the ready calls have no room to be sent, or wait for an answer
	added       bool // calls have become ready since the last turn
	turns       int  // queue callbacks that found new calls
	batchAlways bool // a lone call goes as a batch, too
	frame       []byte
	// spare is the memory for the answers of the next batch, while no ended batch uses it.
	spare []api.BatchAnswer

	checkDue bool // some shard must look for repetitions that are due
	chains   [chains]*call
}

const (
	// maxReplyBytes bounds the manager's answers that the gate reads, because the VM's memory never shrinks.
	// It has room for the largest answer that a gate records: max_response_body_bytes goes up to 16 MiB.
	maxReplyBytes = 17 << 20
	// maxProblemBytes bounds the manager's problems that the gate reads.
	maxProblemBytes = 4 << 10
)

func (l *ledger) init(p *Plugin, token string) {
	l.p, l.shards = p, ledgers(&p.config.Manager)
	if token != "" {
		l.authorization = "Bearer " + token
	}
	m := &p.config.Manager
	l.batchAlways = m.Batch == config.BatchAlways
	for i := range l.shards {
		l.shards[i].batchesOff = m.Batch == config.BatchNever
	}
}

func (l *ledger) idle() bool {
	return len(l.ready) == 0 && l.queued == 0 && len(l.inFlight) == 0 && len(l.endedBatches) == 0
}

// due reports whether send has work.
func (l *ledger) due() bool {
	return len(l.ready) > 0 && !l.blocked || len(l.endedBatches) > 0 || l.lost || l.checkDue
}

// add queues a call for the next callback of the plugin context, and asks for that
// callback. A callout from a stream's callback would lose its answer when that stream
// ends.
func (l *ledger) add(c *call) {
	l.ready, l.blocked, l.added = append(l.ready, c), false, true
	l.heldBytes += len(c.message)
	if c.kind.isOutcome() && !c.chained {
		l.chain(c)
	}
	l.p.kick()
}

// cancel takes back a call that was never sent. False: the ledger may know of it.
func (l *ledger) cancel(c *call) bool {
	for i, r := range l.ready {
		if r == c && !c.open {
			l.ready = append(l.ready[:i], l.ready[i+1:]...)
			l.heldBytes -= len(c.message)
			return true
		}
	}
	return false
}

// send starts the calls that are ready, those to one shard together, and gives up those whose
// answers got lost. It runs in the plugin context. Calls stay ready when the callback is spent or
// the shard has no slot for them. False: there was nothing to do.
func (l *ledger) send() (busy bool) {
	busy = l.settleEnded()
	if l.lost {
		l.lost = !l.giveUpLost()
	}
	ready := l.ready
	if again := l.repetitions(); len(again) > 0 {
		ready = append(again, ready...)
	} else if len(ready) == 0 || l.blocked {
		return busy
	}
	l.ready, l.blocked = nil, false
	full, waits, spent, back := false, false, false, 0
	for i, c := range ready {
		if c == nil {
			continue // it went with an earlier call
		}
		room := l.shards[c.shard].hasSlot(c)
		wait := room && l.waitsForAnswer(c, ready[i:])
		ready[i] = nil
		if !room || wait || l.p.spent() {
			full, waits, spent = full || !room, waits || wait, spent || room && !wait
			ready[back] = c
			back++
			continue
		}
		busy = true
		l.gather(c, ready[i+1:])
		// If the call before was refused, its stream was answered and is the current one.
		l.p.choose(0)
		l.start(c)
	}
	if full {
		l.limitWaits(ready[:back])
	}
	// A refused call may have made others ready.
	l.blocked = (full || waits) && !spent && len(l.ready) == 0
	l.ready = append(ready[:back], l.ready...)
	return busy
}

// giveUpLost settles the calls whose answers got lost, and those that found no slot in time.
// False: the callback is spent and some are left.
func (l *ledger) giveUpLost() (all bool) {
	now := l.p.host.Now()
	for at := len(l.inFlight) - 1; at >= 0; at-- {
		if c := l.inFlight[at]; now-c.sent > int64(c.timeout+lostGrace) {
			if l.p.spent() {
				return false
			}
			l.removeInFlight(at)
			l.fail(c, &reply{kind: replyUnavailable, maybe: true, at: now, why: "neither an answer nor a timeout came from the proxy"})
		}
	}
	return l.giveUpWaiting(now)
}

// message returns the raw form of a call, and marks it as sent now. It is valid until the
// next call of message.
func (l *ledger) message(c *call, now int64) []byte {
	p := l.p
	c.sent, c.due = now, 0
	c.timeout = p.config.Manager.Timeout + c.wait
	body := c.message
	switch c.kind {
	case callReserve, callRenew, callUnknown:
		n := p.names(&c.attempt)
		r := api.ReserveRequest{
			Key: c.key, Scope: n.scope, Fingerprint: n.fingerprint, Token: n.token,
			PendingTTL: c.route.PendingTTL, Wait: c.wait, UnknownTTL: c.unknownTTL(), Durability: c.laterDurability(),
		}
		switch c.kind {
		case callUnknown:
			r.PendingTTL = 0
		case callReserve:
			r.Durability = c.route.Durability
		}
		p.scratch = r.AppendRaw(p.scratch[:0])
		body = p.scratch
	case callLookUp:
		r := api.ReleaseRequest{Key: c.key, Scope: p.names(&c.attempt).scope}
		p.scratch = r.AppendRaw(p.scratch[:0])
		body = p.scratch
	case callRelease:
		n := p.names(&c.attempt)
		// The manager may not know of a reserve whose answer was lost.
		r := api.ReleaseRequest{Key: c.key, Scope: n.scope, Token: n.token, Durability: c.laterDurability()}
		p.scratch = r.AppendRaw(p.scratch[:0])
		body = p.scratch
	}
	if c.attempts > 0 {
		p.metrics.count(p.metrics.retries)
	}
	if c.deadline == 0 {
		c.deadline = c.sent + int64(c.lasts())
	}
	c.attempts++
	return body
}

// start makes the callout for a call and for the calls that go with it.
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
	headers := l.headersTo(c.shard, path, trace, c.sent)
	id, status := p.host.Call(l.shards[c.shard].name, headers, body, c.timeout)
	clear(headers)
	if status != CallSent {
		l.fail(c, &reply{kind: replyUnavailable, at: c.sent, why: refusals[status]})
		return
	}
	c.id = id
	l.inFlight = append(l.inFlight, c)
	m := &l.shards[c.shard].peer
	m.inFlight += c.slots()
	if c.paced() {
		m.awaited, m.sent = c, l.turns
	}
}

// fail settles the calls of a callout that got no answer.
func (l *ledger) fail(c *call, r *reply) {
	if c.batched > 0 {
		l.endedBatches = append(l.endedBatches, endedBatch{calls: c, at: r.at, all: *r, suspect: r.maybe})
		return
	}
	l.settle(c, r)
}

// onManagerAnswer reads the answer to a callout.
func (l *ledger) onManagerAnswer(id uint32, bodySize int) {
	at := len(l.inFlight) - 1
	for at >= 0 && l.inFlight[at].id != id {
		at--
	}
	if at < 0 {
		// The gate gave it up already, or the host answered twice.
		return
	}
	c := l.inFlight[at]
	l.removeInFlight(at)
	p := l.p
	now := p.host.Now()
	p.metrics.sample(p.metrics.callout, (now-c.sent)/1e3)
	if c.batched > 0 {
		l.onBatchAnswer(c, bodySize, now)
		return
	}
	r := l.read(c, bodySize, now)
	r.at = now
	l.settle(c, &r)
}

// removeInFlight takes a callout out of inFlight, whose order does not matter.
func (l *ledger) removeInFlight(at int) {
	last := len(l.inFlight) - 1
	c := l.inFlight[at]
	l.inFlight[at] = l.inFlight[last]
	l.inFlight[last] = nil
	l.inFlight = l.inFlight[:last]
	m := &l.shards[c.shard].peer
	m.inFlight -= c.slots()
	if m.awaited == c {
		m.awaited = nil
	}
	l.blocked = false
}

// settle acts on the answer to a call.
func (l *ledger) settle(c *call, r *reply) {
	r.maybe = r.maybe || c.open
	s := &l.shards[c.shard]
	l.heldBytes -= len(c.message)
	l.repeated(c)
	wasDown := s.down
	switch r.kind {
	case replyUnavailable, replyRefused:
		l.logFailure(s, c, r)
	default:
		l.logRecovery(s)
	}
	if s.down = r.kind == replyUnavailable && r.shardError != api.CodeKeyMoved && r.closed == ""; !s.down && wasDown {
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
	case callLookUp:
		l.p.lookedUp(c, r)
	default:
		l.p.recorded(c, r)
	}
}

// tick has send look for repetitions that are due and for answers that got lost.
func (l *ledger) tick() {
	l.lost, l.blocked = true, false
	for i := range l.shards {
		l.shards[i].awaited = nil // no call waits longer than a tick for another's answer
		l.scheduleCheck(&l.shards[i])
	}
}
