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
			"no manager":   {"", Fault{Close: 16}, Request{Key: "k2", Body: "b"}, "503"},
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
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(protocol, func(t *testing.T) {
				manager := NewManager(hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
				o := Options{Manager: manager, BodyMode: true}
				first, second := NewRig(t, guest, o), NewRig(t, guest, o)
				q := Request{Key: "k", Body: `{"amount":1}`}
				once(t, first, q)
				q.Protocol, q.Headers = protocol, []string{"content-type: application/json", twelve}
				x := second.Open(q, false)
				second.Settle()
				want(t, "answered without a body", x.Client.Begun(), false)
				x.RequestData([]byte(q.Body), false)
				if protocol == "HTTP/2" { // its end may come much later than the last byte
					second.Clock.Advance(500 * time.Millisecond)
					want(t, "answered before the end", x.Client.Begun(), false)
				}
				x.RequestData(nil, true)
				second.Clock.Advance(10 * time.Millisecond)
				want(t, "body", x.Response().Body, "first")
				want(t, "the connection ends", x.Client.Early(), false)
			})
		}
	})
}

// An answer of the ledger that waits for the end of its request stays what it is while other answers arrive.
func TestLedgersAnswersThatWaitAreApart(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		manager := NewManager(hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		o := Options{Manager: manager}
		first, second := NewRig(t, guest, o), NewRig(t, guest, o)
		keys := []string{"1", "2", "3"}
		answer := func(key string) string { return strings.Repeat(key, 1000) }
		var waiting []*Exchange
		for _, key := range keys {
			x := first.Send(Request{Key: key, Body: `{"amount":1}`})
			x.Answer(201, answer(key))
			want(t, "recorded", x.Response().Body, answer(key))
		}
		for _, key := range keys {
			x := second.Open(Request{Key: key, Protocol: "HTTP/2", Headers: []string{"content-type: application/json", twelve}}, false)
			x.RequestData([]byte(`{"amount":1}`), false)
			second.Settle()
			want(t, "answered before the end", x.Client.Begun(), false)
			waiting = append(waiting, x)
		}
		for i, x := range waiting {
			x.RequestData(nil, true)
			second.Clock.Advance(500 * time.Millisecond)
			want(t, "body", x.Response().Body, answer(keys[i]))
		}
	})
}

// Over HTTP/2 a reply waits for the end, which may come by itself after the last byte: the host resets a stream whose answer
// ends first. Where the host shows the body, the reply comes with the end, else when the request has stood still for a while.
func TestHTTP2ReplyWaitsForTheRequestsEnd(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, o := range map[string]Options{
			"headers mode": {Config: `{}`},
			"headers mode, allow_on_headers_stop_iteration": {Config: `{}`, BodyMode: true},
			"body mode": {Config: `{"mode":"body"}`, BodyMode: true},
		} {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, o)
				first := Request{Key: "k", Body: `{"amount":1}`}
				once(t, r, first)
				for what, c := range map[string]struct {
					key, length, want string
				}{
					"replay":               {"k", twelve, "201"},
					"replay, no length":    {"k", "x: y", "201"},
					"bad key":              {"k\xff", twelve, "400"},
					"bad key, no length":   {"k\xff", "x: y", "400"},
					"an odd length":        {"k\xff", "content-length: 12, 12", "400"},
					"a body of no byte":    {"k\xff", "content-length: 0", "400"},
					"no body and no hint":  {"k\xff", "x: y", "400"},
					"a body that is large": {"k\xff", "content-length: 65000", "400"},
				} {
					body := first.Body
					switch what {
					case "a body of no byte", "no body and no hint":
						body = ""
					case "a body that is large":
						body = strings.Repeat("a", 65_000)
					}
					x := r.Open(Request{Key: c.key, Protocol: "HTTP/2", Headers: []string{"content-type: application/json", c.length}}, false)
					r.Settle()
					want(t, what+": answered without a body", x.Client.Begun(), false)
					if body != "" {
						x.RequestData([]byte(body[:2]), false)
						r.Clock.Advance(5 * time.Millisecond)
						want(t, what+": answered with a part", x.Client.Begun(), false)
						x.RequestData([]byte(body[2:]), false)
					}
					r.Clock.Advance(5 * time.Millisecond)
					want(t, what+": answered before the end", x.Client.Begun(), false)
					x.RequestData(nil, true)
					r.Settle()
					if !o.BodyMode {
						want(t, what+": answered at once, with the end unseen", x.Client.Begun(), false)
						r.Clock.Advance(30 * time.Millisecond)
						if c.length == "x: y" && body == "" {
							r.Clock.Advance(100 * time.Millisecond) // nothing shows that there is no body
						}
					}
					want(t, what+": answered", x.Client.Begun(), true)
					want(t, what+": status", x.Response().Status, c.want)
					want(t, what+": the stream is reset", x.Client.Early(), false)
					x.Over()
				}
			})
		}
	})
}

// An HTTP/2 request whose end does not come gets its reply soon.
func TestHTTP2ReplyDoesNotWaitForever(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for name, o := range bothModes {
			t.Run(name, func(t *testing.T) {
				r := NewRig(t, guest, o)
				x := r.Open(Request{Key: "k\xff", Protocol: "HTTP/2", Headers: []string{twelve}}, false)
				x.RequestData([]byte("{"), false)
				r.Clock.Advance(50 * time.Millisecond)
				want(t, "answered too soon", x.Client.Begun(), false)
				r.Clock.Advance(2 * time.Second)
				want(t, "status", x.Response().Status, "400")
				want(t, "the stream is reset", x.Client.Early(), true)
			})
		}
	})
}

// Where the host shows the body, a reply waits for the end of a body of any size while its pieces come, so that a client
// that sends all of it before it reads gets the reply. It does not wait for a client that stands still.
func TestReplyWaitsWhileALargeBodyComes(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		const size = 700_000 // more than max_request_body_bytes
		for _, mode := range []string{"headers", "body"} {
			for name, q := range map[string]Request{
				"HTTP/1.1":          {Protocol: "HTTP/1.1", Headers: []string{fmt.Sprint("content-length: ", size)}},
				"HTTP/1.1, chunked": {Protocol: "HTTP/1.1"},
				"HTTP/2":            {Protocol: "HTTP/2", Headers: []string{fmt.Sprint("content-length: ", size)}},
				"HTTP/2, no length": {Protocol: "HTTP/2"},
			} {
				name = mode + ", " + name
				r := NewRig(t, guest, Options{Config: `{"mode":"` + mode + `"}`, BodyMode: true})
				q.Key, q.Headers = "k", append(q.Headers, "content-type: application/json")
				body := strings.Repeat("a", size)
				piece := []byte(body[:size/10])
				begin := func(pieces int, pause time.Duration) *Exchange {
					x := r.Open(q, false)
					for range pieces {
						x.RequestData(piece, false)
						r.Clock.Advance(pause)
					}
					return x
				}
				first := r.Open(q, false)
				for range 10 {
					first.RequestData(piece, false)
					r.Settle()
				}
				first.RequestData(nil, true)
				r.Settle()
				first.Answer(201, "first")
				want(t, name+": first", first.Response().Body, "first")
				first.Over()

				x := begin(9, 900*time.Millisecond)
				for range 40 { // Envoy bounds the time of a request; the gate does not
					x.RequestData([]byte("a"), false)
					r.Clock.Advance(900 * time.Millisecond)
				}
				want(t, name+": answered before the end", x.Client.Begun(), false)
				x.RequestData(piece[40:], false)
				x.RequestData(nil, true)
				r.Settle()
				want(t, name+": status", x.Response().Status, "201")
				want(t, name+": the reply is early", x.Client.Early(), false)
				x.Over()

				stands := begin(9, 10*time.Millisecond)
				r.Clock.Advance(2 * time.Second)
				want(t, name+": status of a client that stands still", stands.Response().Status, "201")
				want(t, name+": its reply is early", stands.Client.Early(), true)
			}
		}
	})
}

// Where the host does not show the body, nothing shows that a large one will end soon, so its reply waits for a tenth of a second
// and not longer.
func TestReplyToALargeBodyThatIsNotShown(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
			r := NewRig(t, guest, Options{Config: `{"scope":["path"]}`})
			once(t, r, Request{Key: "k"})
			x := r.Open(Request{Key: "k", Protocol: protocol, Headers: []string{"content-length: 70000"}}, false)
			r.Clock.Advance(50 * time.Millisecond)
			want(t, protocol+": answered too soon", x.Client.Begun(), false)
			r.Clock.Advance(150 * time.Millisecond)
			want(t, protocol+": answered", x.Client.Begun(), true)
			x.Response()
		}
	})
}

// A reply does not wait where waiting achieves nothing.
func TestRepliesThatDoNotWait(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Config: `{"scope":["path"]}`})
		once(t, r, Request{Key: "k"})
		for name, q := range map[string]Request{
			"HTTP/2, upgrade":  {Protocol: "HTTP/2", Headers: []string{"upgrade: websocket"}},
			"100-continue":     {Headers: []string{twelve, "expect: 100-continue"}},
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
