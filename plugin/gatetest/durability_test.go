package gatetest

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// The manager is asked for the route's durability. What it cannot give, and a home that is away, are never a reason to
// forward the request unprotected.
func TestDurabilityIsAskedFor(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, code := range map[string]api.Code{
			"refused": api.CodeDurability, "wrong home": api.CodeWrongHome, "away": api.CodeHomeUnavailable, "silent": api.CodeHomeUnanswered,
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{Config: `{"match":[{"durability":"global","failure_mode":"open"}]}`})
				if code != api.CodeDurability { // which the manager answers by itself: it has no origin
					status := map[api.Code]int{api.CodeWrongHome: 421}[code]
					if status == 0 {
						status = 503
					}
					r.Manager.FailNext(api.PathReserve, Fault{Status: status, Code: code, RetryAfter: 7})
				}
				x := r.Send(Request{Key: "k"})
				want(t, "status", x.Response().Status, "503")
				want(t, "idempotency-status", x.Response().Header("idempotency-status"), string(code))
				want(t, "durability", r.Manager.Calls()[0].Durability, api.DurabilityGlobal)
				r.Clock.Advance(10 * time.Second)
				// Only the home that did not answer may have reserved the key.
				releases := map[api.Code]int{api.CodeHomeUnanswered: 2}[code]
				want(t, "releases", r.Manager.Count(api.PathRelease), releases)
				for _, c := range r.Manager.Calls() {
					want(t, "durability of "+c.Path, c.Durability, api.DurabilityGlobal)
				}
			})
		}
	})
}

// Only the reserve needs to say "region". Managers that know the field of a reserve only answer 400 to other calls with it.
func TestRegionIsAskedOnce(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"match":[{"durability":"region"}],"pending_ttl_seconds":30}`})
		reserved := func() { // the manager cannot give it
			r.Manager.FailNext(api.PathReserve, Fault{Status: 201, Garbage: api.AppendRawReply(nil, api.StateReserved, 30*time.Second, nil)})
		}
		reserved()
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		r.Clock.Advance(20 * time.Second)
		x.Answer(201, "done")
		want(t, "body", x.Response().Body, "done")
		reserved()
		z := r.Send(Request{Key: "m"})
		z.Upstream.AwaitHeaders(t)
		z.Leave()
		r.Clock.Advance(time.Second)
		for _, path := range []string{api.PathReserve, api.PathRenew, api.PathCommit, api.PathUnknown} {
			if r.Manager.Count(path) == 0 {
				t.Errorf("no call of %s", path)
			}
		}
		for _, c := range r.Manager.Calls() {
			asked := api.DurabilityLocal
			if c.Path == api.PathReserve {
				asked = api.DurabilityRegion
			}
			want(t, "durability of "+c.Path, c.Durability, asked)
		}
	})
}

// Whatever the gate says of a global key later says so, too: the manager may no longer have noted the reservation.
func TestDurabilityIsRepeated(t *testing.T) {
	builds(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"match":[{"durability":"global"}],"pending_ttl_seconds":30}`})
		local := func(path string) { // the manager has no origin
			r.Manager.FailNext(path, Fault{Status: 201, Garbage: api.AppendRawReply(nil, api.StateReserved, 30*time.Second, nil)})
		}
		local(api.PathReserve)
		x := r.Send(Request{Key: "k"})
		x.Upstream.AwaitHeaders(t)
		r.Clock.Advance(20 * time.Second)
		x.Answer(201, "done")
		want(t, "body", x.Response().Body, "done")
		local(api.PathReserve)
		y := r.Send(Request{Key: "l"})
		y.Answer(404, "no")
		want(t, "body", y.Response().Body, "no")
		local(api.PathReserve)
		z := r.Send(Request{Key: "m"})
		z.Upstream.AwaitHeaders(t)
		z.Leave()
		r.Clock.Advance(time.Second)
		for _, path := range []string{api.PathReserve, api.PathRenew, api.PathCommit, api.PathReject, api.PathUnknown} {
			if r.Manager.Count(path) == 0 {
				t.Errorf("no call of %s", path)
			}
		}
		for _, c := range r.Manager.Calls() {
			want(t, "durability of "+c.Path, c.Durability, api.DurabilityGlobal)
		}
	})
}

// A home that is away says nothing about the manager: other keys continue, and an outcome is repeated until the home has it.
func TestHomeAwayConcernsItsKeysOnly(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{})
		x := r.Send(Request{Key: "k"})
		r.Manager.FailNext(api.PathCommit, Fault{Status: 503, Code: api.CodeHomeUnavailable}, Fault{Status: 503, Code: api.CodeHomeUnanswered})
		x.Answer(201, "first")
		want(t, "body", x.Response().Body, "first")
		y := r.Send(Request{Key: "other"})
		y.Answer(201, "second")
		want(t, "another key", y.Response().Status, "201")
		r.Clock.Advance(time.Minute)
		state, _ := r.Manager.State("k")
		want(t, "state", state, api.StateCommitted)
		want(t, "commits", r.Manager.Count(api.PathCommit), 4)
	})
}

// The manager bounds how long the cache may answer: another data centre's outcome may win.
func TestManagerBoundsTheCache(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"match":[{"durability":"local"}]}`})
		x := r.Send(Request{Key: "k"})
		r.Manager.FailNext(api.PathCommit, Fault{Garbage: api.AppendRawReply(nil, api.StateCommitted, 5*time.Second, nil)})
		x.Answer(201, "first")
		want(t, "body", x.Response().Body, "first")
		r.Clock.Advance(4 * time.Second)
		want(t, "replay", r.Send(Request{Key: "k"}).Response().Body, "first")
		want(t, "reserves", r.Manager.Count(api.PathReserve), 1)
		r.Clock.Advance(2 * time.Second)
		want(t, "replay", r.Send(Request{Key: "k"}).Response().Body, "first")
		want(t, "reserves", r.Manager.Count(api.PathReserve), 2)
	})
}
