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
	// maxFlying bounds the callouts to one shard that are under way. Calls beyond it go out together
	// as soon as one of the callouts ends.
	maxFlying = 256
	// maxPatience bounds how long new calls wait for the answer to the callout before them. It counts
	// queue callbacks that find new calls.
	maxPatience = 4
)

// landing is a batch that has ended and whose calls are being settled. That takes several callbacks,
// because settling answers streams and one callback may answer only few.
type landing struct {
	calls   *call // the calls that are not settled yet, in the order of their answers
	at      int64
	answers []api.BatchAnswer // of all calls, views of the host's bytes; empty: each call gets all
	next    int               // the position in answers of the next call's
	all     reply
	alone   bool // each call is sent once more, by itself
	suspect bool // one of the calls may have made the batch fail
}

// joins tells whether a call may go in a batch.
func (c *call) joins() bool {
	return !c.alone && !c.plain && c.wait == 0 && len(c.message) <= maxCompanionBytes
}

// gather moves calls out of others into a batch with the first one. Two calls about one key keep their
// order. A repetition may fail again, so it goes only with other repetitions.
func (l *ledger) gather(first *call, others []*call) {
	first.batched, first.with = 0, nil
	if m := l.peer(first.shard); m.apart() || !first.joins() {
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
		if !c.joins() || size+len(c.message) > maxTogetherBytes || skipped && sameKey(others[:i], c) {
			skipped = true
			continue
		}
		others[i] = nil
		last.with, last = c, c
		n++
		size += len(c.message)
	}
	if n > 1 || l.always {
		first.batched = n
	}
}

// sameKey tells whether one of the calls is about the key of c.
func sameKey(calls []*call, c *call) bool {
	for _, o := range calls {
		if o != nil && o.hash == c.hash {
			return true
		}
	}
	return false
}

// batch returns the raw form of a batch, and notes that its calls are sent now.
func (l *ledger) batch(first *call, now int64) []byte {
	m := &l.p.metrics
	m.count(m.batches)
	m.sample(m.batchItems, int64(first.batched))
	l.frame = api.AppendRawBatch(l.frame[:0], first.batched)
	for c := first; c != nil; c = c.with {
		message := l.message(c, now)
		l.frame = api.AppendRawItem(l.frame, ops[c.kind], c.trace, message)
	}
	return l.frame
}

// land deals with the answer to a batch.
func (l *ledger) land(first *call, bodySize int, now int64) {
	host := l.p.host
	b := landing{calls: first, at: now}
	text, _ := host.CallHeader(headerStatus)
	status, _ := parseDecimal(text)
	version, ok := host.CallHeader(api.HeaderManager)
	if ok {
		l.heard(first.shard, version)
	}
	several := first.batched > 1 // a batch of one fails only because of its call
	switch {
	case ok && (status == 404 || status == 405) || !ok && several && refusesBatch(status):
		b.alone = true
		l.isSingle(first, version)
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
	case refusesMessage(int(status)):
		b.alone = true
	default:
		b.all = l.understand(first, l.single(status, bodySize))
		b.all.kind = replyUnavailable
		b.suspect = status == 500
	}
	l.landings = append(l.landings, b)
	l.unload()
}

// refusesBatch tells whether a proxy on the way that answers with this status lets no batch pass.
func refusesBatch(status int64) bool {
	return status >= 400 && status < 500 && status != 401 && status != 408 && status != 425 && status != 429
}

// unload settles calls of batches that have ended. False: there were none.
func (l *ledger) unload() (busy bool) {
	for len(l.landings) > 0 && !l.p.spent() {
		busy = true
		b := &l.landings[0]
		c, r, alone := b.calls, b.all, b.alone
		if !alone && len(b.answers) > 0 {
			a := b.answers[b.next]
			b.next++
			r = l.understand(c, a)
			alone = a.Status == 503 && api.Code(gjson.GetBytes(a.Body, "code").Str) == api.CodeAskAlone
		}
		r.at = b.at
		c.alone = c.alone || b.suspect
		if b.calls = c.with; b.calls == nil {
			l.unloaded()
		}
		c.with = nil
		if alone {
			// The manager may have carried it out, so cancel must not take it back: alone prevents that.
			c.alone = true
			l.ready, l.stuck = append(l.ready, c), false
			continue
		}
		l.settle(c, &r)
	}
	return busy
}

// unloaded drops the first landing.
func (l *ledger) unloaded() {
	answers := l.landings[0].answers
	clear(answers)
	l.spare = answers[:0]
	n := copy(l.landings, l.landings[1:])
	l.landings[n] = landing{}
	l.landings = l.landings[:n]
}

// place returns how much of maxFlying a callout takes: nothing if the manager may hold it.
func (c *call) place() int {
	if c.wait > 0 {
		return 0
	}
	return 1
}

// room tells whether a call may be sent now. Waiting only helps where calls go together, since it makes
// fewer callouts of them.
func (m *peer) room(c *call) bool { return m.flying+c.place() <= maxFlying || m.apart() }

// waits tells whether a call, the first of ready, waits for the answer to the callout before it. It then goes together
// with the calls that have become ready meanwhile. A call does not wait while nothing is under way, nor when the ready
// calls fill a batch: waiting would not make that batch larger.
func (l *ledger) waits(c *call, ready []*call) bool {
	m := &l.shards[c.shard].peer
	return m.awaited != nil && l.turns-m.sent < maxPatience && c.clocked() && !m.apart() && !fillsBatch(ready)
}

// fillsBatch tells whether the ready calls to the shard of the first one are enough for a whole batch.
func fillsBatch(ready []*call) bool {
	n, size := 0, 0
	for _, c := range ready {
		if c == nil || c.shard != ready[0].shard || !c.clocked() {
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

// clocked tells whether the call is of a kind that waits for others, or that others wait for.
func (c *call) clocked() bool { return c.joins() && !c.repeating }

// turn counts a queue callback if there are new calls.
func (l *ledger) turn() {
	if l.fresh {
		l.fresh = false
		l.turns++
	}
}

// apart tells whether each call to this manager goes by itself.
func (m *peer) apart() bool { return m.never || m.plain || m.single }

// wait sets the time at which calls that find no room are given up.
func (l *ledger) wait(calls []*call) {
	now := l.p.host.Now()
	for _, c := range calls {
		if c.due == 0 {
			c.due = now + int64(l.p.config.Manager.Timeout)
		}
	}
}

// giveUpWaiting settles the calls that found no room in time. False: the callback is spent and some
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
		l.settle(c, &reply{kind: replyUnavailable, maybe: c.alone, at: now, why: "as many calls as may be were under way"})
	}
	return true
}
