package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// peer is what the gate knows about the manager of one shard.
type peer struct {
	noBatches  int64      // when a proxy on the way to the manager refused a batch; 0: none does. After singlePeriod the gate tries again
	batchesLog limitedLog // about that
	batchesOff bool       // the configuration says that the manager gets no batches
	inFlight   int        // callouts under way, without those that the manager may hold

	awaited *call // the first call of the callout whose answer other calls wait for; nil: none
	sent    int   // the ledger's turn in which awaited was sent
}

// isManagers reports whether the callback's answer is from the manager. Only those answers have the manager's own header. A
// proxy on the way makes all others. It also records which ledger answers.
func (l *ledger) isManagers(shard int, status string, now int64) bool {
	host := l.p.host
	if _, ok := host.CallHeader(api.HeaderManager); !ok {
		return false
	}
	mark, ok := host.CallHeader(api.HeaderLedger)
	switch {
	case !ok:
	case status == "421": // the manager is another one than the call means, and says nothing about that one
		l.noteRefusal(&l.shards[shard], mark, now)
	default:
		l.noteMark(&l.shards[shard], mark, now)
	}
	return true
}

// singlePeriod is how long the gate sends no batches after a proxy on the way to the manager refused one.
const singlePeriod = int64(time.Minute)

// peer returns what the gate knows about a shard's manager now.
func (l *ledger) peer(shard int) *peer {
	m := &l.shards[shard].peer
	if m.noBatches != 0 && l.p.host.Now()-m.noBatches > singlePeriod {
		m.noBatches = 0
	}
	return m
}

// singleCalls reports whether each call to this manager goes by itself.
func (m *peer) singleCalls() bool { return m.batchesOff || m.noBatches != 0 }

// noteNoBatches stops batches for a while: a proxy on the way to the manager of a call refuses them.
func (l *ledger) noteNoBatches(c *call) {
	m := &l.shards[c.shard].peer
	m.noBatches = c.sent
	if more, due := m.batchesLog.due(c.sent); due {
		l.p.host.Log(LevelWarn, `oncegate: a proxy on the way to the manager refuses batches; until it passes them on, calls are sent one at a time, which costs processor time; to send none, set "manager": {"batch": "never"}`+more)
	}
}
