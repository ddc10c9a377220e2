package gate

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// Which of several ledgers keeps a key.

// The manager decides where a key is, not the gate: while shards are added or removed, gates and managers may have
// different lists. With manager.previous_shards the gate asks the previous owner of a key first, and the new owner only
// after key-moved. All further calls about the key go to the ledger that reserved it.

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

// owner returns the position of the key's owner.
func (l *ledger) owner(a *attempt) int {
	return api.Owner(l.p.config.Manager.Shards, a.scope.String(), a.key)
}

// firstOwner returns the position of the shard that the gate asks first about the key.
func (l *ledger) firstOwner(a *attempt) int {
	previous := l.p.config.Manager.Previous
	if len(previous) == 0 {
		return l.owner(a)
	}
	name := previous[api.Owner(previous, a.scope.String(), a.key)]
	return slices.IndexFunc(l.shards, func(s shard) bool { return s.name == name })
}

// What the gate remembers of each ledger (api.Mark). It says so with each call, because a ledger that lost its data, or was
// put back to an earlier state, cannot notice that by itself. Such a ledger then takes no new keys for a while. The VMs of
// a proxy share what they remember, so that a new VM knows it, too.

// markLasts is for how long the gate remembers a ledger that has not answered: no shorter than keys are remembered. After
// that nothing is lost with the ledger, and another one may replace it.
const markLasts = int64(24 * time.Hour)

// markPrefix is that of the keys in shared data that have marks, by cluster.
const markPrefix = cachePrefix + ".l."

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
	if len(text) > api.MaxMarkBytes || len(text) < api.MarkIDBytes {
		return
	}
	m := &s.mark
	m.at, m.shared = now, true
	before := ledgerID(m.view())
	if before == ledgerID(text) {
		m.text = append(m.text[:0], text...)
		return
	}
	was := string(m.text)
	m.text = append(m.text[:0], text...)
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

// openRefusals say why the host made no call.
var openRefusals = [...]string{
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
		l.p.logLimited(&s.shardErrorLog, now, LevelError, "cluster \"", s.name, "\" refused a call (", c.kind.String(), ", ", string(r.shardError), "): ", r.why,
			"; manager.shards, the proxy's clusters and the managers' --shard and --shards must agree, and one ledger must answer on each cluster")
		return
	}
	if l.p.logLimited(&s.failureLog, now, LevelWarn, "a call to cluster \"", s.name, "\" (", c.kind.String(), ") failed: ", r.why) {
		s.failureLogged = r.refusal == ""
	}
}

// logRecovery logs that calls succeed again, if the log has a failure.
func (l *ledger) logRecovery(s *shard) {
	if s.failureLogged {
		s.failureLogged = false
		l.p.host.Log(LevelInfo, "oncegate: cluster \""+s.name+"\" answers again")
	}
}
