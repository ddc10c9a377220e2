package gate

import (
	"encoding/hex"
	"time"
	"unsafe"

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

// fail gives up a call that no manager answered. sendReady settles it.
func (c *call) fail(why string, now int64) {
	c.failure = &reply{kind: replyUnavailable, at: now, why: why}
}

// names are the text forms by which the ledger knows an attempt.
type names struct{ scope, fingerprint, token string }

// names returns the attempt's text forms. They lie in memory that the next call reuses.
func (p *Plugin) names(a *attempt) names {
	b := a.scope.AppendText(p.nameBuf[:0])
	scope := len(b)
	b = a.fingerprint.AppendText(b)
	token := len(b)
	b = hex.AppendEncode(b, a.token[:])
	p.nameBuf = b
	text := unsafe.String(unsafe.SliceData(b), len(b))
	return names{scope: text[:scope], fingerprint: text[scope:token], token: text[token:]}
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

// emptyResult is the size of the raw form of a result without anything.
var emptyResult = len(new(api.Result).AppendRaw(nil))

// encode builds the message of a commit or reject; its tail is the raw result.
func (c *call) encode(p *Plugin, result *api.Result) {
	n := p.names(&c.attempt)
	f := api.FinishRequest{Key: c.key, Scope: n.scope, Token: n.token, Fingerprint: n.fingerprint, TTL: max(c.ttl(), 0), Durability: c.laterDurability()}
	// One block is enough for the message: each length, number and the frame take a few bytes.
	const few = 4
	size := 16*few + len(f.Key) + len(n.scope) + len(n.token) + len(n.fingerprint) + len(result.Body)
	for i := range result.Headers {
		size += 2*few + len(result.Headers[i].Name) + len(result.Headers[i].Value)
	}
	head := f.AppendRaw(make([]byte, 0, size))
	prefix := len(head) - emptyResult
	c.message = result.AppendRaw(head[:prefix])
	c.result = c.message[prefix:]
}

// unknownTTL is the TTL that the ledger gets.
func (a *attempt) unknownTTL() time.Duration {
	switch ttl := a.route.UnknownTTL; ttl {
	case 0:
		return api.NoUnknown
	case config.ManagersTTL:
		return 0
	default:
		return ttl
	}
}

// laterDurability is what calls after the reserve say. Only the home of a global key is looked for again.
func (a *attempt) laterDurability() api.Durability {
	if a.route.Durability == api.DurabilityGlobal {
		return api.DurabilityGlobal
	}
	return api.DurabilityLocal
}

// If the manager's TTL holds and the manager has not said yet how long that is, an outcome counts in the gate for one of
// these times. The gate offers it to the manager for that long, also while the VM should end. An unknown outcome needs
// less: the manager takes it for unknown by itself when the reservation runs out.
const (
	assumedTTL        = 24 * time.Hour
	assumedUnknownTTL = 5 * time.Minute
)

// lasts is how long the gate takes the outcome to be remembered.
func (c *call) lasts() time.Duration {
	switch ttl := c.ttl(); {
	case ttl != config.ManagersTTL:
		return ttl
	case c.kind == callUnknown:
		return assumedUnknownTTL
	}
	return assumedTTL
}

// ttl is how long the route wants the outcome to be remembered. It counts from the moment that the ledger learns of the
// outcome, so a delayed outcome is not forgotten earlier.
func (c *call) ttl() time.Duration {
	switch c.kind {
	case callReject:
		return c.route.RejectedTTL
	case callUnknown:
		return c.route.UnknownTTL
	}
	return c.route.CommittedTTL
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
	if a.Status < 200 || a.Status >= 300 {
		return l.readRefusal(c, a)
	}
	var r reply
	if r.answer.ParseRaw(a.Body) == nil {
		if kind, ok := c.kind.doneAs(&r.answer); ok {
			r.kind = kind
			return r
		}
	}
	return reply{kind: replyUnavailable, uncertain: true, why: "the manager's answer cannot be read"}
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
		// A manager that remembers no unknown outcomes leaves the reservation as it is, and says what that is.
		ok = a.State == api.StateUnknown || a.State == api.StatePending || a.State == api.StateNone
	default:
		ok = a.State.Terminal()
	}
	return replyDone, ok
}

// What the gate does once a call to the ledger has ended. All of it runs in the plugin context.

// action acts on the reply to a call. s is the stream that waits for the reply, and the current one; nil: none waits any
// more.
type action func(p *Plugin, c *call, r *reply, s *Stream)

// actions has the action for each kind of call and each kind of reply. Where it has none, that of replyUnavailable counts:
// the manager does not give such a reply to such a call, or does not say by it that it did what was asked.
var actions = [...][replyKinds]action{
	callReserve: {
		replyGranted:     (*Plugin).forwardGranted,
		replyPending:     (*Plugin).waitForOther,
		replyRecorded:    (*Plugin).replayFound,
		replyMismatch:    (*Plugin).refuseMismatch,
		replyFenced:      (*Plugin).refuseConflict,
		replyConflict:    (*Plugin).refuseConflict,
		replyUnknown:     (*Plugin).refuseUnknown,
		replyMoved:       (*Plugin).askNewOwner,
		replyUnavailable: (*Plugin).refuseOrBypass,
	},
	callCommit: outcomeActions,
	callReject: outcomeActions,
	callRelease: {
		replyDone:        (*Plugin).endRelease,
		replyFenced:      (*Plugin).endRelease,
		replyConflict:    (*Plugin).endRelease,
		replyUnknown:     (*Plugin).endRelease,
		replyTooLarge:    (*Plugin).endRelease,
		replyUnavailable: (*Plugin).retryRelease,
	},
	callRenew: {
		replyDone:        (*Plugin).extendReservation,
		replyFenced:      (*Plugin).loseReservation,
		replyConflict:    (*Plugin).loseReservation,
		replyUnavailable: (*Plugin).retryRenewal,
	},
	callUnknown: {
		replyDone:        (*Plugin).endReport,
		replyFenced:      (*Plugin).endFencedReport,
		replyConflict:    (*Plugin).endReport, // the ledger knows more about the outcome than the gate
		replyUnknown:     (*Plugin).endReport,
		replyTooLarge:    (*Plugin).abandonReport,
		replyRefused:     (*Plugin).abandonReport,
		replyUnavailable: (*Plugin).retryReport,
	},
	callLookUp: {
		replyPending:     (*Plugin).showPending,
		replyRecorded:    (*Plugin).showRecorded,
		replyUnresolved:  (*Plugin).showUnknown,
		replyNothing:     (*Plugin).showNothing,
		replyUnavailable: (*Plugin).showUnavailable,
	},
}

// outcomeActions are the actions for a commit or a reject.
var outcomeActions = [replyKinds]action{
	replyDone:        (*Plugin).endOutcome,
	replyFenced:      (*Plugin).dropOutcome,
	replyConflict:    (*Plugin).dropOutcome,
	replyUnknown:     (*Plugin).dropOutcome,
	replyTooLarge:    (*Plugin).reduceOutcome,
	replyRefused:     (*Plugin).reduceOutcome,
	replyUnavailable: (*Plugin).retryOutcome,
}

// settle acts on the reply to a call.
func (l *ledger) settle(c *call, r *reply) {
	r.uncertain = r.uncertain || c.uncertain
	l.heldBytes -= len(c.message)
	if c.retrying {
		l.endRetry(c)
	}
	l.checkAvailability(c, r)
	s := l.p.waitingStream(c)
	if c.kind == callLookUp && s == nil || c.kind == callRenew && c.renews == nil {
		return // the stream, or the reservation, has ended
	}
	act := actions[c.kind][r.kind]
	if act == nil {
		act = actions[c.kind][replyUnavailable]
	}
	act(l.p, c, r, s)
}

// checkAvailability notices from a reply whether the shard's manager is down.
func (l *ledger) checkAvailability(c *call, r *reply) {
	s := &l.shards[c.shard]
	wasDown := s.down
	switch {
	case r.kind == replyUnavailable || r.kind == replyRefused:
		l.logFailure(s, c, r)
	case s.failureLogged:
		l.logRecovery(s)
	}
	s.down = r.kind == replyUnavailable && r.shardError != api.CodeKeyMoved && r.refusal == ""
	if wasDown && !s.down {
		l.retryNow(s, r.at)
	}
}

// waitingStream takes the waiting stream from the call and makes it the current one. nil: no stream waits any more.
func (p *Plugin) waitingStream(c *call) *Stream {
	s := c.stream
	c.stream = nil
	if s == nil {
		return nil
	}
	s.call = nil
	if !p.makeCurrent(s.id) {
		s.phase = phaseDone
		return nil
	}
	return s
}
