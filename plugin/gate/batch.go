package gate

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/tidwall/gjson"
)

// Calls that are ready in the same callback go to their manager as one callout. Each gets its own
// answer, and means what it would mean alone.

const (
	// maxTogether bounds the calls of a batch, and maxTogetherBytes their messages.
	maxTogether      = 64
	maxTogetherBytes = 256 << 10
	// maxCompanionBytes bounds one message of a batch: larger ones would delay the others.
	maxCompanionBytes = 64 << 10
	// maxBatchReplyBytes bounds the answers to a batch that the gate reads: what a manager returns, and
	// room for the frame and for problems.
	maxBatchReplyBytes = api.MaxBatchReplyBytes + maxTogether*maxProblemBytes
	// maxInFlight bounds the callouts to one shard that are under way. Calls beyond it go out together
	// as soon as one of the callouts ends.
	maxInFlight = 256
	// maxPatience bounds how long new calls wait for the answer to the callout before them. It counts
	// queue callbacks that find new calls.
	maxPatience = 4
)

// endedBatch is a batch that has ended and whose calls are being settled. That takes several
// callbacks, because settling a call may answer a stream, and one callback may answer only few.
type endedBatch struct {
	calls   *call // the calls that are not settled yet, in the order of their answers
	at      int64
	answers []api.BatchAnswer // of all calls, views of the host's bytes; empty: each call gets all
	next    int               // the position in answers of the next call's
	all     reply             // of calls that go once more, only maybe counts
	alone   bool              // each call is sent once more, by itself
	suspect bool              // one of the calls may have made the batch fail
}

// batchable reports whether a call may go in a batch.
func (c *call) batchable() bool {
	return !c.alone && c.wait == 0 && len(c.message) <= maxCompanionBytes
}

// gather moves calls out of others into a batch with the first one. Two calls about one key keep their
// order. A repetition may fail again, so it goes only with other repetitions.
func (l *ledger) gather(first *call, others []*call) {
	first.batched, first.nextInBatch = 0, nil
	if l.peer(first.shard).singleCalls() || !first.batchable() {
		return
	}
	last, n, size, skipped := first, 1, len(first.message), false
	for i, c := range others {
		if n == maxTogether {
			break
		}
		if c == nil || c.shard != first.shard || c.repeating != first.repeating {
			continue
		}
		if !c.batchable() || size+len(c.message) > maxTogetherBytes || skipped && sameKey(others[:i], c) {
			skipped = true
			continue
		}
		others[i] = nil
		last.nextInBatch, last = c, c
		n++
		size += len(c.message)
	}
	if n > 1 || l.batchAlways {
		first.batched = n
	}
}

// sameKey reports whether one of the calls is about the key of c.
func sameKey(calls []*call, c *call) bool {
	for _, o := range calls {
		if o != nil && o.hash == c.hash {
			return true
		}
	}
	return false
}

// batch returns the raw form of a batch, and marks its calls as sent now.
func (l *ledger) batch(first *call, now int64) []byte {
	m := &l.p.metrics
	m.count(m.batches)
	m.sample(m.batchItems, int64(first.batched))
	l.frame = api.AppendRawBatch(l.frame[:0], first.batched)
	for c := first; c != nil; c = c.nextInBatch {
		message := l.message(c, now)
		l.frame = api.AppendRawItem(l.frame, ops[c.kind], c.trace, message)
	}
	return l.frame
}

// onBatchAnswer deals with the answer to a batch.
func (l *ledger) onBatchAnswer(first *call, bodySize int, now int64) {
	host := l.p.host
	b := endedBatch{calls: first, at: now}
	text, _ := host.CallHeader(headerStatus)
	status, _ := parseDecimal(text)
	ok := l.isManagers(first.shard, text, now)
	several := first.batched > 1 // a batch of one fails only because of its call
	switch {
	case !ok && several && refusesBatch(status):
		b.alone, b.all.maybe = true, true
		l.noteNoBatches(first)
	case !ok:
		b.all = reply{kind: replyUnavailable, maybe: true, why: foreign(text, host.CallBody(min(bodySize, maxQuoted)))}
		// One of the calls may have broken the connection, or none.
		b.alone, b.suspect = several && status != 504, true
	case status >= 200 && status < 300:
		if bodySize <= maxBatchReplyBytes {
			b.answers, _ = api.ViewRawAnswers(l.spare[:0], host.CallBody(bodySize))
			l.spare = nil
		}
		// Without an answer for each call, all go again: any of them may be sent twice.
		b.alone = len(b.answers) != first.batched
		b.all.maybe = b.alone
	case refusesMessage(int(status)):
		b.alone = true
	default:
		b.all = l.classify(first, l.readSingle(status, bodySize))
		b.all.kind = replyUnavailable
		b.suspect = status == 500
	}
	l.endedBatches = append(l.endedBatches, b)
	l.settleEnded()
}

// refusesBatch reports whether a proxy on the way to the manager refuses batches if it answers with this status.
func refusesBatch(status int64) bool {
	return status >= 400 && status < 500 && status != 401 && status != 408 && status != 425 && status != 429
}

// settleEnded settles the calls of batches that have ended. False: there were none.
func (l *ledger) settleEnded() (busy bool) {
	for len(l.endedBatches) > 0 && !l.p.spent() {
		busy = true
		b := &l.endedBatches[0]
		c, r, alone := b.calls, b.all, b.alone
		if !alone && len(b.answers) > 0 {
			a := b.answers[b.next]
			b.next++
			r = l.classify(c, a)
			alone = a.Status == 503 && api.Code(gjson.GetBytes(a.Body, "code").Str) == api.CodeAskAlone
		}
		r.at = b.at
		c.alone = c.alone || b.suspect
		if b.calls = c.nextInBatch; b.calls == nil {
			l.dropEnded()
		}
		c.nextInBatch = nil
		if alone {
			c.alone, c.open = true, c.open || r.maybe
			l.ready, l.blocked = append(l.ready, c), false
			continue
		}
		l.settle(c, &r)
	}
	return busy
}

// dropEnded drops the first of the ended batches. Its memory serves the next one.
func (l *ledger) dropEnded() {
	answers := l.endedBatches[0].answers
	clear(answers)
	l.spare = answers[:0]
	n := copy(l.endedBatches, l.endedBatches[1:])
	l.endedBatches[n] = endedBatch{}
	l.endedBatches = l.endedBatches[:n]
}

// slots returns how many of the maxInFlight slots a callout takes: none if the manager may hold it.
func (c *call) slots() int {
	if c.wait > 0 {
		return 0
	}
	return 1
}

// hasSlot reports whether a call may be sent now. A manager that gets each call by itself always has a
// slot: waiting only helps where it makes several calls one callout.
func (m *peer) hasSlot(c *call) bool { return m.inFlight+c.slots() <= maxInFlight || m.singleCalls() }

// waitsForAnswer reports whether a call, the first of ready, waits for the answer to the callout before it. It then goes
// together with the calls that have become ready meanwhile. A call does not wait while nothing is under way, nor when
// the ready calls fill a batch: waiting would not make that batch larger.
func (l *ledger) waitsForAnswer(c *call, ready []*call) bool {
	m := &l.shards[c.shard].peer
	return m.awaited != nil && l.turns-m.sent < maxPatience && c.paced() && !m.singleCalls() && !fillsBatch(ready)
}

// fillsBatch reports whether the ready calls to the shard of the first one are enough for a whole batch.
func fillsBatch(ready []*call) bool {
	n, size := 0, 0
	for _, c := range ready {
		if c == nil || c.shard != ready[0].shard || !c.paced() {
			continue
		}
		n++
		size += len(c.message)
		if n == maxTogether || size >= maxTogetherBytes {
			return true
		}
	}
	return false
}

// paced reports whether the call is of a kind that waits for others, or that others wait for.
func (c *call) paced() bool { return c.batchable() && !c.repeating }

// turn counts a queue callback if there are new calls.
func (l *ledger) turn() {
	if l.added {
		l.added = false
		l.turns++
	}
}

// limitWaits sets the time at which calls that find no slot are given up.
func (l *ledger) limitWaits(calls []*call) {
	now := l.p.host.Now()
	for _, c := range calls {
		if c.due == 0 {
			c.due = now + int64(l.p.config.Manager.Timeout)
		}
	}
}

// giveUpWaiting settles the calls that found no slot in time. False: the callback is spent and some
// are left.
func (l *ledger) giveUpWaiting(now int64) (all bool) {
	for i := 0; i < len(l.ready); {
		c := l.ready[i]
		if c.due == 0 || now < c.due {
			i++
			continue
		}
		if l.p.spent() {
			return false
		}
		l.ready = append(l.ready[:i], l.ready[i+1:]...)
		l.settle(c, &reply{kind: replyUnavailable, at: now, why: "too many calls are under way"})
	}
	return true
}
