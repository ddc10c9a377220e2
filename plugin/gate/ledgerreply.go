package gate

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

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

// classify says what the manager's answer means.
func (l *ledger) classify(c *call, a *api.StreamReply) reply {
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
		api.CodeHomeUnavailable, api.CodeRecordUnreadable, api.CodeLargeAnswer:
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
