package gatetest

import "github.com/oncegate/oncegate/manager/api"

// identity is what a manager knows about shards.
type identity struct {
	name string   // its own; empty: it takes any
	list []string // of all shards; empty: it keeps all keys
}

// Be gives the manager a name and the list of all shards, as --shard and --shards do.
func (m *Manager) Be(name string, list ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.identity = identity{name, list}
}

// wrong tells whether a caller means another manager.
func (m *Manager) wrong(shard string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.identity.name != "" && shard != "" && shard != m.identity.name
}

// keeps tells whether a key of which nothing is known is this shard's.
func (i *identity) keeps(scope, key string) bool {
	return len(i.list) == 0 || i.list[api.Owner(i.list, scope, key)] == i.name
}
