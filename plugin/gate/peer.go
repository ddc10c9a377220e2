package gate

import (
	"strings"
	"time"
)

// peer is what is known of the manager of one shard. What one of the release before does not know is
// asked again now and then, for a version is not always told by its name.
type peer struct {
	version string
	plain   bool // it does not know of unknown outcomes
	single  bool // it does not know of batches, or nobody on the way does
	since   int64
	told    uint8 // what the log says of this version: tellPlain, tellSingle

	never  bool // it gets no batches
	flying int  // callouts under way, without those that wait for a pending entry

	awaited *call // the first call of the callout for whose answer others wait; nil: none
	sent    int   // the ledger's turn in which it was sent
}

const (
	elderPeriod = int64(time.Minute)

	tellPlain  = 1
	tellSingle = 2
)

// peer returns what is known of a shard's manager.
func (l *ledger) peer(shard int) *peer {
	m := &l.shards[shard].peer
	if (m.plain || m.single) && l.p.host.Now()-m.since > elderPeriod {
		m.plain, m.single = false, false
	}
	return m
}

// heard notes the version that a manager told. Another one, or one that was upgraded, may know more.
func (l *ledger) heard(shard int, version string) {
	if m := &l.shards[shard].peer; (m.plain || m.single) && m.version != "" && m.version != version {
		m.version, m.plain, m.single, m.told = "", false, false, 0
	}
}

// isPlain notes that a manager took a reserve only after it was sent as the release before did.
func (l *ledger) isPlain(c *call, version string) {
	m := &l.shards[c.shard].peer
	m.plain = true
	l.elder(m, c.sent, version, tellPlain, "manager "+version+" does not know of unknown outcomes; upgrade managers before gates: until then a key is free when its reservation runs out")
}

// isSingle notes that a batch met somebody who does not know what that is; version is empty where it
// was not the manager.
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
