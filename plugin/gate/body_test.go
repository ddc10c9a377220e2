package gate

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// upload opens a request in body mode and shows the gate a piece of its body.
func (h *fakeHost) upload(p *Plugin, id uint32, piece int, headers ...[2]string) (*Stream, *fakeStream, Action) {
	s, f := h.open(p, id, "k"+decimal(int64(id)))
	f.request = append(f.request, headers...)
	expect(h.t, "headers", s.OnRequestHeaders(false), Pause)
	f.requestBody = []byte(strings.Repeat("a", piece))
	return s, f, s.OnRequestBody(piece, false)
}

// Which pieces the gate takes over: of larger bodies, where it can put them back.
func TestWhichBodiesAreTakenOver(t *testing.T) {
	length, trailer := [2]string{"content-length", "500000"}, [2]string{"trailer", "x-t"}
	for _, c := range []struct {
		name     string
		piece    int
		header   [2]string
		protocol string
		want     Action
	}{
		{"small", leaveBytes, length, "HTTP/2", Pause},
		{"sized", leaveBytes + 1, length, "HTTP/2", Take},
		{"HTTP/1", leaveBytes + 1, [2]string{"x-other", ""}, "HTTP/1.1", Take},
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
		expect(t, c.name+": bytes put back", len(f.requestBody) == c.piece, c.want == Take)
		expect(t, c.name+": bytes counted", p.uploads, 0)
		expect(t, c.name+": waited for", p.partial.size, 0)
	}
}

// A VM holds so many bytes of request bodies and no more.
func TestUploadsAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	var streams []*Stream
	taken := 0
	for i := range uint32(30) {
		s, _, action := h.upload(p, i+1, 20_000, [2]string{"content-length", "524288"})
		if action == Take {
			taken++
		}
		streams = append(streams, s)
	}
	expect(t, "taken over", taken, maxUploadBytes/524288)
	for _, s := range streams {
		s.OnDone()
	}
	expect(t, "bytes counted", p.uploads, 0)
	expect(t, "waited for", p.partial.size, 0)
	_, _, action := h.upload(p, 99, 20_000, [2]string{"content-length", "524288"})
	expect(t, "when there is room again", action, Take)
}

// Room runs out in the middle of a body of unknown length: what was taken goes back.
func TestRoomForAnUploadRunsOut(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	h.protocol = "HTTP/1.1"
	s, f, action := h.upload(p, 1, 20_000)
	expect(t, "first", action, Take)
	p.uploads += maxUploadBytes - 20_000
	f.requestBody = []byte(strings.Repeat("b", 20_000))
	expect(t, "second", s.OnRequestBody(20_000, false), Pause)
	expect(t, "host has", string(f.requestBody), strings.Repeat("a", 20_000)+strings.Repeat("b", 20_000))
	expect(t, "bytes counted", p.uploads, maxUploadBytes-20_000)
	f.requestBody = []byte("c")
	expect(t, "third", s.OnRequestBody(1, false), Pause)
	expect(t, "end", s.OnRequestBody(0, true), Pause)
	expect(t, "put back twice", string(f.requestBody), "c")
	expect(t, "phase", s.phase, phaseReserving)
}

// A host that takes nothing back has lost the body: the request must not go on without it.
func TestBodyCannotBePutBack(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"mode":"body"}`)
	s, f, _ := h.upload(p, 1, 20_000, [2]string{"content-length", "20001"})
	h.noBody = true
	f.requestBody = []byte("a")
	expect(t, "last", s.OnRequestBody(1, false), Pause)
	expect(t, "status", f.replies[0].status, 400)
	s.OnDone()
	expect(t, "bytes counted", p.uploads, 0)
}

// The VM has no room for the copy of an answer: the host collects it.
func TestAnswerIsCollected(t *testing.T) {
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
		p.calls.held += maxHeldBytes
		f.responseBody = []byte("col")
		expect(t, "first", s.OnResponseBody(3, false), Collect)
		f.responseBody = []byte("collec")
		expect(t, "second", s.OnResponseBody(6, false), Collect)
		p.calls.held -= maxHeldBytes
		want := "collected"
		if trailers {
			want = "collec" // a host would not: the length says more
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
