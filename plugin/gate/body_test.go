package gate

import (
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// upload opens a request in body mode and shows the gate a piece of its body.
func (h *fakeHost) upload(p *Plugin, id uint32, piece int, headers ...[2]string) (*Stream, *fakeStream, Action) {
	s, f := h.open(p, id, "k"+strconv.Itoa(int(id)))
	f.request = append(f.request, headers...)
	expect(h.t, "headers", s.OnRequestHeaders(false), Pause)
	f.requestBody = []byte(strings.Repeat("a", piece))
	return s, f, s.OnRequestBody(piece, false)
}

// The gate takes over pieces of larger bodies if it can put them back.
func TestBodiesThatCanBePutBackAreTakenOver(t *testing.T) {
	length, trailer := [2]string{"content-length", "500000"}, [2]string{"trailer", "x-t"}
	for _, c := range []struct {
		name     string
		piece    int
		header   [2]string
		protocol string
		want     Action
	}{
		{"small", leaveBytes, length, "HTTP/2", Pause},
		{"sized", leaveBytes + 1, length, "HTTP/2", Drop},
		{"HTTP/1", leaveBytes + 1, [2]string{"x-other", ""}, "HTTP/1.1", Drop},
		{"HTTP/2", leaveBytes + 1, [2]string{"x-other", ""}, "HTTP/2", Pause},
		{"announced trailers", leaveBytes + 1, trailer, "HTTP/1.1", Pause},
		{"over the limit", 600_000, length, "HTTP/1.1", Pause},
	} {
		h := newFakeHost(t)
		p := started(t, h, `{"mode":"body"}`)
		h.protocol = c.protocol
		s, f, action := h.upload(p, 1, c.piece, c.header)
		expect(t, c.name, action, c.want)
		f.requestBody = nil
		expect(t, c.name+": end", s.OnRequestBody(0, true), Pause)
		expect(t, c.name+": bytes put back", len(f.requestBody) == c.piece, c.want == Drop)
		expect(t, c.name+": bytes counted", p.uploadBytes, 0)
		expect(t, c.name+": waited for", p.awaitingBody.size, 0)
	}
}

// A VM holds a bounded number of bytes of request bodies.
func TestUploadsAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	var streams []*Stream
	taken := 0
	for i := range uint32(30) {
		s, _, action := h.upload(p, i+1, 20_000, [2]string{"content-length", "524288"})
		if action == Drop {
			taken++
		}
		streams = append(streams, s)
	}
	expect(t, "taken over", taken, maxUploadBytes/524288)
	for _, s := range streams {
		s.OnDone()
	}
	expect(t, "bytes counted", p.uploadBytes, 0)
	expect(t, "waited for", p.awaitingBody.size, 0)
	_, _, action := h.upload(p, 99, 20_000, [2]string{"content-length", "524288"})
	expect(t, "when there is room again", action, Drop)
}

// If room runs out in the middle of a body of unknown length, the gate puts the pieces back.
func TestPiecesArePutBackWithoutRoom(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	h.protocol = "HTTP/1.1"
	s, f, action := h.upload(p, 1, 20_000)
	expect(t, "first", action, Drop)
	p.uploadBytes += maxUploadBytes - 20_000
	f.requestBody = []byte(strings.Repeat("b", 20_000))
	expect(t, "second", s.OnRequestBody(20_000, false), Pause)
	expect(t, "host has", string(f.requestBody), strings.Repeat("a", 20_000)+strings.Repeat("b", 20_000))
	expect(t, "bytes counted", p.uploadBytes, maxUploadBytes-20_000)
	f.requestBody = []byte("c")
	expect(t, "third", s.OnRequestBody(1, false), Pause)
	expect(t, "end", s.OnRequestBody(0, true), Pause)
	expect(t, "put back twice", string(f.requestBody), "c")
	expect(t, "phase", s.phase, phaseReserving)
}

// A body whose pieces the gate takes cannot stand still in the host: only its client can be slow.
func TestTakenBodyIsNotLoggedAsStalled(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	s, f, action := h.upload(p, 1, leaveBytes, [2]string{"content-length", "500000"})
	expect(t, "first", action, Pause)
	f.requestBody = []byte("a")
	expect(t, "second", s.OnRequestBody(1, false), Drop)
	for range 2 * bodyPatience / tickPeriod {
		h.tick(p)
	}
	expect(t, "log lines", len(h.logs), 0)
}

// The gate needs the whole body if it holds the key. Without room for it, the request is refused and
// counted, or passes whole and unprotected, as the route says.
func TestKeyInABodyWithoutRoomIsRefused(t *testing.T) {
	for _, c := range []struct {
		mode    string
		want    Action
		metric  string
		replies int
	}{
		{"closed", Drop, "oncegate_gate_requests_manager_error_total", 1},
		{"open", Continue, "oncegate_gate_requests_bypass_total", 0},
	} {
		h := newFakeHost(t)
		p := started(t, h, `{"mode":"body","key":{"json_path":"id"},"failure_mode":"`+c.mode+`"}`)
		s, f := h.open(p, 1, "")
		f.request = f.request[:3]
		h.protocol = "HTTP/1.1"
		expect(t, "headers", s.OnRequestHeaders(false), Pause)
		f.requestBody = []byte(strings.Repeat("a", 20_000))
		expect(t, "first", s.OnRequestBody(20_000, false), Drop)
		p.uploadBytes = maxUploadBytes
		f.requestBody = []byte(strings.Repeat("b", 60_000))
		expect(t, c.mode+": second", s.OnRequestBody(60_000, false), c.want)
		if c.want == Drop {
			expect(t, "replies before the end", len(f.replies), 0)
			expect(t, "end", s.OnRequestBody(0, true), Pause)
		}
		expect(t, c.mode+": replies", len(f.replies), c.replies)
		expect(t, c.mode+": count", h.values[c.metric], 1)
		if c.want == Continue {
			expect(t, "host has", string(f.requestBody), strings.Repeat("a", 20_000)+strings.Repeat("b", 60_000))
			f.requestBody = []byte("c")
			expect(t, "rest", s.OnRequestBody(1, true), Continue)
		}
		s.OnDone()
		expect(t, c.mode+": bytes counted", p.uploadBytes, maxUploadBytes-20_000)
	}
}

// A body that is alone may be as large as the configuration allows.
func TestLoneBodyMayBeAsLargeAsConfigured(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body","key":{"json_path":"id"},"max_request_body_bytes":16777216}`)
	s, f := h.open(p, 1, "")
	f.request = append(f.request[:3:3], [2]string{"content-length", "16777216"})
	expect(t, "headers", s.OnRequestHeaders(false), Pause)
	f.requestBody = []byte("{")
	expect(t, "first", s.OnRequestBody(1, false), Pause)
	expect(t, "replies", len(f.replies), 0)
	expect(t, "bytes counted", p.uploadBytes, 16<<20)
	s.OnDone()
	expect(t, "bytes counted at the end", p.uploadBytes, 0)
}

// In HTTP/2 the end of a body may come only when the host has room again.
func TestBodyIsDecidedBeforeAnEndBehindAFullBuffer(t *testing.T) {
	for _, c := range []struct {
		protocol string
		size     int
		want     phase
	}{
		{"HTTP/2", leaveBytes, phaseBody},
		{"HTTP/2", leaveBytes + 1, phaseReserving},
		{"HTTP/1.1", leaveBytes + 1, phaseBody},
	} {
		h := newFakeHost(t)
		p := started(t, h, `{"mode":"body"}`)
		h.protocol = c.protocol
		s, _, action := h.upload(p, 1, c.size, [2]string{"content-length", strconv.Itoa(c.size)})
		expect(t, "action", action, Pause)
		expect(t, c.protocol+" "+strconv.Itoa(c.size), s.phase, c.want)
		s.OnRequestBody(0, true)
		expect(t, c.protocol+": end", s.phase, phaseReserving)
	}
}

// The client leaves when it has the last byte of an answer, before the gate has seen the answer's end.
func TestAnswerIsRecordedWhenTheClientLeavesWithItsLastByte(t *testing.T) {
	for name, config := range map[string]string{"held": "", "copied": `{"commit":"async"}`} {
		for _, left := range []string{"", "d"} {
			h := newFakeHost(t)
			p := started(t, h, config)
			s, f := h.open(p, 1, "k")
			s.OnRequestHeaders(true)
			h.ready(p)
			h.respond(p, 0, "201", granted)
			h.current = 1
			f.response = append(f.response, [2]string{"content-length", "4"})
			s.OnResponseHeaders(false)
			f.responseBody = []byte("abcd"[:4-len(left)])
			s.OnResponseBody(len(f.responseBody), false)
			s.OnDone()
			expect(t, name+": bytes counted before the call", p.calls.heldBytes > 0, true)
			h.ready(p)
			var r api.FinishRequest
			if err := r.ParseRaw(h.calls[1].body); err != nil {
				t.Fatal(err)
			}
			expect(t, name+": without body", r.Result.BodyOmitted, left != "")
			if left == "" {
				expect(t, name+": body", string(r.Result.Body), "abcd")
			}
			h.respond(p, 1, "200", api.ReserveReply{State: api.StateCommitted})
			expect(t, name+": bytes counted", p.calls.heldBytes, 0)
		}
	}
}

// If the host refuses to take pieces back, the request must not continue without its body.
func TestRequestIsRefusedIfItsBodyCannotBePutBack(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	s, f, _ := h.upload(p, 1, 20_000, [2]string{"content-length", "20001"})
	h.noBody = true
	f.requestBody = []byte("a")
	expect(t, "last", s.OnRequestBody(1, true), Pause)
	expect(t, "status", f.replies[0].status, 400)
	s.OnDone()
	expect(t, "bytes counted", p.uploadBytes, 0)
}

// If the VM has no room for the copy of an answer, the host collects it.
func TestHostCollectsAnswersWithoutRoom(t *testing.T) {
	for _, trailers := range []bool{false, true} {
		h := newFakeHost(t)
		p := started(t, h, "")
		s, f := h.open(p, 1, "k")
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, 0, "201", granted)
		h.current = 1
		f.response = append(f.response, [2]string{"content-length", "9"})
		s.OnResponseHeaders(false)
		p.calls.heldBytes += maxHeldBytes
		f.responseBody = []byte("col")
		expect(t, "first", s.OnResponseBody(3, false), Collect)
		f.responseBody = []byte("collec")
		expect(t, "second", s.OnResponseBody(6, false), Collect)
		p.calls.heldBytes -= maxHeldBytes
		want := "collected"
		if trailers {
			want = "collec" // no real host does this: the declared length is larger
			expect(t, "trailers", s.OnResponseTrailers(), Pause)
		} else {
			f.responseBody = []byte(want)
			expect(t, "last", s.OnResponseBody(9, false), Collect)
			expect(t, "end", s.OnResponseBody(9, true), Pause)
		}
		h.ready(p)
		var r api.FinishRequest
		if err := r.ParseRaw(h.calls[1].body); err != nil {
			t.Fatal(err)
		}
		expect(t, "body", string(r.Result.Body), want)
	}
}
