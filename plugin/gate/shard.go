package gate

import (
	"slices"
	"time"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// shard is what this VM knows about one ledger.
type shard struct {
	name string
	mark mark

	retries         []*call // calls to send again when they are due
	retriesUnderWay int     // retries under way
	checkDue        bool    // some calls in retries may be due
	retriesBlocked  bool    // some calls were due when no more could be under way
	probe           bool    // one call of retries goes before it is due
	down            bool    // the last call that ended got no answer
	retriedNow      int64   // time of the last flush

	// Lines of the log about failed calls, about refused calls, and about another ledger.
	failureLog, shardErrorLog, ledgerLog limitedLog
	failureLogged                        bool // the log has a failure, but not yet its end
}

// addShards makes the shards of both lists, each once, and their connections. The shards of the present list come first.
func (l *ledger) addShards(m *config.Manager) {
	for _, name := range append(slices.Clone(m.Shards), m.Previous...) {
		if !slices.ContainsFunc(l.shards, func(s shard) bool { return s.name == name }) {
			n := len(l.shards)
			l.shards = append(l.shards, shard{name: name})
			l.conns = append(l.conns, conn{shard: n}, conn{shard: n, large: true})
		}
	}
}

// What the gate remembers of each ledger (api.Mark). It says so with each call, because a ledger that lost its data, or was
// put back to an earlier state, cannot notice that by itself. Such a ledger then takes no new keys for a while. The VMs of
// a proxy share what they remember, so that a new VM knows it, too.

// mark is what this VM remembers of a shard's ledger.
type mark struct {
	text   []byte // empty: nothing
	at     int64  // when the ledger answered last
	shared bool   // shared data have nothing that this VM has not known
}

// view is the mark's text. It is valid until the mark changes.
func (m *mark) view() string { return unsafe.String(unsafe.SliceData(m.text), len(m.text)) }

// ledgerID is the part of a mark that says which ledger it is of.
func ledgerID(text string) string { return text[:min(len(text), api.MarkIDBytes)] }

// advance takes the mark of an answer over if it is of the ledger that the gate remembers. False: it is not.
func (m *mark) advance(text string, now int64) bool {
	if len(text) > api.MaxMarkBytes || len(m.text) == 0 || ledgerID(text) != ledgerID(m.view()) {
		return false
	}
	m.text, m.at = append(m.text[:0], text...), now
	return true
}

// markLasts is for how long the gate remembers a ledger that has not answered: no shorter than keys are remembered. After
// that nothing is lost with the ledger, and another one may replace it.
const markLasts = int64(24 * time.Hour)

// markPrefix is that of the keys in shared data that have marks, by cluster.
const markPrefix = cachePrefix + ".l."

// markFor is what the gate says to the manager of a shard about its ledger; "" for nothing.
func (l *ledger) markFor(s *shard, now int64) string {
	m := &s.mark
	if len(m.text) == 0 && !m.shared {
		if v, _, status := l.p.host.Get(markPrefix+s.name, nil); status == 0 && len(v) <= api.MaxMarkBytes {
			m.text, m.at, m.shared = append(m.text, v...), now, true
		}
	}
	if len(m.text) > 0 && now-m.at > max(markLasts, int64(l.p.config.LongestTTL())) {
		m.text = m.text[:0]
	}
	return m.view()
}

// rememberOtherLedger remembers the ledger of a manager that refused a call instead of the previous one, if that has not
// answered for so long that nothing is left of its keys. The manager says for how long its ledger remembers keys.
func (l *ledger) rememberOtherLedger(s *shard, text string, longest int, now int64) {
	if longest == 0 || len(s.mark.text) == 0 {
		return // it is another shard
	}
	if (now-s.mark.at)/int64(time.Second) >= int64(longest) {
		l.rememberMark(s, text, now)
	}
}

// rememberMark remembers a mark from an answer. It counts and logs that a shard's ledger is another one than before, as
// after a start on an empty directory.
func (l *ledger) rememberMark(s *shard, text string, now int64) {
	m := &s.mark
	if len(text) > api.MaxMarkBytes || len(text) < api.MarkIDBytes || m.advance(text, now) {
		return
	}
	was := string(m.text)
	m.text, m.at, m.shared = append(m.text[:0], text...), now, true
	key := markPrefix + s.name
	_, cas, _ := l.p.host.Get(key, nil)
	l.p.host.Set(key, m.text, cas) // another VM that writes at the same time writes the same ledger
	if was == "" {
		return
	}
	l.p.metrics.count(l.p.metrics.ledgerChanged)
	l.p.logLimited(&s.ledgerLog, now, LevelError, "ALARM: the ledger of cluster \"", s.name, "\" is ", loggable(text), ", and was ", loggable(was),
		": it knows none of the earlier one's keys, and takes no new ones until they have ended")
}

// The calls that the gate stores until the ledger has them: outcomes, until their own TTL is over, and releases.

const (
	// maxHeldBytes bounds the answers that are being copied and the messages that are not acknowledged yet. Beyond it,
	// answers are recorded without their bodies. Slow clients, a slow manager and large answers must not use up the VM's
	// memory, in which large blocks take several times their size.
	maxHeldBytes = 16 << 20
	// maxRetriesUnderWay bounds the retries to one shard that are under way together, so that a manager that comes back
	// does not get all of them at the same time. maxRetriesWhileDown is the bound while the manager is away.
	maxRetriesUnderWay  = 32
	maxRetriesWhileDown = 2
	// overtakeDelay is how long after the answer to a release the call that it takes back may still arrive. The two use
	// different connections, and a manager that stood still reads them in any order.
	overtakeDelay = 2 * time.Second
	// retryNowPeriod is the least time between two flushes of a shard.
	retryNowPeriod = int64(time.Second)
	// bucketCount is the number of buckets of the calls that carry outcomes.
	bucketCount = 256
)

// tick makes sendReady look for retries that are due, and for calls and connections without an answer.
func (l *ledger) tick() {
	l.checkTimeouts = true
	for i := range l.shards {
		l.checkRetries(&l.shards[i])
	}
}

// retryLater queues a call for another try. It abandons the call if its deadline is too near, or if too many are queued.
func (l *ledger) retryLater(c *call) {
	c.stream = nil
	now := l.p.host.Now()
	retry := &l.p.config.CommitRetry
	delay := retry.Initial
	for i := 1; i < c.attempts && delay < retry.Max; i++ {
		delay *= 2
	}
	c.due = now + int64(min(delay, retry.Max))
	switch {
	case c.due >= c.deadline:
		l.abandon(c, "an outcome did not reach the ledger before its time was over")
	case !c.wasQueued && l.queueFull(c):
		l.abandon(c, "an outcome is lost: more than commit_retry.max_queued did not reach the ledger")
	default:
		l.enqueueRetry(c)
	}
}

// queueFull reports whether there is no room for the call. While a manager is away, every new request leaves a release. So
// releases get half of the room at most, an equal part for each shard, and outcomes have the other half.
func (l *ledger) queueFull(c *call) bool {
	most := l.p.config.CommitRetry.MaxQueued
	if c.kind == callRelease && len(l.shards[c.shard].retries) >= most/2/len(l.shards) {
		return true
	}
	return l.queued >= most
}

func (l *ledger) enqueueRetry(c *call) {
	l.heldBytes += len(c.message)
	if c.canDropAnswer() {
		l.droppable++
	}
	c.wasQueued = true
	s := &l.shards[c.shard]
	s.retries = append(s.retries, c)
	l.queued++
}

// abandon gives a call up.
func (l *ledger) abandon(c *call, why string) {
	l.unindex(c)
	l.p.metrics.count(l.p.metrics.abandoned)
	if c.kind == callRelease {
		return
	}
	l.p.logLimited(&l.losses, l.p.host.Now(), LevelError, why, "; the ledger knows of the request for unknown_ttl_seconds at most")
}

// releaseAgain queues a release to be made once more after overtakeDelay, unless it is pointless by then.
func (l *ledger) releaseAgain(c *call, now int64) {
	c.sendTwice = false
	c.due = now + int64(overtakeDelay)
	if c.due < c.deadline && !l.queueFull(c) {
		l.enqueueRetry(c)
	}
}

// checkRetries makes sendReady look for retries of the shard that are due.
func (l *ledger) checkRetries(s *shard) {
	if len(s.retries) > 0 {
		s.checkDue, l.checkDue = true, true
	}
}

// retryNow makes the outcomes due that are stored for a shard whose manager is back. Releases stay due at their times.
func (l *ledger) retryNow(s *shard, now int64) {
	if since := now - s.retriedNow; since >= 0 && since < retryNowPeriod {
		return
	}
	s.retriedNow = now
	l.checkRetries(s)
	for _, c := range s.retries {
		if c.kind != callRelease {
			c.due = min(c.due, now)
		}
	}
}

// dueRetries removes the stored calls that are due, as many of each shard as may be under way. They go before new calls.
// When a shard is down and there are new calls for it, one stored outcome goes before it is due, so that the first call
// that the manager answers is an outcome.
func (l *ledger) dueRetries() (due []*call) {
	looks := l.checkDue
	l.checkDue = false
	for _, c := range l.ready {
		if s := &l.shards[c.shard]; s.down && !s.probe {
			s.probe, looks = true, true
		}
	}
	if !looks {
		return nil
	}
	now := l.p.host.Now()
	for i := range l.shards {
		if s := &l.shards[i]; s.checkDue || s.probe {
			due = l.moveDueRetries(s, due, now)
		}
	}
	return due
}

// moveDueRetries moves the calls of a shard that are due from its queue to the end of due.
func (l *ledger) moveDueRetries(s *shard, due []*call, now int64) []*call {
	probe, limit := s.probe, maxRetriesUnderWay
	if s.down {
		limit = maxRetriesWhileDown
	}
	s.probe, s.checkDue, s.retriesBlocked = false, false, false
	left := 0
	for i, c := range s.retries {
		if s.retriesUnderWay >= limit {
			s.retriesBlocked = true
			left += copy(s.retries[left:], s.retries[i:])
			break
		}
		if probe && c.kind != callRelease {
			probe = false
		} else if c.due > now {
			s.retries[left] = c
			left++
			continue
		}
		if c.canDropAnswer() {
			l.droppable--
		}
		c.retrying, c.due = true, 0
		s.retriesUnderWay++
		due = append(due, c)
	}
	l.queued -= len(s.retries) - left
	clear(s.retries[left:])
	s.retries = s.retries[:left]
	return due
}

// endRetry ends a retry that was under way.
func (l *ledger) endRetry(c *call) {
	c.retrying = false
	s := &l.shards[c.shard]
	s.retriesUnderWay--
	if s.retriesBlocked && !s.down {
		l.checkRetries(s)
	}
}

// canDropAnswer reports whether dropAnswer makes the message smaller.
func (c *call) canDropAnswer() bool { return len(c.message) > 0 && !c.answerDropped }

// dropAnswer removes everything but the status from the message.
func (c *call) dropAnswer(p *Plugin) {
	var result api.Result
	if c.answerDropped = true; result.ParseRaw(c.result) != nil {
		return
	}
	c.encode(p, &api.Result{Status: result.Status, BodyOmitted: true})
}
