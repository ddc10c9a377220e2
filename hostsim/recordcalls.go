package hostsim

import (
	"fmt"
	"strings"
)

// recordingCalls records host calls on their way to the VM.
type recordingCalls struct {
	v   *vm
	rec *Recorder
}

func (r *recordingCalls) note(format string, args ...any) {
	r.rec.add(r.v.name, "  "+fmt.Sprintf(format, args...))
}

// ended notes a call that returns only its status.
func (r *recordingCalls) ended(st Status, format string, args ...any) Status {
	r.note(format+" = %v", append(args, st)...)
	return st
}

func (r *recordingCalls) Log(level LogLevel, message string) Status {
	return r.ended(r.v.Log(level, message), "log(%d, %s)", level, quote(message))
}

func (r *recordingCalls) GetProperty(path string) ([]byte, Status) {
	b, st := r.v.GetProperty(path)
	r.note("get_property(%s) = %v %s", strings.ReplaceAll(path, "\x00", "."), st, quote(b))
	return b, st
}

func (r *recordingCalls) SetProperty(path string, value []byte) Status {
	return r.ended(r.v.SetProperty(path, value), "set_property(%s, %s)", strings.ReplaceAll(path, "\x00", "."), quote(value))
}

func (r *recordingCalls) GetStatus() (uint32, string) {
	code, message := r.v.GetStatus()
	r.note("get_status() = %d %s", code, quote(message))
	return code, message
}

func (r *recordingCalls) CallForeignFunction(name string, arg []byte) ([]byte, Status) {
	b, st := r.v.CallForeignFunction(name, arg)
	r.note("call_foreign_function(%s, %s) = %v %s", name, quote(arg), st, quote(b))
	return b, st
}

func (r *recordingCalls) GetHeaderMapValue(t MapType, key string) (string, Status) {
	value, st := r.v.GetHeaderMapValue(t, key)
	r.note("get_header_map_value(%v, %s) = %v %s", t, key, st, quote(value))
	return value, st
}

func (r *recordingCalls) GetHeaderMapPairs(t MapType) (Headers, Status) {
	h, st := r.v.GetHeaderMapPairs(t)
	r.note("get_header_map_pairs(%v) = %v %s", t, st, h.transcript())
	return h, st
}

func (r *recordingCalls) GetHeaderMapSize(t MapType) (uint32, Status) {
	n, st := r.v.GetHeaderMapSize(t)
	r.note("get_header_map_size(%v) = %v %d", t, st, n)
	return n, st
}

func (r *recordingCalls) AddHeaderMapValue(t MapType, key, value string) Status {
	return r.ended(r.v.AddHeaderMapValue(t, key, value), "add_header_map_value(%v, %s, %s)", t, key, quote(value))
}

func (r *recordingCalls) ReplaceHeaderMapValue(t MapType, key, value string) Status {
	return r.ended(r.v.ReplaceHeaderMapValue(t, key, value), "replace_header_map_value(%v, %s, %s)", t, key, quote(value))
}

func (r *recordingCalls) RemoveHeaderMapValue(t MapType, key string) Status {
	return r.ended(r.v.RemoveHeaderMapValue(t, key), "remove_header_map_value(%v, %s)", t, key)
}

func (r *recordingCalls) SetHeaderMapPairs(t MapType, h Headers) Status {
	return r.ended(r.v.SetHeaderMapPairs(t, h), "set_header_map_pairs(%v, %s)", t, h.transcript())
}

func (r *recordingCalls) GetBufferBytes(t BufferType, start, length uint32) ([]byte, Status) {
	b, st := r.v.GetBufferBytes(t, start, length)
	r.note("get_buffer_bytes(%v, %d, %d) = %v %s", t, start, length, st, quote(b))
	return b, st
}

func (r *recordingCalls) GetBufferStatus(t BufferType) (uint32, Status) {
	n, st := r.v.GetBufferStatus(t)
	r.note("get_buffer_status(%v) = %v %d", t, st, n)
	return n, st
}

func (r *recordingCalls) SetBufferBytes(t BufferType, start, length uint32, value []byte) Status {
	return r.ended(r.v.SetBufferBytes(t, start, length, value), "set_buffer_bytes(%v, %d, %d, %s)", t, start, length, quote(value))
}

func (r *recordingCalls) ContinueStream(t StreamType) Status {
	return r.ended(r.v.ContinueStream(t), "continue_stream(%d)", t)
}

func (r *recordingCalls) CloseStream(t StreamType) Status {
	return r.ended(r.v.CloseStream(t), "close_stream(%d)", t)
}

func (r *recordingCalls) SendLocalResponse(code uint32, details string, body []byte, h Headers, grpcStatus int32) Status {
	return r.ended(r.v.SendLocalResponse(code, details, body, h, grpcStatus), "send_local_response(%d, %s, %s, %s, %d)", code, quote(details), quote(body), h.transcript(), grpcStatus)
}

func (r *recordingCalls) SetEffectiveContext(id uint32) Status {
	return r.ended(r.v.SetEffectiveContext(id), "set_effective_context(%d)", id)
}

func (r *recordingCalls) Done() Status {
	return r.ended(r.v.Done(), "done()")
}

func (r *recordingCalls) HTTPCall(cluster string, h Headers, body []byte, trailers Headers, timeoutMS uint32) (uint32, Status) {
	token, st := r.v.HTTPCall(cluster, h, body, trailers, timeoutMS)
	r.note("http_call(%s, %s, %s, %s, %d) = %v %d", cluster, h.transcript(), quote(body), trailers.transcript(), timeoutMS, st, token)
	return token, st
}

func (r *recordingCalls) GRPCStream(service []byte, serviceName, method string, metadata Headers) (uint32, Status) {
	token, st := r.v.GRPCStream(service, serviceName, method, metadata)
	r.note("grpc_stream(%s, %s, %s, %s) = %v %d", quote(service), serviceName, method, metadata.transcript(), st, token)
	return token, st
}

func (r *recordingCalls) GRPCSend(token uint32, message []byte, end bool) Status {
	return r.ended(r.v.GRPCSend(token, message, end), "grpc_send(%d, %s, %t)", token, quote(message), end)
}

func (r *recordingCalls) GRPCClose(token uint32) Status {
	return r.ended(r.v.GRPCClose(token), "grpc_close(%d)", token)
}

func (r *recordingCalls) GRPCCancel(token uint32) Status {
	return r.ended(r.v.GRPCCancel(token), "grpc_cancel(%d)", token)
}

func (r *recordingCalls) GetSharedData(key string) ([]byte, uint32, Status) {
	b, cas, st := r.v.GetSharedData(key)
	r.note("get_shared_data(%s) = %v %s cas %d", quote(key), st, quote(b), cas)
	return b, cas, st
}

func (r *recordingCalls) SetSharedData(key string, value []byte, cas uint32) Status {
	return r.ended(r.v.SetSharedData(key, value, cas), "set_shared_data(%s, %s, cas %d)", quote(key), quote(value), cas)
}

func (r *recordingCalls) RegisterSharedQueue(name string) (uint32, Status) {
	id, st := r.v.RegisterSharedQueue(name)
	r.note("register_shared_queue(%s) = %v %d", name, st, id)
	return id, st
}

func (r *recordingCalls) ResolveSharedQueue(vmID, name string) (uint32, Status) {
	id, st := r.v.ResolveSharedQueue(vmID, name)
	r.note("resolve_shared_queue(%s, %s) = %v %d", vmID, name, st, id)
	return id, st
}

func (r *recordingCalls) EnqueueSharedQueue(id uint32, item []byte) Status {
	return r.ended(r.v.EnqueueSharedQueue(id, item), "enqueue_shared_queue(%d, %s)", id, quote(item))
}

func (r *recordingCalls) DequeueSharedQueue(id uint32) ([]byte, Status) {
	b, st := r.v.DequeueSharedQueue(id)
	r.note("dequeue_shared_queue(%d) = %v %s", id, st, quote(b))
	return b, st
}

func (r *recordingCalls) DefineMetric(t MetricType, name string) (uint32, Status) {
	id, st := r.v.DefineMetric(t, name)
	r.note("define_metric(%d, %s) = %v %d", t, name, st, id)
	return id, st
}

func (r *recordingCalls) IncrementMetric(id uint32, offset int64) Status {
	return r.ended(r.v.IncrementMetric(id, offset), "increment_metric(%d, %d)", id, offset)
}

func (r *recordingCalls) RecordMetric(id uint32, value uint64) Status {
	return r.ended(r.v.RecordMetric(id, value), "record_metric(%d, %d)", id, value)
}

func (r *recordingCalls) GetMetric(id uint32) (uint64, Status) {
	n, st := r.v.GetMetric(id)
	r.note("get_metric(%d) = %v %d", id, st, n)
	return n, st
}

func (r *recordingCalls) SetTickPeriod(ms uint32) Status {
	return r.ended(r.v.SetTickPeriod(ms), "set_tick_period(%d)", ms)
}

func (r *recordingCalls) CurrentTime() uint64 {
	t := r.v.CurrentTime()
	r.note("current_time() = %d", t)
	return t
}

// Environ is not recorded, because a wasm guest's WASI calls are not either, and because values may be secrets.
func (r *recordingCalls) Environ() []string { return r.v.Environ() }
