package gate

import (
	"strings"
	"time"
)

// peer is what the gate knows about the manager of one shard. After olderPeriod it forgets noUnknown
// and noBatches and tries again, because an upgraded manager may have the same version string.
type peer struct {
	version   string
	noUnknown bool  // the manager does not know unknown outcomes
	noBatches bool  // the manager, or a proxy on the way to it, does not know batches
	since     int64 // when noUnknown or noBatches was set last
	logged    uint8 // what the log says of this version: loggedNoUnknown, loggedNoBatches

	batchesOff bool // the configuration says that it gets no batches
	inFlight   int  // callouts under way, without those that the manager may hold

	awaited *call // the first call of the callout whose answer other calls wait for; nil: none
	sent    int   // the ledger's turn in which awaited was sent
}

const (
	// olderPeriod is how long the gate treats a manager as an older one before it tries again.
	olderPeriod = int64(time.Minute)

	loggedNoUnknown = 1
	loggedNoBatches = 2
)

// peer returns what the gate knows about a shard's manager.
func (l *ledger) peer(shard int) *peer {
	m := &l.shards[shard].peer
	if (m.noUnknown || m.noBatches) && l.p.host.Now()-m.since > olderPeriod {
		m.noUnknown, m.noBatches = false, false
	}
	return m
}

// noteVersion notes the version in a manager's answer. A manager of another version may know more.
func (l *ledger) noteVersion(shard int, version string) {
	if m := &l.shards[shard].peer; (m.noUnknown || m.noBatches) && m.version != "" && m.version != version {
		m.version, m.noUnknown, m.noBatches, m.logged = "", false, false, 0
	}
}

// noteNoUnknown notes that a manager accepted a reserve only in the previous release's form.
func (l *ledger) noteNoUnknown(c *call, version string) {
	m := &l.shards[c.shard].peer
	m.noUnknown = true
	l.noteOlder(m, c.sent, version, loggedNoUnknown, "manager "+version+" does not support unknown outcomes; upgrade managers before gates: until then a key is free when its reservation runs out")
}

// noteNoBatches notes that a manager, or a proxy on the way to it, does not support batches. version is
// empty if the answer did not come from the manager.
func (l *ledger) noteNoBatches(c *call, version string) {
	m := &l.shards[c.shard].peer
	m.noBatches = true
	who := "a proxy on the way to the manager"
	if version != "" {
		who = "manager " + version
	}
	l.noteOlder(m, c.sent, version, loggedNoBatches, who+" does not support batches; upgrade managers before gates: until then calls are sent one at a time, which costs processor time")
}

// noteOlder notes when a manager was found to be an older one. It logs text once for each version.
func (l *ledger) noteOlder(m *peer, now int64, version string, tell uint8, text string) {
	m.since = now
	if m.version != version {
		m.version = strings.Clone(version)
	}
	if m.logged&tell == 0 {
		m.logged |= tell
		l.p.host.Log(LevelWarn, "oncegate: "+text)
	}
}
