package gatetest

import (
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// A client that does not accept a recorded answer's encoding does not get it, and learns how
// to get it.
func TestEncodingIsAccepted(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, config := range []string{`{"mode":"headers"}`, `{"mode":"body"}`, `{"ledger":"none"}`} {
			for _, c := range []struct{ first, retry, want string }{
				{"gzip, br", "gzip", "200"},
				{"gzip", "", "406"},
				{"gzip", "br", "406"},
				{"gzip", "gzip;q=0, *", "406"},
				{"gzip", "*", "200"},
				// Upstream ignored Accept-Encoding. A retry like the first gets the same answer.
				{"", "", "200"},
				{"", "identity", "406"},
				{"br", "br", "200"},
				{"br", "", "406"},
			} {
				r := NewRig(t, guest, Options{Config: config, BodyMode: true})
				send := func(accept string) *Exchange {
					q := Request{Key: "k", Body: "b"}
					if accept != "" {
						q.Headers = []string{"accept-encoding: " + accept}
					}
					return r.Send(q)
				}
				x := send(c.first)
				x.Answer(200, "zipped", "content-encoding: gzip")
				x.Response()
				r.Settle()
				what := config + ": first " + c.first + ", then " + c.retry
				p := send(c.retry).Response()
				want(t, what, p.Status, c.want)
				if c.want == "200" {
					want(t, what, p.Body+" "+p.Header("content-encoding"), "zipped gzip")
					want(t, what+": the gate's own header", p.Header("idempotency-accepted-encoding"), "")
				} else {
					want(t, what, p.Problem(t), "encoding-not-accepted")
					want(t, what, r.Metric("oncegate_gate_requests_not_acceptable_total"), 1)
				}
				want(t, what+", with it", send("gzip").Response().Body, "zipped")
			}
		}
	})
}
