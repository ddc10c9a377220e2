package gatetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// shards are managers with a ledger each, by the names of their clusters.
type shards map[string]*Manager

// newShards returns a rig whose filter has the managers of both lists, and the managers.
func newShards(t *testing.T, guest hostsim.Source, fields string, names ...string) (*Rig, shards) {
	t.Helper()
	clock := newClock()
	all, clusters := shards{}, map[string]hostsim.Cluster{}
	for _, name := range names {
		all[name] = NewManager(clock)
		clusters[name] = all[name]
	}
	return NewRig(t, guest, Options{
		Config: `{"manager":{` + fields + `}}`, Clock: clock, NoCluster: true, Clusters: clusters,
	}), all
}

// list writes a field of the configuration.
func list(field string, names ...string) string {
	return `"` + field + `":["` + strings.Join(names, `","`) + `"]`
}

// Each key has one owner, which gets all calls about it, with its name.
func TestShardsHaveTheirKeys(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		names := []string{"one", "two", "three"}
		r, managers := newShards(t, guest, list("shards", names...), names...)
		for i := range 30 {
			key := fmt.Sprint("k", i)
			x := r.Send(Request{Key: key})
			x.Answer(200, key)
			x.Response()
			x.Over()
		}
		r.Settle()
		for name, m := range managers {
			for _, c := range m.Calls() {
				want(t, "owner of "+c.Key, names[api.Owner(names, c.Scope, c.Key)], name)
				want(t, "shard", c.Shard, name)
			}
			if n := m.Count(api.PathReserve); n < 3 || n != m.Count(api.PathCommit) {
				t.Errorf("%s got %d reserves and %d commits", name, n, m.Count(api.PathCommit))
			}
		}
	})
}

// A cluster is no shard's name unless the configuration says so.
func TestOneClusterHasNoShard(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "done")
		x.Response()
		for _, c := range r.Manager.Calls() {
			want(t, "shard", c.Shard, "")
		}
	})
}
