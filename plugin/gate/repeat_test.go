package gate

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Calls that are repeated until the ledger acknowledges them, and their bounds.

// The gate gives back a reservation that no request may use even after it has run out: from then on
// it means an unknown outcome, which blocks its key for much longer.
func TestReleaseIsRepeatedAfterTheReservationEnded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager": {"timeout_ms": 1000}, "pending_ttl_seconds": 5, "unknown_ttl_seconds": 60}`)
	s, f := h.open(p, 1, "k")
	s.OnRequestHeaders(true)
	h.ready(p)
	h.goAway(p) // the manager is away from now on
	h.now += int64(10 * time.Second)
	h.tick(p)
	expect(t, "status", f.replies[0].status, 503)
	h.now += int64(30 * time.Second)
	h.tick(p)
	h.comeBack(p)
	n := len(h.calls)
	h.now += int64(10 * time.Second)
	h.tick(p)
	h.ready(p)
	expect(t, "calls", len(h.calls), n+1)
	expect(t, "call", h.calls[n].path, api.PathRelease)
}

// A manager that is away leaves a release for each new request. They leave room for outcomes.
func TestReleasesLeavePlacesForOutcomes(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry": {"max_queued": 4}}`)
	for range 4 {
		p.calls.retryLater(&call{kind: callRelease, attempt: attempt{route: p.config.Route("POST", "/")}, deadline: int64(time.Hour)})
	}
	expect(t, "releases", len(p.calls.shards[0].retries), 2)
	for range 4 {
		p.calls.retryLater(&call{kind: callCommit, attempt: attempt{route: p.config.Route("POST", "/")}, deadline: int64(time.Hour)})
	}
	expect(t, "all", len(p.calls.shards[0].retries), 4)
}

// A release keeps its room in the queue while it is under way. A key's first release is that of the attempt which may have the key.
// The releases that follow while the manager is away have nothing to take back, and must not push it out.
func TestReleaseUnderWayKeepsItsRoom(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry": {"max_queued": 4}}`)
	release := func(key string) *call {
		return &call{kind: callRelease, attempt: attempt{route: p.config.Route("POST", "/"), key: key}, deadline: h.now + int64(time.Hour)}
	}
	first := release("first")
	p.calls.retryLater(first)
	for i := range 4 {
		shard := &p.calls.shards[0]
		first.due = h.now
		due := p.calls.moveDueRetries(shard, nil, h.now)
		expect(t, "calls that are due", len(due), 1)
		for n := range 4 {
			p.calls.retryLater(release("k" + strconv.Itoa(4*i+n)))
		}
		p.calls.endRetry(first)
		p.calls.retryLater(first)
		expect(t, "the last one is the first", shard.retries[len(shard.retries)-1] == first, true)
		expect(t, "queued", len(shard.retries), 3)
	}
}

// The bytes of outcomes that wait for the ledger are bounded. Beyond the bound bodies are left out.
func TestKeptBytesAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":4194304}`)
	body := make([]byte, 4<<20)
	for i := range uint32(8) {
		s, f := h.open(p, i+1, "k"+string(rune('a'+i)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = i + 1
		f.responseBody = body
		s.OnResponseHeaders(false)
		s.OnResponseBody(len(body), true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "500", api.ReserveReply{})
		expect(t, "the client's answer", f.resumedResponse, 1)
	}
	expect(t, "outcomes kept", len(p.calls.shards[0].retries), 8)
	if p.calls.heldBytes > maxHeldBytes+8*1024 {
		t.Errorf("%d bytes are kept", p.calls.heldBytes)
	}
	bare := 0
	for _, c := range p.calls.shards[0].retries {
		if !c.hasBody(t) {
			bare++
		}
	}
	expect(t, "without body", bare, 5)
	expect(t, "the last one is whole", p.calls.unacknowledgedCall(&p.calls.shards[0].retries[7].hash).hasBody(t), true)
}

// A manager that comes back does not get all kept calls at the same time.
func TestRepetitionsAreSpread(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, "")
	h.goAway(p)
	for i := range uint32(100) {
		s, _ := h.open(p, i+1, "k"+strconv.Itoa(int(i)))
		h.comeBack(p)
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = i + 1
		h.goAway(p)
		s.OnResponseHeaders(true)
		h.ready(p)
	}
	h.comeBack(p)
	n := len(h.calls)
	h.tick(p)
	expect(t, "calls before they are due", len(h.calls)-n, 0)
	h.now += int64(10 * time.Second)
	h.tick(p)
	h.tick(p)
	expect(t, "calls while the manager is away", len(h.calls)-n, maxRetriesWhileDown)
	h.respond(p, n, "200", committed)
	expect(t, "calls when it is back", len(h.calls)-n, 1+maxRetriesUnderWay)
	for i := n + 1; i < n+100; i++ {
		h.respond(p, i, "200", committed)
		if flying := len(h.calls) - i - 1; flying > maxRetriesUnderWay {
			t.Fatalf("%d calls at once", flying)
		}
	}
	expect(t, "calls in all", len(h.calls)-n, 100)
	expect(t, "idle", p.calls.idle(), true)
}

// With a manager that does not answer and large answers, the bytes that the VM holds are bounded.
// Beyond the bound outcomes are recorded without their bodies.
func TestUnacknowledgedBytesAreBounded(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"max_response_body_bytes":8388608}`)
	body := make([]byte, 4<<20)
	id := uint32(0)
	answer := func() (commit int, r api.FinishRequest) {
		id++
		s, f := h.open(p, id, "k"+strconv.Itoa(int(id)))
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, len(h.calls)-1, "201", granted)
		h.current = id
		f.responseBody = body
		s.OnResponseHeaders(false)
		expect(t, "the answer is held", s.OnResponseBody(len(body), true), Pause)
		h.ready(p)
		if err := r.ParseRaw(h.calls[len(h.calls)-1].body); err != nil {
			t.Fatal(err)
		}
		return len(h.calls) - 1, r
	}
	var commits []int
	whole := 0
	for range 10 {
		at, r := answer()
		commits = append(commits, at)
		if !r.Result.BodyOmitted {
			whole++
		}
	}
	expect(t, "outcomes with their bodies", whole, maxHeldBytes/len(body)-1)
	if p.calls.heldBytes > maxHeldBytes+10*1024 {
		t.Errorf("%d bytes are held", p.calls.heldBytes)
	}
	for _, at := range commits {
		h.respond(p, at, "200", committed)
	}
	expect(t, "bytes held", p.calls.heldBytes, 0)
	_, r := answer()
	expect(t, "body omitted when there is room again", r.Result.BodyOmitted, false)
}

// Answers that pass slowly while they are copied count, too.
func TestCopiedBytesAreBounded(t *testing.T) {
	for _, config := range []string{`{"commit":"async","max_response_body_bytes":8388608}`, `{"ledger":"none","max_response_body_bytes":8388608}`} {
		for _, sized := range []bool{true, false} {
			h := newFakeHost(t)
			p := started(t, h, config)
			piece := make([]byte, 4<<20)
			var streams []*Stream
			for i := range uint32(10) {
				s, f := h.open(p, i+1, "k"+strconv.Itoa(int(i)))
				calls := len(h.calls)
				s.OnRequestHeaders(true)
				h.ready(p)
				for n := calls; n < len(h.calls); n++ {
					if h.calls[n].path == api.PathReserve {
						h.respond(p, n, "201", granted)
					}
				}
				h.current = i + 1
				if sized {
					f.response = append(f.response, [2]string{"content-length", strconv.Itoa(len(piece))})
				}
				f.responseBody = piece
				expect(t, "headers", s.OnResponseHeaders(false), Continue)
				expect(t, "body", s.OnResponseBody(len(piece)-1, false), Continue)
				streams = append(streams, s)
			}
			copied := 0
			for _, s := range streams {
				if s.phase == phaseCopying {
					copied++
				}
			}
			expect(t, config+": answers that are copied", copied, maxHeldBytes/len(piece))
			for i, s := range streams {
				h.current = uint32(i + 1)
				s.OnDone()
			}
			h.ready(p)
			for n := range h.calls {
				h.respond(p, n, "200", committed)
			}
			expect(t, config+": bytes held", p.calls.heldBytes, 0)
		}
	}
}

// A manager that is away for long causes a few log lines, not one for each outcome.
func TestLostOutcomesCauseFewLogLines(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"commit_retry":{"max_queued":1}}`)
	lose := func(key string) {
		n := len(h.calls)
		s, _ := h.open(p, uint32(n+1), key)
		s.OnRequestHeaders(true)
		h.ready(p)
		h.respond(p, h.last(), "201", granted)
		h.current = uint32(n + 1)
		h.goAway(p)
		expect(t, "answer", s.OnResponseHeaders(true), Pause)
		h.ready(p)
		h.comeBack(p)
		h.current = uint32(n + 1)
		s.OnDone()
	}
	logged := func() (lines []string) {
		for _, line := range h.logs {
			if strings.Contains(line, "did not reach the ledger") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	for i := range 100 {
		lose("k" + strconv.Itoa(int(i)))
	}
	expect(t, "lines", len(logged()), 1)
	h.now += int64(logPeriod)
	lose("later") // the one that was kept goes out, and is back before its reply
	lose("still-later")
	expect(t, "lines later", len(logged()), 2)
	expect(t, "the others are counted", strings.Contains(logged()[1], "; 98 more since"), true)
	expect(t, "abandoned", h.values["oncegate_gate_outcomes_abandoned_total"], 101)
}
