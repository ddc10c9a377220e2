// Package nativeguest runs the native build of the gate on hostsim. The same cases
// can then drive it and the wasm module, and a debugger and the race detector work.
// Only tests use it.
package nativeguest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/gate"
)

// Source returns the native gate as a guest.
func Source() hostsim.Source { return hostsim.Native(New) }

// New returns one VM's guest.
func New(calls hostsim.HostCalls) hostsim.Guest {
	return &guest{
		calls:   calls,
		plugins: make(map[uint32]*host),
		streams: make(map[uint32]*gate.Stream),
	}
}

type guest struct {
	hostsim.DefaultGuest
	calls   hostsim.HostCalls
	plugins map[uint32]*host
	streams map[uint32]*gate.Stream
}

// OnContextCreate implements hostsim.Guest.
func (g *guest) OnContextCreate(id, parent uint32) error {
	if parent == 0 {
		h := &host{HostCalls: g.calls, plugin: id}
		h.gate = gate.New(h)
		g.plugins[id] = h
		return nil
	}
	p := g.plugins[parent]
	if p == nil {
		return fmt.Errorf("nativeguest: stream %d of unknown plugin %d", id, parent)
	}
	g.streams[id] = p.gate.NewStream(id)
	return nil
}

// OnConfigure implements hostsim.Guest.
func (g *guest) OnConfigure(id uint32, size int) (bool, error) {
	var configuration []byte
	if size > 0 {
		var status hostsim.Status
		if configuration, status = g.calls.GetBufferBytes(hostsim.BufferPluginConfig, 0, uint32(size)); status != hostsim.StatusOK {
			return false, fmt.Errorf("nativeguest: configuration: %v", status)
		}
	}
	if err := g.plugins[id].gate.Start(configuration); err != nil {
		g.calls.Log(hostsim.LogCritical, "oncegate: configuration refused: "+err.Error())
		return false, nil
	}
	return true, nil
}

// OnTick implements hostsim.Guest.
func (g *guest) OnTick(id uint32) error {
	g.plugins[id].gate.OnTick()
	return nil
}

// OnQueueReady implements hostsim.Guest.
func (g *guest) OnQueueReady(id, queue uint32) error {
	g.plugins[id].gate.OnQueueReady(queue)
	return nil
}

// OnHTTPCallResponse implements hostsim.Guest.
func (g *guest) OnHTTPCallResponse(id, token uint32, headers, bodySize, trailers int) error {
	p := g.plugins[id]
	p.answered, p.trailers = headers > 0, trailers > 0
	p.gate.OnCallResponse(token, bodySize)
	p.answered = false
	return nil
}

// OnGRPCReceive implements hostsim.Guest.
func (g *guest) OnGRPCReceive(id, token uint32, size int) error {
	g.plugins[id].gate.OnStreamMessage(token, size)
	return nil
}

// OnGRPCClose implements hostsim.Guest.
func (g *guest) OnGRPCClose(id, token, status uint32) error {
	g.plugins[id].gate.OnStreamClose(token, int(status))
	return nil
}

// headersAction is the action for headers and trailers.
func headersAction(a gate.Action) hostsim.Action {
	switch a {
	case gate.Continue:
		return hostsim.ActionContinue
	case gate.PauseAll:
		return 4
	}
	return hostsim.ActionPause
}

func bodyAction(a gate.Action) hostsim.Action {
	switch a {
	case gate.Continue:
		return hostsim.ActionContinue
	case gate.Collect:
		return 1
	case gate.Drop:
		return 3
	}
	return 2
}

// OnRequestHeaders implements hostsim.Guest.
func (g *guest) OnRequestHeaders(id uint32, _ int, end bool) (hostsim.Action, error) {
	return headersAction(g.streams[id].OnRequestHeaders(end)), nil
}

// OnRequestBody implements hostsim.Guest.
func (g *guest) OnRequestBody(id uint32, size int, end bool) (hostsim.Action, error) {
	return bodyAction(g.streams[id].OnRequestBody(size, end)), nil
}

// OnRequestTrailers implements hostsim.Guest.
func (g *guest) OnRequestTrailers(id uint32, _ int) (hostsim.Action, error) {
	return headersAction(g.streams[id].OnRequestTrailers()), nil
}

// OnResponseHeaders implements hostsim.Guest.
func (g *guest) OnResponseHeaders(id uint32, _ int, end bool) (hostsim.Action, error) {
	return headersAction(g.streams[id].OnResponseHeaders(end)), nil
}

// OnResponseBody implements hostsim.Guest.
func (g *guest) OnResponseBody(id uint32, size int, end bool) (hostsim.Action, error) {
	return bodyAction(g.streams[id].OnResponseBody(size, end)), nil
}

// OnResponseTrailers implements hostsim.Guest.
func (g *guest) OnResponseTrailers(id uint32, _ int) (hostsim.Action, error) {
	return headersAction(g.streams[id].OnResponseTrailers()), nil
}

// OnLog implements hostsim.Guest: the SDK ends streams here.
func (g *guest) OnLog(id uint32) error {
	if s := g.streams[id]; s != nil {
		s.OnDone()
	}
	return nil
}

// OnDone implements hostsim.Guest.
func (g *guest) OnDone(id uint32) (bool, error) {
	if p := g.plugins[id]; p != nil {
		return p.gate.Shutdown(), nil
	}
	return true, nil
}

// OnDelete implements hostsim.Guest.
func (g *guest) OnDelete(id uint32) error {
	delete(g.plugins, id)
	delete(g.streams, id)
	return nil
}

// host implements gate.Host over the host's calls.
type host struct {
	hostsim.HostCalls
	gate   *gate.Plugin
	plugin uint32
	// The current callout answer has headers, and has trailers.
	answered, trailers bool
	message            []byte // the current one of a gRPC stream
}

func ok(s hostsim.Status) bool { return s == hostsim.StatusOK }

func headersOf(pairs [][2]string) hostsim.Headers {
	h := make(hostsim.Headers, len(pairs))
	for i := range pairs {
		h[i] = pairs[i]
	}
	return h
}

func (h *host) Get(key string, room []byte) ([]byte, uint32, cache.Status) {
	value, cas, status := h.GetSharedData(strings.Clone(key))
	// The host's slice is the stored value, which other threads read. The cache changes what it gets in place.
	return append(room[:0], value...), cas, shared(status)
}

func (h *host) Set(key string, value []byte, cas uint32) cache.Status {
	// The host keeps the key in a map, but it is valid only during this call.
	return shared(h.SetSharedData(strings.Clone(key), value, cas))
}

func shared(s hostsim.Status) cache.Status {
	switch s {
	case hostsim.StatusOK:
		return cache.OK
	case hostsim.StatusNotFound:
		return cache.NotFound
	case hostsim.StatusCasMismatch:
		return cache.CASMismatch
	}
	return cache.Failed
}

func (h *host) Now() int64 { return int64(h.CurrentTime()) }

func (h *host) Random(b []byte) bool {
	_, err := rand.Read(b)
	return err == nil
}

func (h *host) Env(name string) (string, bool) {
	for _, variable := range h.Environ() {
		if n, value, _ := strings.Cut(variable, "="); n == name {
			return value, true
		}
	}
	return "", false
}

func (h *host) Log(level gate.Level, line string) {
	h.HostCalls.Log(hostsim.LogLevel(level)+hostsim.LogDebug, line)
}

func (h *host) SetTick(period time.Duration) bool {
	return ok(h.SetTickPeriod(uint32(period / time.Millisecond)))
}

func (h *host) Done() { h.HostCalls.Done() }

func (h *host) DefineMetric(kind gate.MetricKind, name string) gate.MetricID {
	id, status := h.HostCalls.DefineMetric(hostsim.MetricType(kind), name)
	if !ok(status) {
		return 0
	}
	return gate.MetricID(id)
}

// AddMetric panics if the host refuses the call. The gate promises never to make
// one, because in the SDK's own functions it would end the VM.
func (h *host) AddMetric(id gate.MetricID, delta int64) {
	if status := h.IncrementMetric(uint32(id), delta); !ok(status) {
		panic(fmt.Sprintf("metric %d by %d: %v", id, delta, status))
	}
}

func (h *host) RecordMetric(id gate.MetricID, value uint64) {
	if status := h.HostCalls.RecordMetric(uint32(id), value); !ok(status) {
		panic(fmt.Sprintf("metric %d = %d: %v", id, value, status))
	}
}

func (h *host) RegisterQueue(name string) (uint32, bool) {
	id, status := h.RegisterSharedQueue(name)
	return id, ok(status)
}

func (h *host) Enqueue(queue uint32, message []byte) bool {
	return len(message) > 0 && ok(h.EnqueueSharedQueue(queue, message))
}

func (h *host) Dequeue(queue uint32) ([]byte, bool) {
	message, status := h.DequeueSharedQueue(queue)
	return message, ok(status)
}

func (h *host) Call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	id, status := h.HTTPCall(cluster, headersOf(headers), body, nil, uint32(timeout/time.Millisecond))
	switch status {
	case hostsim.StatusOK:
		return id, gate.CallSent
	case hostsim.StatusBadArgument:
		return 0, gate.CallNoCluster
	}
	return 0, gate.CallRefused
}

func (h *host) CallHeaders() [][2]string {
	if !h.answered {
		return nil
	}
	return h.pairs(hostsim.MapHTTPCallHeaders)
}

func (h *host) CallTrailers() [][2]string {
	if !h.trailers {
		return nil
	}
	return h.pairs(hostsim.MapHTTPCallTrailers)
}

func (h *host) CallBody(size int) []byte {
	return bytes.Clone(h.buffer(hostsim.BufferHTTPCallBody, size))
}

func (h *host) buffer(t hostsim.BufferType, size int) []byte {
	if size <= 0 {
		return nil
	}
	b, status := h.GetBufferBytes(t, 0, uint32(size))
	if !ok(status) {
		return nil
	}
	return b
}

func (h *host) OpenStream(cluster, authority string, metadata [][2]string) (uint32, gate.CallStatus) {
	id, status := h.GRPCStream(gate.AppendTarget(nil, cluster, authority), api.StreamService, api.StreamMethod, headersOf(metadata))
	switch status {
	case hostsim.StatusOK:
		return id, gate.CallSent
	case hostsim.StatusBadArgument, hostsim.StatusParseFailure:
		return 0, gate.CallNoCluster
	}
	return 0, gate.CallRefused
}

func (h *host) SendStream(id uint32, message []byte) bool { return ok(h.GRPCSend(id, message, false)) }

func (h *host) CloseStream(id uint32) { h.GRPCCancel(id) }

// StreamMessage gives all messages the same memory, as the wasm module does.
func (h *host) StreamMessage(size int) []byte {
	h.message = append(h.message[:0], h.buffer(hostsim.BufferGRPCMessage, size)...)
	return h.message
}

func (h *host) Select(stream uint32) bool {
	if stream == 0 {
		stream = h.plugin
	}
	return ok(h.SetEffectiveContext(stream))
}

func (h *host) RequestHeader(name string) (string, bool) {
	value, status := h.GetHeaderMapValue(hostsim.MapRequestHeaders, name)
	return value, ok(status)
}

func (h *host) RequestHeaders() [][2]string { return h.pairs(hostsim.MapRequestHeaders) }

func (h *host) pairs(t hostsim.MapType) [][2]string {
	list, status := h.GetHeaderMapPairs(t)
	if !ok(status) {
		return nil
	}
	out := make([][2]string, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

func (h *host) RemoveRequestHeader(name string) {
	h.RemoveHeaderMapValue(hostsim.MapRequestHeaders, name)
}

func (h *host) RequestBody(size int) []byte {
	return bytes.Clone(h.buffer(hostsim.BufferRequestBody, size))
}

func (h *host) PrependRequestBody(b []byte) bool {
	return ok(h.SetBufferBytes(hostsim.BufferRequestBody, 0, 0, b))
}

func (h *host) ResponseHeaders() [][2]string { return h.pairs(hostsim.MapResponseHeaders) }

func (h *host) ResponseHeader(name string) (string, bool) {
	value, status := h.GetHeaderMapValue(hostsim.MapResponseHeaders, name)
	return value, ok(status)
}

func (h *host) SetRequestHeader(name, value string) bool {
	return ok(h.ReplaceHeaderMapValue(hostsim.MapRequestHeaders, name, value))
}

func (h *host) SetResponseHeaders(headers [][2]string) {
	h.SetHeaderMapPairs(hostsim.MapResponseHeaders, headersOf(headers))
}

func (h *host) SetResponseHeader(name, value string) {
	h.ReplaceHeaderMapValue(hostsim.MapResponseHeaders, name, value)
}

func (h *host) RemoveResponseHeader(name string) {
	h.RemoveHeaderMapValue(hostsim.MapResponseHeaders, name)
}

func (h *host) ResponseBody(size int) []byte {
	return bytes.Clone(h.buffer(hostsim.BufferResponseBody, size))
}

func (h *host) ReplaceResponseBody(b []byte) {
	h.SetBufferBytes(hostsim.BufferResponseBody, 0, math.MaxInt32, b)
}

func (h *host) ResponseTrailers() [][2]string { return h.pairs(hostsim.MapResponseTrailers) }

func (h *host) SetResponseTrailers(trailers [][2]string) {
	h.SetHeaderMapPairs(hostsim.MapResponseTrailers, headersOf(trailers))
}

func (h *host) Property(path ...string) ([]byte, bool) {
	value, status := h.GetProperty(strings.Join(path, "\x00"))
	return value, ok(status)
}

func (h *host) SetProperty(name, value string) { h.HostCalls.SetProperty(name, []byte(value)) }

func (h *host) Reply(status, grpcStatus int, details string, headers [][2]string, body []byte) bool {
	return ok(h.SendLocalResponse(uint32(status), details, body, headersOf(headers), int32(grpcStatus)))
}

func (h *host) ResumeRequest() bool { return ok(h.ContinueStream(hostsim.StreamTypeRequest)) }

func (h *host) ResumeResponse() bool { return ok(h.ContinueStream(hostsim.StreamTypeResponse)) }
