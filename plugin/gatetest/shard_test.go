package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// shards are managers, each with its own ledger, by the names of their clusters.
type shards struct {
	*testing.T
	guest    hostsim.Source
	clock    *hostsim.VirtualClock
	managers map[string]*Manager
	scope    string // of requests that name none
	workers  int    // of each gate
}

func newShards(t *testing.T, guest hostsim.Source, names ...string) *shards {
	t.Helper()
	s := &shards{T: t, guest: guest, clock: newClock(), managers: map[string]*Manager{}}
	r := NewRig(t, guest, Options{})
	x := r.Send(Request{Key: "k"})
	x.Answer(200, "")
	x.Response()
	s.scope = r.Manager.Calls()[0].Scope
	for _, name := range names {
		s.managers[name] = NewManager(s.clock)
		s.managers[name].BecomeShard(name)
	}
	return s
}

// gate returns a proxy with clusters for all managers. fields are the fields of manager; more are other fields.
func (s *shards) gate(fields string, more ...string) *Rig {
	s.Helper()
	clusters := map[string]hostsim.Cluster{}
	for name, m := range s.managers {
		clusters[name] = m
	}
	config := strings.Join(append([]string{`"manager":{` + fields + `}`}, more...), ",")
	return NewRig(s, s.guest, Options{
		Config: "{" + config + "}", Clock: s.clock, NoCluster: true, Clusters: clusters, Workers: s.workers, IdleTimeout: 366 * 24 * time.Hour,
	})
}

// list writes a field of the configuration.
func list(field string, names ...string) string {
	return `"` + field + `":["` + strings.Join(names, `","`) + `"]`
}

// key returns the n-th key, from 0, that owner has by the list names. more, if given, is a second list and its owner.
func (s *shards) key(n int, names []string, owner string, more ...any) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		fits := names[api.Owner(names, s.scope, key)] == owner
		if len(more) > 0 {
			other := more[0].([]string)
			fits = fits && other[api.Owner(other, s.scope, key)] == more[1]
		}
		if fits {
			if n == 0 {
				return key
			}
			n--
		}
	}
}

// pays sends a request, which must run now.
func pays(t *testing.T, r *Rig, key string) {
	t.Helper()
	x := r.Send(Request{Key: key})
	x.Answer(200, key)
	want(t, "answer", x.Response().Body, key)
	x.Over()
}

// refused sends a request, which must be refused for now and must not run.
func refused(t *testing.T, r *Rig, key string) {
	t.Helper()
	wantRefused(t, r.Send(Request{Key: key}))
}

func wantRefused(t *testing.T, x *Exchange) {
	t.Helper()
	p := x.Response()
	want(t, "status", p.Status, "503")
	want(t, "code", p.Problem(t), "manager-unavailable")
	if p.Header("retry-after") == "" {
		t.Error("no Retry-After")
	}
	want(t, "upstream called", x.Upstream.Begun(), false)
	x.Over()
}

var three = []string{"one", "two", "three"}

// Each key has one owner. It gets all calls about the key, with its own name in them.
func TestShardsHaveTheirKeys(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		r := s.gate(list("shards", three...))
		for i := range 30 {
			pays(t, r, fmt.Sprint("k", i))
		}
		r.Settle()
		for name, m := range s.managers {
			for _, c := range m.Calls() {
				want(t, "owner of "+c.Key, three[api.Owner(three, c.Scope, c.Key)], name)
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
		pays(t, r, "k")
		for _, c := range r.Manager.Calls() {
			want(t, "shard", c.Shard, "")
		}
	})
}

// While a shard is down, the gate refuses its keys. No other shard takes them, and all others continue.
func TestShardThatIsDown(t *testing.T) {
	for name, f := range map[string]Fault{
		"away": {}, "reset": {Close: 14}, "broken": {Close: 13}, "foreign": {Close: 12}, "credentials": {Close: 16},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				s := newShards(t, guest, three...)
				r := s.gate(list("shards", three...))
				down := s.managers["two"]
				for _, path := range []string{api.PathReserve, api.PathCommit, api.PathRelease} {
					down.FailAll(path, f)
				}
				if f.Close == 0 {
					down.GoAway()
				}
				for i := range 5 {
					x := r.Send(Request{Key: s.key(i, three, "two")})
					r.Settle()
					r.Clock.Advance(7 * time.Second) // the gate tries for manager.timeout_ms
					wantRefused(t, x)
					pays(t, r, s.key(i, three, "one"))
					pays(t, r, s.key(i, three, "three"))
				}
				for i := range 5 {
					for name, m := range s.managers {
						state, _ := m.State(s.key(i, three, "two"))
						want(t, "at "+name, state, api.StateNone)
					}
				}
				for _, path := range []string{api.PathReserve, api.PathCommit, api.PathRelease} {
					down.FailAll(path, Fault{})
				}
				down.ComeBack()
				r.Clock.Advance(10 * time.Second)
				for i := range 5 {
					pays(t, r, s.key(i, three, "two"))
				}
			})
		})
	}
}

// A shard that hangs delays only its own keys, however many there are.
func TestShardThatHangs(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		r := s.gate(list("shards", three...), `"pending_wait_timeout":5`)
		two := s.managers["two"]
		for _, path := range []string{api.PathReserve, api.PathRelease} {
			two.FailAll(path, Fault{Lose: true})
		}
		var hanging []*Exchange
		for i := range 300 { // more calls than may be under way
			hanging = append(hanging, r.Send(Request{Key: s.key(i, three, "two")}))
		}
		r.Settle()
		for i := range 20 {
			pays(t, r, s.key(i, three, "one"))
		}
		for _, x := range hanging {
			want(t, "answered", x.Client.Begun(), false)
		}
		for range 30 {
			r.Clock.Advance(time.Second)
		}
		for _, x := range hanging {
			want(t, "status", x.Response().Status, "503")
			want(t, "upstream called", x.Upstream.Begun(), false)
		}
	})
}

// A manager that is another shard runs nothing, also where the gate may do without a ledger.
func TestWrongShardRunsNothing(t *testing.T) {
	for _, mode := range []string{"closed", "open"} {
		t.Run(mode, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				s := newShards(t, guest, three...)
				r := s.gate(list("shards", three...), `"failure_mode":"`+mode+`"`)
				// A cluster leads to the manager of another shard.
				s.managers["two"].BecomeShard("one")
				for i := range 5 {
					refused(t, r, s.key(i, three, "two"))
					pays(t, r, s.key(i, three, "three"))
				}
				wantLog(t, r, `oncegate: cluster \"two\" refused a call (reserve, wrong-shard)`, 1)
				want(t, "counted", r.Metric("oncegate_gate_call_wrong_shard_total"), 5)
				want(t, "unprotected", r.Metric("oncegate_gate_requests_bypass_total"), 0)
				s.managers["two"].BecomeShard("two")
				pays(t, r, s.key(0, three, "two"))
			})
		})
	}
}

// An outcome waits until the cluster leads to the right manager again.
func TestOutcomeWaitsForTheRightShard(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		r := s.gate(list("shards", three...))
		key := s.key(0, three, "two")
		x := r.Send(Request{Key: key})
		x.Upstream.AwaitHeaders(t)
		s.managers["two"].BecomeShard("one")
		x.Answer(201, "done")
		want(t, "answer", x.Response().Status, "201")
		s.managers["two"].BecomeShard("two")
		r.Clock.Advance(10 * time.Second)
		state, result := s.managers["two"].State(key)
		want(t, "state", state, api.StateCommitted)
		want(t, "body", string(result.Body), "done")
	})
}

// The shards are one and two, and three is added. Three then owns a key that one had.
var (
	before = []string{"one", "two"}
	during = list("shards", three...) + "," + list("previous_shards", before...)
)

// handOver gives the new list to the managers that had the old one.
func (s *shards) handOver() {
	for name, m := range s.managers {
		m.BecomeShard(name, three...)
	}
}

// As long as a key has not moved, its previous owner keeps it to its end.
func TestPreviousOwnerKeepsItsKeys(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		r := s.gate(during)
		for i := range 3 {
			key := s.key(i, before, "one", three, "three")
			pays(t, r, key)
			state, _ := s.managers["one"].State(key)
			want(t, "state", state, api.StateCommitted)
		}
		want(t, "calls to the new one", len(s.managers["three"].Calls()), 0)
		want(t, "moved", r.Metric("oncegate_gate_call_moved_total"), 0)
	})
}

// If the previous owner has nothing of a key, the new owner gets it with all its calls.
func TestMovedKeyGetsItsNewOwner(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		s.handOver()
		r := s.gate(during, `"pending_ttl_seconds":9`)
		key := s.key(0, before, "one", three, "three")
		x := r.Send(Request{Key: key})
		x.Upstream.AwaitHeaders(t)
		y := r.Send(Request{Key: key})
		r.Settle()
		r.Clock.Advance(4 * time.Second)
		want(t, "renewals", s.managers["three"].Count(api.PathRenew) > 0, true)
		x.Answer(201, "done")
		want(t, "answer", x.Response().Body, "done")
		want(t, "duplicate", y.Response().Header("idempotent-replayed"), "true")
		r.Settle()
		want(t, "calls to the previous owner", len(s.managers["one"].Calls()), 1)
		state, _ := s.managers["three"].State(key)
		want(t, "state", state, api.StateCommitted)
		want(t, "moved", r.Metric("oncegate_gate_call_moved_total"), 1)
		want(t, "repeated", r.Metric("oncegate_gate_call_retries_total"), 0)
		// A key that stays where it was costs one reserve.
		key = s.key(0, before, "one", three, "one")
		pays(t, r, key)
		want(t, "moved", r.Metric("oncegate_gate_call_moved_total"), 1)
	})
}

// A shard that is removed keeps its keys until they have expired.
func TestShardGoesAway(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		old := s.gate(list("shards", three...))
		key := s.key(0, three, "three", before, "one")
		pays(t, old, key)
		for name, m := range s.managers {
			m.BecomeShard(name, before...)
		}
		r := s.gate(list("shards", before...) + "," + list("previous_shards", three...))
		p := r.Send(Request{Key: key}).Response()
		want(t, "replayed", p.Body+p.Header("idempotent-replayed"), key+"true")
		key = s.key(1, three, "three", before, "one")
		pays(t, r, key)
		state, _ := s.managers["one"].State(key)
		want(t, "state", state, api.StateCommitted)
		s.managers["three"].FailAll(api.PathReserve, Fault{Close: 16})
		refused(t, r, s.key(2, three, "three", before, "one"))
		wantLog(t, r, `a call to cluster \"three\"`, 1)
	})
}

// If a client leaves between the two reserves, nothing is left over.
func TestClientLeavesWhileTheKeyMoves(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		s.handOver()
		r := s.gate(during)
		s.managers["one"].FailNext(api.PathReserve, Fault{Hold: true})
		key := s.key(0, before, "one", three, "three")
		x := r.Send(Request{Key: key})
		r.Settle()
		x.Leave()
		s.managers["one"].Release()
		r.Settle()
		want(t, "calls to the new one", len(s.managers["three"].Calls()), 0)
		pays(t, r, key)
	})
}

// If the previous owner knows the key, its answer counts.
func TestPreviousOwnerAnswers(t *testing.T) {
	type past struct {
		name   string
		finish func(x *Exchange)
		status string
		code   string
	}
	for _, c := range []past{
		{"committed", func(x *Exchange) { x.Answer(201, "done") }, "201", ""},
		{"rejected", func(x *Exchange) { x.Answer(422, "no") }, "422", ""},
		{"unknown", func(x *Exchange) { x.Leave() }, "409", "outcome-unknown"},
		{"pending", nil, "409", "request-pending"},
		{"another request", func(x *Exchange) { x.Answer(201, "done") }, "422", "fingerprint-mismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				s := newShards(t, guest, three...)
				old := s.gate(list("shards", before...))
				key := s.key(0, before, "one", three, "three")
				x := old.Send(Request{Key: key})
				x.Upstream.AwaitHeaders(t)
				if c.finish != nil {
					c.finish(x)
					x.Over()
					old.Settle()
				}
				s.handOver()
				r := s.gate(during, `"wait_for_pending":false`)
				q := Request{Key: key}
				if c.code == "fingerprint-mismatch" {
					q.Headers = []string{"content-type: text/other"}
				}
				y := r.Send(q)
				p := y.Response()
				want(t, "status", p.Status, c.status)
				if c.code != "" {
					want(t, "code", p.Problem(t), c.code)
				}
				want(t, "upstream called", y.Upstream.Begun(), false)
				want(t, "calls to the new one", len(s.managers["three"].Calls()), 0)
			})
		})
	}
}

// A duplicate waits at the first request's owner. When that request gives the key back, the gate asks the new owner.
func TestWaitsAtThePreviousOwner(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		old := s.gate(list("shards", before...))
		key, other := s.key(0, before, "one", three, "three"), s.key(1, before, "one", three, "three")
		x, givesBack := old.Send(Request{Key: key}), old.Send(Request{Key: other})
		x.Upstream.AwaitHeaders(t)
		givesBack.Upstream.AwaitHeaders(t)
		s.handOver()
		r := s.gate(during)
		y, runs := r.Send(Request{Key: key}), r.Send(Request{Key: other})
		r.Settle()
		want(t, "answered", y.Client.Begun() || runs.Client.Begun(), false)
		x.Answer(201, "done")
		want(t, "answer", y.Response().Body, "done")
		givesBack.Answer(503, "later", "retry-after: 1")
		runs.Answer(201, "run")
		want(t, "answer", runs.Response().Body, "run")
		r.Settle()
		state, _ := s.managers["three"].State(other)
		want(t, "state", state, api.StateCommitted)
	})
}

// While the previous owner is down, it is unknown whether a request with the key has run.
func TestPreviousOwnerIsDown(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		s.handOver()
		r := s.gate(during)
		s.managers["one"].FailAll(api.PathReserve, Fault{Close: 16})
		refused(t, r, s.key(0, before, "one", three, "three"))
		pays(t, r, s.key(0, before, "two", three, "three"))
		want(t, "calls to the new one", s.managers["three"].Count(api.PathReserve), 1)
	})
}

// If the answer of the previous owner to a reserve gets lost, the gate releases the key there.
func TestReserveLostAtThePreviousOwner(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		s := newShards(t, guest, three...)
		r := s.gate(during)
		one := s.managers["one"]
		pays(t, r, s.key(1, before, "one", three, "three"))
		one.FailNext(api.PathReserve, Fault{Close: 16, AfterIt: true})
		key := s.key(0, before, "one", three, "three")
		refused(t, r, key)
		r.Settle()
		state, _ := one.State(key)
		want(t, "state", state, api.StateNone)
		s.handOver()
		pays(t, r, key)
		want(t, "releases at the new one", s.managers["three"].Count(api.PathRelease), 0)
		state, _ = s.managers["three"].State(key)
		want(t, "state", state, api.StateCommitted)
	})
}

// A gate with the old list learns that a key has moved, and does not run a request whose key is elsewhere.
func TestGateWithAnOldList(t *testing.T) {
	for _, mode := range []string{"closed", "open"} {
		t.Run(mode, func(t *testing.T) {
			each(t, func(t *testing.T, guest hostsim.Source) {
				s := newShards(t, guest, three...)
				s.handOver()
				old := s.gate(list("shards", before...), `"failure_mode":"`+mode+`"`)
				refused(t, old, s.key(0, before, "one", three, "three"))
				wantLog(t, old, `oncegate: cluster \"one\" refused a call (reserve, key-moved): another shard of the manager's list owns the key; manager.shards`, 1)
				want(t, "counted", old.Metric("oncegate_gate_call_wrong_shard_total"), 1)
				pays(t, old, s.key(0, before, "one", three, "one"))
				wantLog(t, old, "answers again", 0)
			})
		})
	}
}
