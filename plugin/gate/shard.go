package gate

import (
	"slices"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
)

// Which of several ledgers keeps a key.

// The manager decides where a key is, not the gate: while shards are added or removed, gates and managers
// may have different lists. With manager.previous_shards the gate asks the previous owner of a key first, and
// the new owner only after key-moved. All further calls about the key go to the ledger that reserved it.

// shard is what this VM knows about one ledger.
type shard struct {
	name  string
	mark  mark
	conns [2]conn // for small messages, for large ones

	repeat    []*call // calls to send again when they are due
	repeating int     // repetitions under way
	checkDue  bool    // some calls in repeat may be due
	crowded   bool    // some calls were due when no more could be under way
	probe     bool    // one call of repeat goes before it is due
	down      bool    // the last call that ended got no answer
	flushed   int64   // time of the last flush

	// Lines of the log about failed calls, about refused calls, and about another ledger.
	failureLog, shardErrorLog, ledgerLog limitedLog
	failureLogged                        bool // the log has a failure, but not yet its end
}

// ledgers returns the shards of both lists, each once; those of the present list come first.
func ledgers(m *config.Manager) []shard {
	var all []shard
	for _, name := range append(slices.Clone(m.Shards), m.Previous...) {
		if !slices.ContainsFunc(all, func(s shard) bool { return s.name == name }) {
			n := len(all)
			all = append(all, shard{name: name, conns: [2]conn{{shard: n}, {shard: n, large: true}}})
		}
	}
	return all
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

// classifyShardError classifies a refusal that concerns shards, which says nothing about the key itself. If there is no other
// owner to ask, gates and managers disagree about the shards, and the log gets an alarm.
func (l *ledger) classifyShardError(c *call, code api.Code) (r reply, ok bool) {
	switch {
	case code == api.CodeKeyMoved && c.kind == callReserve && c.shard != l.owner(&c.attempt):
		return reply{kind: replyMoved}, true
	case code == api.CodeKeyMoved:
		return reply{kind: replyUnavailable, shardError: code, why: "another shard of the manager's list owns the key"}, true
	case code == api.CodeWrongShard:
		return reply{kind: replyUnavailable, shardError: code, why: "the manager there is another shard"}, true
	case code == api.CodeWrongLedger:
		return reply{kind: replyUnavailable, shardError: code, why: "the manager there has another ledger than the one that answered before"}, true
	}
	return r, false
}
