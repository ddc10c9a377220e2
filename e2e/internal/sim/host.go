package sim

import (
	"encoding/binary"
	"regexp"
	"strings"
	"time"

	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/gate"
)

// The VM as gate.Host, with the semantics of Envoy's shared data and queues.

var _ gate.Host = (*vm)(nil)

// step counts a host call. The VM may trap in any of them.
func (v *vm) step() {
	if v.trapIn > 0 && v.inside {
		if v.trapIn--; v.trapIn == 0 {
			panic(trapped{})
		}
	}
}

func (v *vm) Get(key string, room []byte) ([]byte, uint32, cache.Status) {
	v.step()
	s, ok := v.p.data[key]
	if !ok {
		return nil, 0, cache.NotFound
	}
	return append(room[:0], s.value...), s.cas, cache.OK
}

// Set overwrites any value when cas is 0. It creates an absent key with any cas.
func (v *vm) Set(key string, value []byte, cas uint32) cache.Status {
	v.step()
	if s, ok := v.p.data[key]; ok && cas != 0 && cas != s.cas {
		return cache.CASMismatch
	}
	v.p.cas++
	v.p.data[strings.Clone(key)] = shared{append([]byte(nil), value...), v.p.cas}
	return cache.OK
}

func (v *vm) Now() int64 { return time.Now().Add(v.p.shift).UnixNano() }

// Env is never asked: the simulated gates have no token.
func (v *vm) Env(string) (string, bool) { return "", false }

func (v *vm) Random(b []byte) bool {
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], v.p.w.rnd.Uint64())
		copy(b[i:], word[:])
	}
	return true
}

// randomID are the marks of ledgers. They are no part of the timeline, which is the same for the same seed.
var randomID = regexp.MustCompile(`[0-9a-f]{32}\.[0-9.]+`)

func (v *vm) Log(level gate.Level, text string) {
	if level >= gate.LevelWarn {
		v.p.w.logf(v.name, "log: %s", randomID.ReplaceAllString(text, "..."))
	}
}

func (v *vm) SetTick(period time.Duration) bool {
	v.tickPeriod = period
	if v.slot >= 0 {
		v.nextTick(period)
	}
	return true
}

func (v *vm) Done() {
	if !v.draining {
		v.p.w.fail("%s says that it is done without having been asked", v.name)
	}
	if len(v.conns) > 0 {
		v.p.w.fail("%s ends, and has %d connections", v.name, len(v.conns))
	}
	v.p.w.logf(v.name, "has ended")
	v.finished = true
}

func (v *vm) DefineMetric(_ gate.MetricKind, name string) gate.MetricID {
	id, ok := v.p.metrics[name]
	if !ok {
		id = gate.MetricID(len(v.p.counts))
		v.p.metrics[strings.Clone(name)] = id
		v.p.counts = append(v.p.counts, 0)
	}
	return id
}

func (v *vm) AddMetric(id gate.MetricID, delta int64) {
	if id == 0 || delta == 0 {
		v.p.w.fail("%s changes metric %d by %d, which traps in Envoy", v.name, id, delta)
		return
	}
	v.p.counts[id] += delta
}

func (v *vm) RecordMetric(id gate.MetricID, value uint64) {
	if id != 0 {
		v.p.counts[id] = int64(value)
	}
}

func (v *vm) RegisterQueue(name string) (uint32, bool) {
	id, ok := v.p.byName[name]
	if !ok {
		id = uint32(len(v.p.byName) + 1)
		v.p.byName[strings.Clone(name)] = id
		v.p.queues[id] = &sharedQueue{}
	}
	v.p.queues[id].owner = v
	return id, true
}

func (v *vm) Enqueue(queue uint32, message []byte) bool {
	v.step()
	q := v.p.queues[queue]
	if q == nil {
		return false
	}
	q.items = append(q.items, append([]byte(nil), message...))
	owner, w := q.owner, v.p.w
	late := w.between(time.Microsecond, 300*time.Microsecond)
	if owner.busy < w.now() && w.adversary(Busy, 0.6) {
		owner.busy = w.now() + w.between(0, 40*time.Millisecond)
	}
	w.after(max(late, owner.busy-w.now()), func() { owner.ready(queue) })
	return true
}

func (v *vm) Dequeue(queue uint32) ([]byte, bool) {
	v.step()
	q := v.p.queues[queue]
	if q == nil || len(q.items) == 0 {
		return nil, false
	}
	item := q.items[0]
	q.items = q.items[1:]
	return item, true
}

func (v *vm) Call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	v.step()
	v.contextless("calls")
	if cluster != clusterInner && cluster != clusterRoute {
		v.p.w.fail("%s calls the cluster %s", v.name, cluster)
	}
	return v.carry(headers, body, timeout)
}

func (v *vm) CallHeaders() [][2]string {
	if v.reading == nil {
		return nil
	}
	return v.reading.headers
}

// CallTrailers: no answer has any here.
func (v *vm) CallTrailers() [][2]string { return nil }

func (v *vm) ReplaceResponseBody([]byte) {}

func (v *vm) ResponseTrailers() [][2]string { return nil }

func (v *vm) SetResponseTrailers([][2]string) {}

func (v *vm) CallBody(size int) []byte {
	if v.reading == nil {
		return nil
	}
	return clip(v.reading.body, size)
}

func clip(b []byte, size int) []byte {
	return append([]byte(nil), b[:min(size, len(b))]...)
}

func find(headers [][2]string, name string) (string, bool) {
	for _, h := range headers {
		if h[0] == name {
			return h[1], true
		}
	}
	return "", false
}

func (v *vm) Select(id uint32) bool {
	if id == 0 {
		v.current = nil
		return true
	}
	s := v.streams[id]
	if s == nil {
		return false
	}
	v.current = s
	return true
}

func (v *vm) RequestHeader(name string) (string, bool) { return find(v.RequestHeaders(), name) }

func (v *vm) RequestHeaders() [][2]string {
	if v.current == nil || v.current.request.headersOut {
		return nil
	}
	return v.current.request.headers
}

func (v *vm) RequestBody(size int) []byte {
	if v.current == nil {
		return nil
	}
	return clip(v.current.request.piece, size)
}

func (v *vm) PrependRequestBody(b []byte) bool {
	if v.current == nil {
		return false
	}
	h := &v.current.request
	h.piece = append(append([]byte(nil), b...), h.piece...)
	return true
}

func (v *vm) ResponseHeaders() [][2]string {
	if v.current == nil {
		return nil
	}
	return v.current.response.headers
}

func (v *vm) ResponseHeader(name string) (string, bool) { return find(v.ResponseHeaders(), name) }

func (v *vm) SetRequestHeader(string, string) bool { return false }

func (v *vm) SetResponseHeaders([][2]string) {}

func (v *vm) SetResponseHeader(name, value string) {
	v.RemoveResponseHeader(name)
	if v.current != nil {
		h := &v.current.response
		h.headers = append(h.headers, [2]string{strings.Clone(name), strings.Clone(value)})
	}
}

// The simulated routes tell upstream nothing.
func (*vm) RemoveRequestHeader(string) {}

func (v *vm) RemoveResponseHeader(name string) {
	if v.current == nil {
		return
	}
	h := &v.current.response
	var kept [][2]string
	for _, f := range h.headers {
		if f[0] != name {
			kept = append(kept, f)
		}
	}
	h.headers = kept
}

func (v *vm) ResponseBody(size int) []byte {
	if v.current == nil {
		return nil
	}
	return clip(v.current.response.piece, size)
}

func (v *vm) Property(path ...string) ([]byte, bool) {
	s := v.current
	if s == nil {
		return nil, false
	}
	number := func(n uint64) ([]byte, bool) { return binary.LittleEndian.AppendUint64(nil, n), true }
	switch strings.Join(path, ".") {
	case "response.code_details":
		return []byte(s.details), true
	case "response.flags":
		return number(s.flags)
	case "response.code":
		return number(uint64(s.code))
	case "upstream.request_attempt_count":
		return number(1)
	case "xds.cluster_name":
		return []byte(clusterRoute), true
	case "upstream.address":
		return []byte(s.address), s.address != ""
	case "request.protocol":
		return []byte("HTTP/2"), true
	case "request.total_size":
		return number(uint64(s.received))
	}
	return nil, false
}

func (v *vm) SetProperty(name, value string) {
	if s := v.current; s != nil && name == "oncegate.status" {
		s.mark = strings.Clone(value)
	}
}

func (v *vm) Reply(status, _ int, details string, headers [][2]string, body []byte) bool {
	v.step()
	s := v.current
	if s == nil {
		v.p.w.fail("%s answers no stream", v.name)
		return false
	}
	list := [][2]string{}
	for _, h := range headers {
		list = append(list, [2]string{strings.Clone(h[0]), strings.Clone(h[1])})
	}
	text, content := strings.Clone(details), append([]byte(nil), body...)
	v.deferred = append(v.deferred, func() { s.localReply(status, text, 0, list, content) })
	return true
}

func (v *vm) ResumeRequest() bool {
	v.step()
	s := v.current
	if s == nil {
		v.p.w.fail("%s resumes no stream", v.name)
		return false
	}
	v.deferred = append(v.deferred, s.request.resume)
	return true
}

func (v *vm) ResumeResponse() bool {
	v.step()
	s := v.current
	if s == nil {
		v.p.w.fail("%s resumes no stream", v.name)
		return false
	}
	v.deferred = append(v.deferred, s.response.resume)
	return true
}
