package gatetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

const twelve = "content-length: 12"

// once runs a request with the key to its end.
func once(t *testing.T, r *Rig, q Request) {
	t.Helper()
	x := r.Send(q)
	x.Answer(201, "first")
	x.Response()
	x.Over()
}

// In both modes every reply of the gate goes out after the end of a request that came in one packet, so that
// the client keeps its connection.
func TestRepliesKeepTheConnection(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, c := range map[string]struct {
			config  string
			prepare Fault
			q       Request
			want    string
		}{
			"replay":       {"", Fault{}, Request{Key: "k", Body: `{"amount":1}`}, "201"},
			"mismatch":     {"", Fault{}, Request{Key: "k", Body: "other"}, "422"},
			"no key":       {`"key":{"required":true}`, Fault{}, Request{Body: "b"}, "400"},
			"bad key":      {"", Fault{}, Request{Key: "k\xff", Body: "b"}, "400"},
			"no manager":   {"", Fault{Refuse: true}, Request{Key: "k2", Body: "b"}, "503"},
			"ledger full":  {"", Fault{Status: 503, Code: api.CodeLedgerFull}, Request{Key: "k2", Body: "b"}, "503"},
			"other gate's": {"", Fault{Status: 422, Code: api.CodeFingerprintMismatch}, Request{Key: "k2", Body: "b"}, "422"},
		} {
			for _, mode := range []string{"headers", "body"} {
				t.Run(name+", mode "+mode, func(t *testing.T) {
					config := `{"mode":"` + mode + `"` + strings.TrimSuffix(","+c.config, ",") + `}`
					r := NewRig(t, guest, Options{Config: config, BodyMode: mode == "body"})
					once(t, r, Request{Key: "k", Body: `{"amount":1}`})
					r.Manager.FailNext(api.PathReserve, c.prepare)
					x := r.Send(c.q)
					want(t, "status", x.Response().Status, c.want)
					want(t, "the connection ends", x.Client.Early(), false)
				})
			}
		}
	})
}

// A reply waits for a body that comes in later packets, but not for long.
func TestReplyWaitsForTheRequestsEnd(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, stopping := range []bool{false, true} {
			t.Run(fmt.Sprint("allow_on_headers_stop_iteration ", stopping), func(t *testing.T) {
				r := NewRig(t, guest, Options{BodyMode: stopping})
				q := Request{Key: "k", Body: `{"amount":1}`}
				once(t, r, q)
				q.Headers = []string{"content-type: application/json", twelve}
				for range 3 { // the tick becomes fast, and slow again
					x := r.Open(q, false)
					r.Settle()
					want(t, "answered without a body", x.Client.Begun(), false)
					x.RequestData([]byte(q.Body[:5]), false)
					r.Clock.Advance(10 * time.Millisecond)
					want(t, "answered with a part", x.Client.Begun(), false)
					x.RequestData([]byte(q.Body[5:]), false)
					x.RequestData(nil, true)
					r.Clock.Advance(10 * time.Millisecond)
					want(t, "body", x.Response().Body, "first")
					want(t, "the connection ends", x.Client.Early(), false)
					x.Over()
					r.Clock.Advance(time.Second)
				}
				slow := r.Open(q, false)
				r.Settle()
				gone := r.Open(q, false)
				r.Settle()
				gone.Leave()
				r.Clock.Advance(50 * time.Millisecond)
				want(t, "answered too soon", slow.Client.Begun(), false)
				r.Clock.Advance(200 * time.Millisecond)
				want(t, "slow", slow.Response().Body, "first")
				want(t, "the connection ends", slow.Client.Early(), true)
			})
		}
	})
}

// A reply that comes late because the gate asked the ledger waits as well.
func TestLedgersAnswerWaitsForTheRequestsEnd(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		manager := NewManager(hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		first, second := NewRig(t, guest, Options{Manager: manager}), NewRig(t, guest, Options{Manager: manager})
		q := Request{Key: "k", Body: `{"amount":1}`}
		once(t, first, q)
		q.Headers = []string{"content-type: application/json", twelve}
		x := second.Open(q, false)
		second.Settle()
		want(t, "answered without a body", x.Client.Begun(), false)
		x.RequestData([]byte(q.Body), false)
		x.RequestData(nil, true)
		second.Clock.Advance(10 * time.Millisecond)
		want(t, "body", x.Response().Body, "first")
		want(t, "the connection ends", x.Client.Early(), false)
	})
}

// A reply does not wait where waiting achieves nothing.
func TestRepliesThatDoNotWait(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"scope":["path"]}`})
		once(t, r, Request{Key: "k"})
		for name, q := range map[string]Request{
			"HTTP/2":           {Protocol: "HTTP/2", Headers: []string{twelve}},
			"100-continue":     {Headers: []string{twelve, "expect: 100-continue"}},
			"a large body":     {Headers: []string{"content-length: 70000"}},
			"chunked":          {},
			"an odd length":    {Headers: []string{"content-length: 1, 1"}},
			"a body that came": {Body: "b"},
		} {
			q.Key = "k"
			x := r.Open(q, false)
			if q.Body != "" {
				x = r.Send(q)
			}
			r.Settle()
			want(t, name+": answered", x.Client.Begun(), true)
			x.Response()
		}
	})
}
