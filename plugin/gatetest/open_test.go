package gatetest

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// cutShort is the beginning of a problem document, up to its code.
var cutShort = []byte(`{"type":"urn:problem","title":"Unavailable","status":503,"co`)

// The manager may have made a reserve that it refuses, unless the refusal says that nothing was changed. The gate gives
// such a reservation back, because no request will run under it.
func TestRefusedReserveIsGivenBackIfItMayHaveBeenMade(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, c := range map[string]struct {
			fault Fault
			open  bool
		}{
			"503 unavailable":            {Fault{Status: 503, Code: api.CodeUnavailable}, true},
			"503 home-unanswered":        {Fault{Status: 503, Code: api.CodeHomeUnanswered}, true},
			"503 with an unknown code":   {Fault{Status: 503, Code: "later"}, true},
			"503 cut short":              {Fault{Status: 503, Garbage: cutShort}, true},
			"500 internal":               {Fault{Status: 500, Code: api.CodeInternal}, true},
			"500 cut short":              {Fault{Status: 500, Garbage: cutShort}, true},
			"504":                        {Fault{Status: 504}, true},
			"503 ledger-full":            {Fault{Status: 503, Code: api.CodeLedgerFull}, false},
			"503 quarantine":             {Fault{Status: 503, Code: api.CodeQuarantine}, false},
			"503 overloaded":             {Fault{Status: 503, Code: api.CodeOverloaded}, false},
			"503 store-full":             {Fault{Status: 503, Code: api.CodeStoreFull}, false},
			"503 home-unavailable":       {Fault{Status: 503, Code: api.CodeHomeUnavailable}, false},
			"503 store-unreachable":      {Fault{Status: 503, Code: api.CodeStoreUnreachable}, false},
			"500 record-unreadable":      {Fault{Status: 500, Code: api.CodeRecordUnreadable}, false},
			"400 durability-unavailable": {Fault{Status: 400, Code: api.CodeDurability}, false},
			"421 wrong-home":             {Fault{Status: 421, Code: api.CodeWrongHome}, false},
			"421 wrong-shard":            {Fault{Status: 421, Code: api.CodeWrongShard}, false},
			"421 cut short":              {Fault{Status: 421, Garbage: cutShort}, false},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, Options{})
				c.fault.AfterIt = c.open
				r.Manager.FailNext(api.PathReserve, c.fault)
				x := r.Send(Request{Key: "k"})
				want(t, "status", x.Response().Status, "503")
				want(t, "upstream called", x.Upstream.Begun(), false)
				// A second release follows the first, in case that one overtook the reserve.
				r.Clock.Advance(10 * time.Second)
				want(t, "releases", r.Manager.Count(api.PathRelease), map[bool]int{true: 2}[c.open])
				state, _ := r.Manager.State("k")
				want(t, "state", state, api.StateNone)
				y := r.Send(Request{Key: "k"})
				y.Answer(200, "now")
				want(t, "retry", y.Response().Body, "now")
			})
		}
	})
}

// No refusal ends an outcome's way to the ledger while its meaning cannot be read.
func TestUnreadableRefusalOfAnOutcome(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, status := range []int{400, 500, 503} {
			r := NewRig(t, guest, Options{})
			f := Fault{Status: status, Garbage: cutShort}
			r.Manager.FailNext(api.PathCommit, f, f)
			x := r.Send(Request{Key: "k"})
			x.Answer(201, "done")
			want(t, "body", x.Response().Body, "done")
			r.Clock.Advance(20 * time.Second)
			state, result := r.Manager.State("k")
			want(t, "state", state, api.StateCommitted)
			want(t, "recorded", string(result.Body), "done")
			want(t, "commits", r.Manager.Count(api.PathCommit), 3)
		}
	})
}
