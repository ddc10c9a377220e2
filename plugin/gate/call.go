package gate

import (
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
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
	callLookUp // asks what became of a key
)

// ops are the kinds' names in the ledger's protocol.
var ops = [...]api.Op{
	callReserve: api.OpReserve, callCommit: api.OpCommit, callReject: api.OpReject,
	callRelease: api.OpRelease, callRenew: api.OpRenew, callUnknown: api.OpUnknown, callLookUp: api.OpLookUp,
}

func (k callKind) String() string { return ops[k].String() }

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

// call is one request to the ledger. It belongs to the plugin, not to the stream that asked for it: the plugin sends,
// settles and repeats it whether or not that stream still exists.
type call struct {
	kind callKind
	attempt

	// stream waits for the answer; nil: none does, or it has ended.
	stream *Stream
	// renews is the reservation that waits for the answer to a renewal.
	renews *reservation
	// cached: the cache has the outcome of this call; a retry does not write it again.
	cached bool

	wait time.Duration // callReserve: how long the manager may hold the call
	// message is the raw form of a commit or reject, stored for retries. result is its tail, the raw form of the answer.
	message, result []byte
	// cacheFor is how long the cache may answer with the outcome, if the ledger says so; 0: for as long as it lasts.
	cacheFor      time.Duration
	answerDropped bool // result has nothing but the status

	// next is the next call in the bucket; see ledger.unacknowledgedCall.
	next              *call
	indexed, retrying bool
	wasQueued         bool // for a retry; the call keeps its room in the queue while it is under way

	// sendTwice: the call is a release that may arrive before the call that it takes back, so it is sent a second time; see
	// overtakeDelay.
	sendTwice bool
	// uncertain: the manager may have got the call, and may still carry it out.
	uncertain bool
	// large: the answer does not fit into a small connection.
	large bool
	// failure is the result of a call that no manager answered, until settle may be called; nil: it has not failed.
	failure *reply

	number   uint64 // on the connection
	size     int    // of the message that is under way, bytes
	sends    int    // how often it was sent since it was added
	attempts int    // how often it was added
	sent     int64
	// until is when the gate gives up a call that was added; 0: it was not added.
	until int64
	// due is the time before which a retry is not sent.
	due int64
	// deadline is the time after which a retry is pointless: the ledger has forgotten the reservation that a release
	// gives back, or the outcome's own TTL is over. 0: the TTL counts from the first attempt.
	deadline int64
}

// ledger sends calls to the managers. It stores the calls that it could not deliver; see shard.go.
//
// Calls are in slices and not in a map: TinyGo's garbage collector does not treat a pointer that was looked up in a map as
// a root. If the pointer is then deleted from the map, its target can be freed while it is in use. Pointers from a slice
// are safe.
type ledger struct {
	p             *Plugin
	shards        []shard
	conns         []conn     // two for each shard: for small messages, for large ones
	ready         []*call    // to be sent or settled
	blocked       bool       // the ready calls have to wait for a connection
	wanted        bool       // some connection must be opened
	toClose       []uint32   // connections that must be closed
	heldBytes     int        // bytes of the messages of all calls, and of answers that are being copied
	droppable     int        // calls stored for retries that dropAnswer would make smaller
	queued        int        // calls stored for retries, of all shards
	underWay      int        // calls on connections
	authorization string     // empty: none
	losses        limitedLog // lines of the log about lost outcomes, of all shards
	alarms        limitedLog // and about lost reservations
	checkTimeouts bool       // some calls may have waited too long
	checkDue      bool       // some shard must look for retries that are due
	buckets       [bucketCount]*call
	frame         []byte // memory for the next message
	metadata      [][2]string
}

func (l *ledger) init(p *Plugin, token string) {
	l.p = p
	l.addShards(&p.config.Manager)
	if token != "" {
		l.authorization = "Bearer " + token
	}
}

func (l *ledger) idle() bool { return len(l.ready) == 0 && l.queued == 0 && l.underWay == 0 }

// hasWork reports whether the next callback has work.
func (l *ledger) hasWork() bool {
	return len(l.ready) > 0 && !l.blocked || l.checkDue || l.wanted || len(l.toClose) > 0
}

// add sends a call. If the connection has no room, or has to be opened, the call waits for a callback of the plugin
// context.
func (l *ledger) add(c *call) {
	l.heldBytes += len(c.message)
	if c.kind.isOutcome() && !c.indexed {
		l.index(c)
	}
	now := l.p.host.Now()
	l.startCall(c, now)
	if n := l.connOf(c); n.id == 0 {
		if n.retryAt <= now {
			n.wanted, l.wanted = true, true
		}
	} else if len(l.ready) == 0 {
		// A connection belongs to the plugin context.
		back := l.p.current
		l.p.makeCurrent(0)
		sent := l.sendCall(c, now)
		l.p.makeCurrent(back)
		if sent {
			return
		}
	}
	l.ready, l.blocked = append(l.ready, c), false
	l.p.requestCallback()
}

// startCall starts the time that a call has.
func (l *ledger) startCall(c *call, now int64) {
	if c.attempts > 0 {
		l.p.metrics.count(l.p.metrics.retries)
	}
	c.attempts++
	c.sends, c.failure, c.due, c.sent = 0, nil, 0, now
	c.until = now + int64(l.p.config.Manager.Timeout+c.wait)
	if c.deadline == 0 {
		c.deadline = now + int64(c.lasts())
	}
}

// fail gives up a call that no manager answered. sendReady settles it.
func (c *call) fail(why string, now int64) {
	c.failure = &reply{kind: replyUnavailable, at: now, why: why}
}

// cancel takes back a call that was never sent. False: the ledger may know of it.
func (l *ledger) cancel(c *call) bool {
	for i, r := range l.ready {
		if r == c && !c.uncertain {
			l.ready = append(l.ready[:i], l.ready[i+1:]...)
			l.heldBytes -= len(c.message)
			return true
		}
	}
	return false
}

// sendReady sends the calls that are ready, and settles those that failed. It runs in the plugin context. Calls stay ready
// when the callback is at its limit, or when they have to wait for a connection. False: there was nothing to do.
func (l *ledger) sendReady() (busy bool) {
	if l.checkTimeouts {
		l.checkTimeouts, l.blocked = false, false
		l.p.makeCurrent(0) // a reply may have been sent before
		l.checkConns()
	}
	ready, now := l.ready, int64(0)
	if again := l.dueRetries(); len(again) > 0 {
		now = l.p.host.Now()
		for _, c := range again {
			l.startCall(c, now)
		}
		ready = append(again, ready...)
	} else if len(ready) == 0 || l.blocked {
		return false
	}
	if now == 0 {
		now = l.p.host.Now()
	}
	l.ready, l.blocked = nil, false
	waits, back := false, 0
	for i, c := range ready {
		ready[i] = nil
		if l.p.atLimit() {
			ready[back] = c
			back++
			continue
		}
		// If the call before was settled, its stream is the current one.
		l.p.makeCurrent(0)
		switch {
		case c.failure == nil && l.sendCall(c, now):
			busy = true
		case c.failure != nil: // sendCall may have found that it fails
			busy = true
			l.settle(c, c.failure)
		default:
			waits = true
			ready[back] = c
			back++
		}
	}
	// A call that was settled may have made others ready.
	l.blocked = waits && !l.p.atLimit() && len(l.ready) == 0
	l.ready = append(ready[:back], l.ready...)
	return busy
}

// message returns the raw form of a call. It is valid until the next call of message.
func (l *ledger) message(c *call, now int64) []byte {
	if c.kind == callCommit || c.kind == callReject {
		return c.message
	}
	p := l.p
	n := p.names(&c.attempt)
	switch c.kind {
	case callLookUp:
		r := api.ReleaseRequest{Key: c.key, Scope: n.scope}
		p.scratch = r.AppendRaw(p.scratch[:0])
	case callRelease:
		// The manager may not know of a reserve whose answer was lost.
		r := api.ReleaseRequest{Key: c.key, Scope: n.scope, Token: n.token, Durability: c.laterDurability()}
		p.scratch = r.AppendRaw(p.scratch[:0])
	default:
		r := api.ReserveRequest{
			Key: c.key, Scope: n.scope, Fingerprint: n.fingerprint, Token: n.token,
			PendingTTL: c.route.PendingTTL, UnknownTTL: c.unknownTTL(), Durability: c.laterDurability(),
		}
		if c.kind == callUnknown {
			r.PendingTTL = 0
		} else if c.kind == callReserve {
			r.Durability = c.route.Durability
		}
		if c.wait > 0 {
			// A call that is sent again has less time to wait.
			r.Wait = max(0, time.Duration(c.until-now)-p.config.Manager.Timeout)
		}
		p.scratch = r.AppendRaw(p.scratch[:0])
	}
	return p.scratch
}

// tick makes sendReady look for retries that are due, and for calls and connections without an answer.
func (l *ledger) tick() {
	l.checkTimeouts = true
	for i := range l.shards {
		l.checkRetries(&l.shards[i])
	}
}

// reply is the result of a call.
type reply struct {
	kind replyKind
	// uncertain: the manager may have acted on the call although it did not say so.
	uncertain bool
	at        int64 // when it came
	// retryAfter is the wait that the manager asks for, seconds; 0: none.
	retryAfter int
	// refusal is why the manager, which can be reached, does not do what was asked: ledger-full, quarantine,
	// record-unreadable, durability-unavailable, wrong-home, home-unavailable or home-unanswered. Empty: another reason.
	// Only with replyUnavailable.
	refusal api.Code
	answer  api.ReserveReply
	// shardError is CodeWrongShard, CodeWrongLedger or CodeKeyMoved of a manager that refused the call because it does not
	// own the key; empty: no such refusal. Only with replyUnavailable.
	shardError api.Code
	// why says for the log what happened instead of an answer. Only with replyUnavailable and replyRefused.
	why string
}

type replyKind uint8

const (
	// The ledger has done what was asked. answer is set.
	replyDone       replyKind = iota // nothing more is to be known
	replyGranted                     // the attempt has the key
	replyPending                     // another attempt has the key
	replyRecorded                    // answer has the outcome
	replyUnresolved                  // a look-up: the outcome is unknown
	replyNothing                     // a look-up: the ledger has nothing of the key

	// It has not.
	replyMismatch    // 422
	replyFenced      // 409: another attempt holds the key
	replyConflict    // 409: the attempt's outcome is known already
	replyUnknown     // 409: another attempt's outcome is unknown
	replyRefused     // 4xx: the manager will never take this message
	replyTooLarge    // 413
	replyMoved       // 421: the key's new owner must be asked
	replyLarge       // the answer is too large for this connection
	replyUnavailable // the manager did not answer, or did not do what was asked

	replyKinds = iota
)

// readReply says what the manager's answer means.
func (l *ledger) readReply(c *call, a *api.StreamReply) reply {
	var code api.Code
	if a.Status >= 400 {
		code = api.Code(gjson.GetBytes(a.Body, "code").Str)
	}
	switch {
	case a.Status >= 200 && a.Status < 300:
		var r reply
		if r.answer.ParseRaw(a.Body) == nil {
			if kind, ok := c.kind.doneAs(&r.answer); ok {
				r.kind = kind
				return r
			}
		}
		return reply{kind: replyUnavailable, uncertain: true, why: "the manager's answer cannot be read"}
	case a.Status == 409:
		switch code {
		case api.CodeOutcomeUnknown:
			return reply{kind: replyUnknown}
		case api.CodeConflict:
			return reply{kind: replyConflict}
		}
		return reply{kind: replyFenced}
	case a.Status == 413:
		return reply{kind: replyTooLarge}
	case a.Status == 421:
		if r, ok := l.classifyShardError(c, code); ok {
			return r
		}
	case a.Status == 422 && c.kind == callReserve:
		return reply{kind: replyMismatch}
	case code == api.CodeLargeAnswer && !c.large:
		return reply{kind: replyLarge}
	}
	// The manager refused: it is starting, stopping, overloaded or full, or does not accept the gate's credentials.
	r := reply{
		kind: replyUnavailable, uncertain: leavesUncertain(a.Status, code), retryAfter: min(a.RetryAfterSeconds, maxRetryAfterSeconds),
		why: "the manager answered with status " + strconv.Itoa(a.Status),
	}
	switch code {
	case api.CodeLedgerFull:
		r.refusal, r.why = code, r.why+", its ledger is full"
	case api.CodeQuarantine:
		r.refusal, r.why = code, r.why+", its ledger may have forgotten the key"
	case api.CodeRecordUnreadable:
		r.why += ", it cannot read what it has of the key"
		if c.kind == callReserve { // the work may have run
			r.refusal = code
		}
	case api.CodeDurability, api.CodeWrongHome, api.CodeHomeUnavailable, api.CodeHomeUnanswered:
		r.refusal = code
		r.why += ": " + gjson.GetBytes(a.Body, "detail").String()
		return r
	}
	if c.kind.isOutcome() && refusesMessage(a.Status) && (a.Status != 400 || code != "") {
		r.kind = replyRefused
	}
	return r
}

// leavesUncertain reports whether a manager that answers with this status and code may have made the call. Only the
// statuses of refusals and some codes say that it changed nothing. A code that is unknown, or lost with a part of the
// answer, says nothing.
func leavesUncertain(status int, code api.Code) bool {
	switch code {
	case api.CodeLedgerFull, api.CodeQuarantine, api.CodeOverloaded, api.CodeInsufficientStorage, api.CodeStoreFull,
		api.CodeStoreUnreachable, api.CodeHomeUnavailable, api.CodeRecordUnreadable, api.CodeLargeAnswer:
		return false
	}
	return status < 400 || status >= 500
}

// refusesMessage reports whether a manager that answers with this status will never accept the message. Wrong credentials,
// paths and shards can be corrected, and load passes, so these statuses do not count.
func refusesMessage(status int) bool {
	switch status {
	case 401, 403, 404, 405, 408, 421, 425, 429:
		return false
	}
	return status >= 400 && status < 500
}

// doneAs returns the kind of a reply to a call that the ledger has carried out. False: the answer is not one to a call of this kind.
func (k callKind) doneAs(a *api.ReserveReply) (kind replyKind, ok bool) {
	switch k {
	case callReserve, callLookUp:
		switch lookUp := k == callLookUp; {
		case a.State == api.StateReserved:
			return replyGranted, !lookUp
		case a.State == api.StatePending:
			return replyPending, true
		case a.State == api.StateUnknown:
			return replyUnresolved, lookUp
		case a.State == api.StateNone:
			return replyNothing, lookUp
		}
		return replyRecorded, a.State.Terminal() && a.Result.Status != 0
	case callRelease:
		ok = a.State == api.StateReleased || a.State == api.StateNone
	case callRenew:
		ok = a.State == api.StateReserved
	case callUnknown:
		ok = a.State == api.StateUnknown
	default:
		ok = a.State.Terminal()
	}
	return replyDone, ok
}

// classifyShardError classifies a refusal that concerns shards, which says nothing about the key itself. If there is no
// other owner to ask, gates and managers disagree about the shards, and the log gets an alarm.
func (l *ledger) classifyShardError(c *call, code api.Code) (r reply, ok bool) {
	switch {
	case code == api.CodeKeyMoved && c.kind == callReserve && c.shard != l.owner(&c.attempt):
		return reply{kind: replyMoved}, true
	case code == api.CodeKeyMoved:
		r.why = "another shard of the manager's list owns the key"
	case code == api.CodeWrongShard:
		r.why = "the manager there is another shard"
	case code == api.CodeWrongLedger:
		r.why = "the manager there has another ledger than the one that answered before"
	default:
		return r, false
	}
	r.kind, r.shardError = replyUnavailable, code
	return r, true
}
