package gate

import (
	"slices"
	"time"

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
