package gate

import (
	"strconv"

	"time"
)

// What the log says about calls that the manager did not answer.

const (
	// logPeriod is the least time between two log lines of the same kind, even if calls
	// succeed in between.
	logPeriod = 10 * time.Second
	// maxQuoted bounds the bytes of of text from outside that a log line quotes.
	maxQuoted = 160
)

// trouble counts the log lines about lost outcomes, and about lost reservations, of all shards.
type trouble struct{ losses, alarms limitedLog }

// limitedLog limits one kind of log line to one line per logPeriod.
type limitedLog struct {
	logged     int64 // when the last line was written; 0: never
	suppressed int   // lines left out since then
}

// due reports whether to write a line now. more is the end of that line, with the number of lines
// that were left out.
func (o *limitedLog) due(now int64) (more string, due bool) {
	if o.logged != 0 && now >= o.logged && now-o.logged < int64(logPeriod) {
		o.suppressed++
		return "", false
	}
	if o.suppressed > 0 {
		more = "; " + strconv.Itoa(o.suppressed) + " more since the last such line"
	}
	o.logged, o.suppressed = now, 0
	return more, true
}

// refusals say why the host made no call.
var refusals = [...]string{
	CallRefused:   "refused at once: the proxy knows no such cluster, no host of it is healthy, or a circuit breaker is full",
	CallNoCluster: "the proxy knows no such cluster; manager.cluster must name one that it has",
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
		if more, due := s.shardErrorLog.due(now); due {
			l.p.host.Log(LevelError, "oncegate: cluster \""+s.name+"\" refused a call ("+c.kind.String()+", "+string(r.shardError)+"): "+r.why+
				"; manager.shards, the proxy's clusters and the managers' --shard and --shards must agree, and one ledger must answer on each cluster"+more)
		}
		return
	}
	if more, due := s.failureLog.due(now); due {
		s.failureLogged = r.closed == ""
		l.p.host.Log(LevelWarn, "oncegate: a call to cluster \""+s.name+"\" ("+c.kind.String()+") failed: "+r.why+more)
	}
}

// logRecovery logs that calls succeed again, if the log has a failure.
func (l *ledger) logRecovery(s *shard) {
	if s.failureLogged {
		s.failureLogged = false
		l.p.host.Log(LevelInfo, "oncegate: cluster \""+s.name+"\" answers again")
	}
}
