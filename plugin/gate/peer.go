package gate

import (
	"strings"
	"time"
)

// peer is what the gate knows about the manager of one shard. It forgets plain and single after
// elderPeriod and tries again, because an upgraded manager need not have another version string.
type peer struct {
	version string
	plain   bool  // the manager does not know unknown outcomes
	single  bool  // the manager, or a proxy on the way to it, does not know batches
	since   int64 // when plain or single was set last
	told    uint8 // what the log says of this version: tellPlain, tellSingle

	never  bool // the configuration says that it gets no batches
	flying int  // callouts under way, without those that the manager may hold

	awaited *call // the first call of the callout whose answer other calls wait for; nil: none
	sent    int   // the ledger's turn in which awaited was sent
}

const (
	// elderPeriod is how long the gate treats a manager as an older one before it tries again.
	elderPeriod = int64(time.Minute)

	tellPlain  = 1
	tellSingle = 2
)

// peer returns what the gate knows about a shard's manager.
func (l *ledger) peer(shard int) *peer {
	m := &l.shards[shard].peer
	if (m.plain || m.single) && l.p.host.Now()-m.since > elderPeriod {
		m.plain, m.single = false, false
	}
	return m
}

// heard notes the version in a manager's answer. A manager of another version may know more.
func (l *ledger) heard(shard int, version string) {
	if m := &l.shards[shard].peer; (m.plain || m.single) && m.version != "" && m.version != version {
		m.version, m.plain, m.single, m.told = "", false, false, 0
	}
}

// isPlain notes that a manager accepted a reserve only in the previous release's form.
func (l *ledger) isPlain(c *call, version string) {
	m := &l.shards[c.shard].peer
	m.plain = true
	l.elder(m, c.sent, version, tellPlain, "manager "+version+" does not know of unknown outcomes; upgrade managers before gates: until then a key is free when its reservation runs out")
}

// isSingle notes that a manager, or a proxy on the way to it, does not know batches. version is empty if
// the answer did not come from the manager.
func (l *ledger) isSingle(c *call, version string) {
	m := &l.shards[c.shard].peer
	m.single = true
	who := "the way to the manager"
	if version != "" {
		who = "manager " + version
	}
	l.elder(m, c.sent, version, tellSingle, who+" does not know of batches; upgrade managers before gates: until then each call goes by itself, which costs processor time")
}

func (l *ledger) elder(m *peer, now int64, version string, tell uint8, text string) {
	m.since = now
	if m.version != version {
		m.version = strings.Clone(version)
	}
	if m.told&tell == 0 {
		m.told |= tell
		l.p.host.Log(LevelWarn, "oncegate: "+text)
	}
}
