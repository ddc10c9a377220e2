package gate

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// fakeHost is a Host that a test controls. Unlike a real host it refuses anything on
// demand, and loses messages and answers.
type fakeHost struct {
	refusals int    // of streams
	ledger   string // the id in the manager's answers; empty: none
	t        *testing.T
	now      int64
	seed     byte

	env  map[string]string
	data map[string]fakeValue
	cas  uint32

	queues    map[uint32][][]byte
	noEnqueue bool
	noQueue   bool
	noRandom  bool
	noTick    bool
	noData    bool
	noWrite   bool // every race for shared data is lost
	noResume  bool
	noReply   bool
	noBody    bool // a body cannot be changed
	protocol  string

	calls       []fakeCall
	refuse      bool            // no connection can be opened
	deaf        uint32          // this connection takes no messages; 0: none
	away        map[string]bool // clusters to which none can be opened
	conns       []string        // the clusters of the connections; "": it is closed
	metadata    []map[string]string
	message     []byte   // that OnStreamMessage runs for
	pings       []uint32 // the connections with a ping that has no answer; a tick answers them
	still       bool     // the managers answer no pings
	problem     api.Code // in the manager's replies
	retryAfter  int      // in the manager's replies
	fullHeaders [][2]string

	metrics map[MetricID]string
	values  map[string]int64
	logs    []string
	done    int

	current uint32
	// The running callback is about a message. It has opened or closed a connection.
	receiving, changed bool
	// Replies and resumes of the running callback of the plugin context, and the most of
	// them in any.
	acts, mostActs int

	gone    map[uint32]bool
	streams map[uint32]*fakeStream
}

type fakeValue struct {
	value []byte
	cas   uint32
}

type fakeCall struct {
	cluster, path string
	body          []byte
	conn          uint32
	number        uint64
	timeout       time.Duration // of an upstream call
}

type fakeStream struct {
	request, response [][2]string
	trailers          [][2]string
	requestBody       []byte // the piece that a callback is for
	responseBody      []byte
	properties        map[string][]byte
	replies           []fakeReply
	resumedRequest    int
	resumedResponse   int
}

type fakeReply struct {
	status  int
	headers [][2]string
	body    string
}

func newFakeHost(t *testing.T) *fakeHost {
	return &fakeHost{
		t: t, now: 1, data: map[string]fakeValue{}, queues: map[uint32][][]byte{},
		metrics: map[MetricID]string{}, values: map[string]int64{}, gone: map[uint32]bool{}, streams: map[uint32]*fakeStream{},
	}
}

// started returns a plugin that has started.
func started(t *testing.T, h *fakeHost, config string) *Plugin {
	t.Helper()
	p := New(h)
	if err := p.Start([]byte(config)); err != nil {
		t.Fatalf("Start: %v", err)
	}
	return p
}

// open makes a stream with a key whose request headers are about to be seen.
func (h *fakeHost) open(p *Plugin, id uint32, key string) (*Stream, *fakeStream) {
	f := &fakeStream{
		request:    [][2]string{{":method", "POST"}, {":path", "/p"}, {":authority", "h"}, {"authorization", "Bearer a"}, {"idempotency-key", key}},
		response:   [][2]string{{":status", "200"}},
		properties: map[string][]byte{"response.code_details": []byte("via_upstream")},
	}
	h.streams[id] = f
	h.current = id
	return p.NewStream(id), f
}

// begin begins a callback of the plugin context.
func (h *fakeHost) begin() { h.current, h.acts, h.changed, h.receiving = 0, 0, false, false }

// ready delivers the queue callback that a kick asked for, if any.
func (h *fakeHost) ready(p *Plugin) {
	if len(h.queues[p.queue]) > 0 {
		h.begin()
		p.OnQueueReady(p.queue)
	}
}

// tick is a tick of the host.
func (h *fakeHost) tick(p *Plugin) {
	pings := h.pings
	h.pings = nil
	for _, conn := range pings {
		if h.still || h.conns[conn-1] == "" {
			continue
		}
		h.begin()
		h.message = api.AppendStreamReply(nil, pingNumber, 200, 0, "", nil)
		h.receiving = true
		p.OnStreamMessage(conn, len(h.message))
	}
	h.begin()
	p.OnTick()
}

// act counts a reply or a resume.
func (h *fakeHost) act() {
	h.acts++
	h.mostActs = max(h.mostActs, h.acts)
}

// run brings a request to upstream.
func (h *fakeHost) run(p *Plugin, id uint32, key string) (*Stream, *fakeStream) {
	s, f := h.open(p, id, key)
	s.OnRequestHeaders(true)
	h.ready(p)
	h.respond(p, h.last(), "201", granted)
	h.current = id
	return s, f
}

// ticks lets time pass.
func (h *fakeHost) ticks(p *Plugin, d time.Duration) {
	for range d / tickPeriod {
		h.now += int64(tickPeriod)
		h.tick(p)
		h.ready(p)
	}
}

func (h *fakeHost) stream() *fakeStream { return h.streams[h.current] }

func (h *fakeHost) Get(key string, room []byte) ([]byte, uint32, cache.Status) {
	if h.noData {
		return nil, 0, cache.Failed
	}
	v, ok := h.data[key]
	if !ok {
		return nil, 0, cache.NotFound
	}
	return append(room[:0], v.value...), v.cas, cache.OK
}

func (h *fakeHost) Set(key string, value []byte, cas uint32) cache.Status {
	if h.noData {
		return cache.Failed
	}
	if v, ok := h.data[key]; ok && cas != 0 && cas != v.cas {
		return cache.CASMismatch
	}
	if h.noWrite {
		return cache.CASMismatch
	}
	h.cas++
	h.data[strings.Clone(key)] = fakeValue{append([]byte(nil), value...), h.cas}
	return cache.OK
}

func (h *fakeHost) Now() int64 { return h.now }

func (h *fakeHost) Random(b []byte) bool {
	h.seed++
	for i := range b {
		b[i] = h.seed
	}
	return !h.noRandom
}

func (h *fakeHost) Env(name string) (string, bool) {
	value, ok := h.env[name]
	return value, ok
}

func (h *fakeHost) Log(_ Level, line string) { h.logs = append(h.logs, line) }

func (h *fakeHost) SetTick(time.Duration) bool { return !h.noTick }

func (h *fakeHost) Done() { h.done++ }

func (h *fakeHost) DefineMetric(_ MetricKind, name string) MetricID {
	id := MetricID(len(h.metrics) + 1)
	h.metrics[id] = name
	return id
}

func (h *fakeHost) AddMetric(id MetricID, delta int64) {
	if id == 0 || delta == 0 {
		h.t.Errorf("metric %d by %d: a host refuses that", id, delta)
	}
	h.values[h.metrics[id]] += delta
}

func (h *fakeHost) RecordMetric(id MetricID, value uint64) {
	if id == 0 {
		h.t.Error("undefined metric")
	}
	h.values[h.metrics[id]] = int64(value)
}

func (h *fakeHost) RegisterQueue(string) (uint32, bool) {
	h.queues[7] = nil
	return 7, !h.noQueue
}

func (h *fakeHost) Enqueue(queue uint32, message []byte) bool {
	if h.noEnqueue {
		return false
	}
	h.queues[queue] = append(h.queues[queue], append([]byte(nil), message...))
	return true
}

func (h *fakeHost) Dequeue(queue uint32) ([]byte, bool) {
	q := h.queues[queue]
	if len(q) == 0 {
		return nil, false
	}
	h.queues[queue] = q[1:]
	return q[0], true
}

func (h *fakeHost) Call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, CallStatus) {
	if h.current != 0 {
		h.t.Error("a call from a stream's context: its answer may be lost")
	}
	path, _ := fields.Value(headers, ":path")
	h.calls = append(h.calls, fakeCall{cluster: cluster, path: strings.Clone(path), body: bytes.Clone(body), timeout: timeout})
	return uint32(len(h.calls) - 1), CallSent
}

// paths are those of the calls over HTTP.
var paths = map[api.Op]string{
	api.OpReserve: api.PathReserve, api.OpCommit: api.PathCommit, api.OpReject: api.PathReject, api.OpRelease: api.PathRelease,
	api.OpRenew: api.PathRenew, api.OpUnknown: api.PathUnknown, api.OpLookUp: api.PathLookUp,
}

func (h *fakeHost) CallHeaders() [][2]string { return h.fullHeaders }

func (h *fakeHost) CallTrailers() [][2]string { return nil }

func (h *fakeHost) ReplaceResponseBody(b []byte) { h.stream().responseBody = b }

func (h *fakeHost) ResponseTrailers() [][2]string { return h.stream().trailers }

func (h *fakeHost) SetResponseTrailers(trailers [][2]string) { h.stream().trailers = trailers }

func (h *fakeHost) CallBody(int) []byte { return nil }

func (h *fakeHost) Select(id uint32) bool {
	if h.gone[id] {
		return false
	}
	h.current = id
	return true
}

func (h *fakeHost) RequestHeader(name string) (string, bool) {
	return fields.Value(h.stream().request, name)
}

func (h *fakeHost) RequestHeaders() [][2]string { return h.stream().request }

func (h *fakeHost) RequestBody(size int) []byte { return piece(h.stream().requestBody, size) }

func (h *fakeHost) PrependRequestBody(b []byte) bool {
	f := h.stream()
	f.requestBody = append(append([]byte(nil), b...), f.requestBody...)
	return !h.noBody
}

// piece is a copy of the first bytes, nil when there are not so many.
func piece(b []byte, size int) []byte {
	if size > len(b) {
		return nil
	}
	return append([]byte(nil), b[:size]...)
}

func (h *fakeHost) ResponseHeaders() [][2]string { return h.stream().response }

func (h *fakeHost) ResponseHeader(name string) (string, bool) {
	return fields.Value(h.stream().response, name)
}

func (h *fakeHost) SetRequestHeader(name, value string) bool {
	h.stream().request = append(h.stream().request, [2]string{name, value})
	return !h.noBody
}

func (h *fakeHost) SetResponseHeaders(headers [][2]string) { h.stream().response = headers }

func (h *fakeHost) SetResponseHeader(name, value string) {
	h.stream().response = append(h.stream().response, [2]string{name, value})
}

func (h *fakeHost) RemoveResponseHeader(string) {}

func (h *fakeHost) RemoveRequestHeader(string) {}

func (h *fakeHost) ResponseBody(size int) []byte { return piece(h.stream().responseBody, size) }

func (h *fakeHost) Property(path ...string) ([]byte, bool) {
	if path[0] == "request" && path[1] == "protocol" {
		return []byte(h.protocol), true
	}
	v, ok := h.stream().properties[path[0]+"."+path[1]]
	return v, ok
}

func (h *fakeHost) SetProperty(name, value string) {
	if value == "" {
		h.t.Errorf("property %s without a value", name)
	}
	if f := h.stream(); f != nil {
		f.properties[name] = []byte(value)
	}
}

func (h *fakeHost) Reply(status, _ int, details string, headers [][2]string, body []byte) bool {
	if h.noReply {
		return false
	}
	h.act()
	f := h.stream()
	f.replies = append(f.replies, fakeReply{status, append([][2]string(nil), headers...), string(body)})
	return true
}

func (h *fakeHost) ResumeRequest() bool {
	h.act()
	h.stream().resumedRequest++
	return !h.noResume
}

func (h *fakeHost) ResumeResponse() bool {
	h.act()
	h.stream().resumedResponse++
	return !h.noResume
}

// flags encodes the property response.flags.
func flags(bits uint64) []byte { return binary.LittleEndian.AppendUint64(nil, bits) }
