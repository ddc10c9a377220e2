package gate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// Connections that cannot be opened or end, and calls that a manager refuses or does not answer.

// requestConnection deals with a call that has no connection. It has one opened, unless it is too early for another try,
// because the manager cannot be reached now. Then a reserve and a look-up wait for the manager. If it has been away for so
// long that they would hardly live to see it again, they wait for one try only, so that no request fails once the manager
// is back; requests that may be forwarded without protection do not wait even for that. Other calls fail at once, because
// the gate repeats them anyway: no client waits, and the cache answers duplicates meanwhile.
func (l *ledger) requestConnection(n *conn, c *call, now int64) {
	if early := n.retryAt - now; early <= 0 || early > int64(lastBackoff) {
		n.wanted, l.wanted = true, true
		return
	}
	waits := c.kind == callReserve || c.kind == callLookUp
	long := n.failures > 0 && now-n.since >= int64(l.p.config.Manager.Timeout)
	if !waits || long && (n.failed > c.sent || c.route.FailureMode == config.FailOpen) {
		c.fail(n.why, now)
	}
}

// connectFailed records a try that brought no message.
func (l *ledger) connectFailed(n *conn, why string, now int64) {
	if n.failures == 0 {
		n.since = now
	}
	backoff := lastBackoff
	if n.failures < 5 {
		backoff = firstBackoff << n.failures
	}
	n.failures++
	n.failed, n.retryAt, n.why = now, now+int64(backoff), why
}

// openRefusals say why the host made no call.
var openRefusals = [...]string{
	CallRefused:   "refused at once: the proxy knows no such cluster, no host of it is healthy, or a circuit breaker is full",
	CallNoCluster: "the proxy knows no such cluster; manager.cluster must name one that it has",
}

// onClose deals with the end of a connection, which the manager, the host or somebody between them caused.
func (l *ledger) onClose(id uint32, status int) {
	l.p.host.CloseStream(id) // the host keeps what belongs to the stream until then
	l.toClose = slices.DeleteFunc(l.toClose, func(d uint32) bool { return d == id })
	n := l.conn(id)
	if n == nil {
		return
	}
	why, again := closeReason(status)
	if status == grpcUnavailable && !n.answered {
		// Such is the end when nobody accepts the connection. The calls are not the reason.
		for _, c := range n.calls {
			if c != nil {
				c.sends--
			}
		}
	}
	l.connectionEnded(n, why, again, l.p.host.Now())
}

// closeReason says what a connection's status means for its calls, and whether it makes sense to send them again.
func closeReason(status int) (why string, again bool) {
	switch status {
	case grpcUnauthenticated:
		return "the manager does not accept the gate's credentials", false
	case grpcPermissionDenied:
		return "the manager does not allow the gate's calls", false
	case grpcUnimplemented:
		return "the server there is not a manager, or does not get the calls by HTTP/2", false
	}
	return "the connection ended with gRPC status " + strconv.Itoa(status), true
}

// connectionEnded deals with a connection that is over. Its calls are sent again, by another connection, or fail. They may
// have been carried out.
func (l *ledger) connectionEnded(n *conn, why string, again bool, now int64) {
	if !n.answered {
		l.connectFailed(n, why, now)
	}
	calls := slices.DeleteFunc(n.calls, func(c *call) bool { return c == nil })
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.number, b.number) })
	l.underWay -= n.waiting
	*n = conn{shard: n.shard, large: n.large, failures: n.failures, since: n.since, failed: n.failed, retryAt: n.retryAt, why: why}
	for _, c := range calls {
		if c.kind == callRenew && c.renews == nil {
			continue // its reservation has ended, and could be made again after its release
		}
		c.uncertain = true
		if !again || c.sends >= maxSends {
			c.fail(why, now)
		}
		l.ready = append(l.ready, c)
	}
	l.blocked = false
	l.p.requestCallback()
}

// checkConns gives up the calls whose time is over, and connections to managers that show no sign of life.
func (l *ledger) checkConns() {
	now := l.p.host.Now()
	for i := range l.conns {
		if n := &l.conns[i]; n.id != 0 {
			l.checkConn(n, now)
		}
	}
	for _, c := range l.ready {
		if c.failure == nil && now > c.until {
			why := "too many calls are under way"
			if n := l.connOf(c); n.id == 0 && n.why != "" {
				why = n.why
			}
			c.fail("no connection: "+why, now)
		}
	}
}

func (l *ledger) checkConn(n *conn, now int64) {
	for _, c := range n.calls {
		if c == nil || now <= c.until {
			continue
		}
		n.removeCall(c.number)
		l.underWay--
		c.uncertain = true
		c.fail("timeout", now)
		l.ready = append(l.ready, c)
	}
	timeout := int64(l.p.config.Manager.Timeout)
	silence := int64(pingIdle)
	if n.waiting > 0 {
		silence = int64(pingBusy)
	}
	switch {
	case n.pingSent != 0 && now-n.pingSent > timeout:
		l.toClose = append(l.toClose, n.id)
		n.answered = false // a manager that stands still is not tried again at once
		l.connectionEnded(n, "the manager does not answer", true, now)
	case n.pingSent == 0 && now-n.lastMessage > silence:
		l.frame = api.AppendStreamCall(l.frame[:0], pingNumber, api.OpPing, nil, nil)
		if l.p.host.SendStream(n.id, l.frame) {
			n.pingSent = now
		}
	}
}

// readRefusal says what an answer means by which the manager did not do what was asked.
func (l *ledger) readRefusal(c *call, a *api.StreamReply) reply {
	var code api.Code
	if a.Status >= 400 {
		code = api.Code(gjson.GetBytes(a.Body, "code").Str)
	}
	switch {
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

// What the log says about calls that the manager did not answer.

const (
	// logPeriod is the least time between two log lines of the same kind, even if calls succeed in between.
	logPeriod = 10 * time.Second
	// maxQuoted bounds the bytes of text from outside that a log line quotes.
	maxQuoted = 160
)

// limitedLog limits one kind of log line to one line per logPeriod.
type limitedLog struct {
	logged     int64 // when the last line was written; 0: never
	suppressed int   // lines left out since then
}

// logLimited writes a line, which says at its end how many such lines were left out. False: it leaves out this one, too.
func (p *Plugin) logLimited(o *limitedLog, now int64, level Level, text ...string) bool {
	if o.logged != 0 && now >= o.logged && now-o.logged < int64(logPeriod) {
		o.suppressed++
		return false
	}
	if o.suppressed > 0 {
		text = append(text, "; ", strconv.Itoa(o.suppressed), " more since the last such line")
	}
	o.logged, o.suppressed = now, 0
	p.host.Log(level, "oncegate: "+strings.Join(text, ""))
	return true
}

// loggable makes text from outside fit for a log line.
func loggable(text string) string {
	b := []byte(text[:min(len(text), maxQuoted)])
	for i, c := range b {
		if c < 0x20 || c > 0x7e || c == '"' {
			b[i] = '?'
		}
	}
	return string(b)
}

// logFailure logs a failed call. Of several within logPeriod it logs only the first.
func (l *ledger) logFailure(s *shard, c *call, r *reply) {
	now := l.p.host.Now()
	if r.shardError != "" {
		l.p.metrics.count(l.p.metrics.wrongShard)
		l.p.logLimited(&s.shardErrorLog, now, LevelError, "cluster \"", s.name, "\" refused a call (", c.kind.String(), ", ", string(r.shardError), "): ", r.why,
			"; manager.shards, the proxy's clusters and the managers' --shard and --shards must agree, and one ledger must answer on each cluster")
		return
	}
	if l.p.logLimited(&s.failureLog, now, LevelWarn, "a call to cluster \"", s.name, "\" (", c.kind.String(), ") failed: ", r.why) {
		s.failureLogged = r.refusal == ""
	}
}

// logRecovery logs that calls succeed again.
func (l *ledger) logRecovery(s *shard) {
	s.failureLogged = false
	l.p.host.Log(LevelInfo, "oncegate: cluster \""+s.name+"\" answers again")
}
