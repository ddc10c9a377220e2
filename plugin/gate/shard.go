package gate

import "github.com/oncegate/oncegate/manager/api"

// Which ledger keeps a key, where there are several.

// owner returns the position of the key's owner in manager.shards.
func (p *Plugin) owner(a *attempt) int {
	return api.Owner(p.config.Manager.Shards, a.scope.String(), a.key)
}

// headersTo returns the headers of a call to a shard, trace at their end. They are valid until the next
// one is asked for.
func (l *ledger) headersTo(shard int, path string, trace [][2]string) [][2]string {
	m := &l.p.config.Manager
	h := append(l.headers[:0],
		[2]string{headerMethod, "POST"},
		[2]string{headerPath, path},
		[2]string{headerAuthority, m.Authority},
		[2]string{headerContentType, api.ContentTypeRaw},
		[2]string{"accept", api.ContentTypeRaw})
	if l.authorization != "" {
		h = append(h, [2]string{"authorization", l.authorization})
	}
	if m.Named {
		h = append(h, [2]string{api.HeaderShard, m.Shards[shard]})
	}
	l.headers = append(h, trace...)
	return l.headers
}
