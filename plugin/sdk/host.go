package sdk

import (
	"time"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/gate"
)

// host implements gate.Host with the SDK's functions.
type host struct {
	vm     *vm
	plugin uint32 // the plugin's context id
	queue  string // the name of the plugin's queue
	gate   *gate.Plugin
	// callHeaders are the headers of the callout answer that OnCallResponse runs for.
	callHeaders  [][2]string
	callTrailers bool // the answer has trailers
	// Calls reuse these lists and blocks.
	headers [][2]string
	pairs   []byte
	target  []byte
	message []byte
}

// Get implements cache.SharedData.
func (*host) Get(key string, room []byte) ([]byte, uint32, cache.Status) {
	return sharedData(key, room)
}

// Set implements cache.SharedData.
func (*host) Set(key string, value []byte, cas uint32) cache.Status {
	return sharedStatus(proxywasm.SetSharedData(key, value, cas))
}

func sharedStatus(err error) cache.Status {
	switch err {
	case nil:
		return cache.OK
	case types.ErrorStatusNotFound:
		return cache.NotFound
	case types.ErrorStatusCasMismatch:
		return cache.CASMismatch
	}
	return cache.Failed
}

// Now implements gate.Host.
func (*host) Now() int64 { return now() }

// Random implements gate.Host.
func (*host) Random(b []byte) bool { return random(b) }

// Env implements gate.Host.
func (*host) Env(name string) (string, bool) { return variable(environment(), name) }

// Log implements gate.Host.
func (*host) Log(level gate.Level, line string) {
	switch level {
	case gate.LevelDebug:
		proxywasm.LogDebug(line)
	case gate.LevelInfo:
		proxywasm.LogInfo(line)
	case gate.LevelWarn:
		proxywasm.LogWarn(line)
	default:
		proxywasm.LogError(line)
	}
}

// SetTick implements gate.Host.
func (*host) SetTick(period time.Duration) bool {
	return proxywasm.SetTickPeriodMilliSeconds(uint32(period/time.Millisecond)) == nil
}

// Done implements gate.Host.
func (h *host) Done() {
	h.leaveQueue()
	proxywasm.PluginDone()
}

// DefineMetric implements gate.Host. The kinds are numbered as in the ABI.
func (h *host) DefineMetric(kind gate.MetricKind, name string) gate.MetricID {
	id, ok := h.vm.metrics[name]
	if !ok {
		// Hosts number metrics from 4 on, with the kind in the low bits, so 0 is no metric.
		id = gate.MetricID(defineMetric(uint32(kind), name))
		h.vm.metrics[name] = id
	}
	return id
}

// AddMetric implements gate.Host.
func (*host) AddMetric(id gate.MetricID, delta int64) { addMetric(uint32(id), delta) }

// RecordMetric implements gate.Host.
func (*host) RecordMetric(id gate.MetricID, value uint64) { recordMetric(uint32(id), value) }

// RegisterQueue implements gate.Host. The host cannot remove a queue, so a new plugin
// reuses the queue of one that has ended, whatever its name.
func (h *host) RegisterQueue(name string) (uint32, bool) {
	if last := len(h.vm.queues) - 1; last >= 0 {
		name, h.vm.queues = h.vm.queues[last], h.vm.queues[:last]
	}
	id, err := proxywasm.RegisterSharedQueue(name)
	if err == nil {
		h.queue = name
	}
	return id, err == nil
}

// leaveQueue lets the VM's next plugin have the queue.
func (h *host) leaveQueue() {
	if h.queue != "" {
		h.vm.queues = append(h.vm.queues, h.queue)
		h.queue = ""
	}
}

// Enqueue implements gate.Host. The SDK cannot send an empty message.
func (*host) Enqueue(queue uint32, message []byte) bool {
	return len(message) > 0 && proxywasm.EnqueueSharedQueue(queue, message) == nil
}

// Dequeue implements gate.Host.
func (*host) Dequeue(queue uint32) ([]byte, bool) {
	message, err := proxywasm.DequeueSharedQueue(queue)
	return message, err == nil
}

// Call implements gate.Host.
func (h *host) Call(cluster string, headers [][2]string, body []byte, timeout time.Duration) (uint32, gate.CallStatus) {
	var id uint32
	id, err := proxywasm.DispatchHttpCall(cluster, headers, body, nil, uint32(timeout/time.Millisecond),
		func(count, size, trailers int) {
			h.callHeaders = h.callHeaders[:0]
			if count > 0 {
				// count is 0 if the answer broke off after its headers had come.
				h.callHeaders = parsePairs(h.callHeaders, headerPairs(mapCallHeaders))
			}
			h.callTrailers = trailers > 0
			h.gate.OnCallResponse(id, size)
			clear(h.callHeaders)
			h.callHeaders = h.callHeaders[:0]
		})
	switch err {
	case nil:
		return id, gate.CallSent
	case types.ErrorStatusBadArgument:
		// Of the arguments only the cluster can be wrong.
		return 0, gate.CallNoCluster
	}
	return 0, gate.CallRefused
}

// CallHeaders implements gate.Host.
func (h *host) CallHeaders() [][2]string { return h.callHeaders }

// CallTrailers implements gate.Host.
func (h *host) CallTrailers() [][2]string {
	if !h.callTrailers {
		return nil
	}
	return parsePairs(nil, headerPairs(mapCallTrailers))
}

// CallBody implements gate.Host.
func (*host) CallBody(size int) []byte {
	if size <= 0 {
		return nil
	}
	body, _ := proxywasm.GetHttpCallResponseBody(0, size) // nil if the host refused
	return body
}

// OpenStream implements gate.Host.
func (h *host) OpenStream(cluster, authority string, metadata [][2]string) (uint32, gate.CallStatus) {
	h.target = gate.AppendTarget(h.target[:0], cluster, authority)
	h.pairs = appendPairs(h.pairs[:0], metadata)
	id, status := grpcStream(h.target, api.StreamService, api.StreamMethod, h.pairs)
	switch {
	case status == 0:
		return id, gate.CallSent
	case status == statusBadArgument, status == statusParseFailure:
		return 0, gate.CallNoCluster
	}
	return 0, gate.CallRefused
}

// The host's statuses for a target that it does not know.
const (
	statusBadArgument  = 2
	statusParseFailure = 4
)

// SendStream implements gate.Host.
func (*host) SendStream(id uint32, message []byte) bool { return grpcSend(id, message) }

// CloseStream implements gate.Host.
func (*host) CloseStream(id uint32) { grpcCancel(id) }

// StreamMessage implements gate.Host.
func (h *host) StreamMessage(size int) []byte {
	if h.message == nil {
		h.message = make([]byte, 4<<10)
	}
	return grpcMessage(uint32(size), h.message)
}

// Select implements gate.Host.
func (h *host) Select(stream uint32) bool {
	if stream == 0 {
		stream = h.plugin
	}
	return proxywasm.SetEffectiveContext(stream) == nil
}

// report logs what the host did not do. It reports whether the host did it.
func report(err error, what, name string) bool {
	if err != nil {
		proxywasm.LogError("oncegate: cannot " + what + name + ": " + err.Error())
	}
	return err == nil
}

// RequestHeader implements gate.Host.
func (*host) RequestHeader(name string) (string, bool) {
	value, err := proxywasm.GetHttpRequestHeader(name)
	return value, err == nil
}

// RequestHeaders implements gate.Host.
func (h *host) RequestHeaders() [][2]string { return h.headerMap(mapRequestHeaders) }

// headerMap reads a header map into the reused list. It clears the list first, so that the
// list does not keep an old block alive.
func (h *host) headerMap(kind uint32) [][2]string {
	clear(h.headers)
	h.headers = parsePairs(h.headers[:0], headerPairs(kind))
	return h.headers
}

// RemoveRequestHeader implements gate.Host.
func (*host) RemoveRequestHeader(name string) {
	report(proxywasm.RemoveHttpRequestHeader(name), "remove request header ", name)
}

// RequestBody implements gate.Host.
func (*host) RequestBody(size int) []byte {
	body, _ := proxywasm.GetHttpRequestBody(0, size) // nil if the host refused
	return body
}

// PrependRequestBody implements gate.Host.
func (*host) PrependRequestBody(b []byte) bool { return proxywasm.PrependHttpRequestBody(b) == nil }

// ResponseHeaders implements gate.Host.
func (h *host) ResponseHeaders() [][2]string { return h.headerMap(mapResponseHeaders) }

// ResponseHeader implements gate.Host.
func (*host) ResponseHeader(name string) (string, bool) {
	value, err := proxywasm.GetHttpResponseHeader(name)
	return value, err == nil
}

// SetRequestHeader implements gate.Host.
func (*host) SetRequestHeader(name, value string) bool {
	return report(proxywasm.ReplaceHttpRequestHeader(name, value), "set request header ", name)
}

// SetResponseHeaders implements gate.Host.
func (*host) SetResponseHeaders(headers [][2]string) {
	report(proxywasm.ReplaceHttpResponseHeaders(headers), "set response headers", "")
}

// SetResponseHeader implements gate.Host.
func (*host) SetResponseHeader(name, value string) {
	report(proxywasm.ReplaceHttpResponseHeader(name, value), "set response header ", name)
}

// RemoveResponseHeader implements gate.Host.
func (*host) RemoveResponseHeader(name string) {
	report(proxywasm.RemoveHttpResponseHeader(name), "remove response header ", name)
}

// ResponseBody implements gate.Host.
func (*host) ResponseBody(size int) []byte {
	body, _ := proxywasm.GetHttpResponseBody(0, size) // nil if the host refused
	return body
}

// ReplaceResponseBody implements gate.Host.
func (*host) ReplaceResponseBody(b []byte) {
	report(proxywasm.ReplaceHttpResponseBody(b), "replace a response's body", "")
}

// ResponseTrailers implements gate.Host.
func (*host) ResponseTrailers() [][2]string {
	return parsePairs(nil, headerPairs(mapResponseTrailers))
}

// SetResponseTrailers implements gate.Host.
func (*host) SetResponseTrailers(trailers [][2]string) {
	report(proxywasm.ReplaceHttpResponseTrailers(trailers), "set response trailers", "")
}

// Property implements gate.Host.
func (*host) Property(path ...string) ([]byte, bool) {
	value, err := proxywasm.GetProperty(path)
	return value, err == nil
}

// SetProperty implements gate.Host. It ignores a refusal: the gate itself does not read
// these properties.
func (*host) SetProperty(name, value string) {
	setProperty(name, value)
}

// Reply implements gate.Host.
func (h *host) Reply(status, grpcStatus int, details string, headers [][2]string, body []byte) bool {
	h.pairs = appendPairs(h.pairs[:0], headers)
	return sendLocalResponse(status, grpcStatus, details, h.pairs, body)
}

// ResumeRequest implements gate.Host.
func (*host) ResumeRequest() bool { return proxywasm.ResumeHttpRequest() == nil }

// ResumeResponse implements gate.Host.
func (*host) ResumeResponse() bool { return proxywasm.ResumeHttpResponse() == nil }
