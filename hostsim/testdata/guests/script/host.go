package main

import (
	"encoding/binary"
	"unsafe"
)

type host struct{}

// The imports take pointers as the ABI does: data and length, or where to put a
// result.

//go:wasmimport env proxy_log
func proxyLog(level uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_property
func proxyGetProperty(path unsafe.Pointer, pathSize uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_property
func proxySetProperty(path unsafe.Pointer, pathSize uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_status
func proxyGetStatus(code, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_call_foreign_function
func proxyForeign(name unsafe.Pointer, nameSize uint32, arg unsafe.Pointer, argSize uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_value
func proxyGetMapValue(m uint32, key unsafe.Pointer, keySize uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetMapPairs(m uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_size
func proxyGetMapSize(m uint32, size unsafe.Pointer) uint32

//go:wasmimport env proxy_add_header_map_value
func proxyAddMapValue(m uint32, key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport env proxy_replace_header_map_value
func proxyReplaceMapValue(m uint32, key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport env proxy_remove_header_map_value
func proxyRemoveMapValue(m uint32, key unsafe.Pointer, keySize uint32) uint32

//go:wasmimport env proxy_set_header_map_pairs
func proxySetMapPairs(m uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func proxyGetBuffer(b, start, length uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_get_buffer_status
func proxyBufferStatus(b uint32, size, flags unsafe.Pointer) uint32

//go:wasmimport env proxy_set_buffer_bytes
func proxySetBuffer(b, start, length uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_continue_stream
func proxyContinue(t uint32) uint32

//go:wasmimport env proxy_close_stream
func proxyClose(t uint32) uint32

//go:wasmimport env proxy_send_local_response
func proxyReply(code uint32, details unsafe.Pointer, detailsSize uint32, body unsafe.Pointer, bodySize uint32, headers unsafe.Pointer, headersSize uint32, grpc int32) uint32

//go:wasmimport env proxy_set_effective_context
func proxyEffective(id uint32) uint32

//go:wasmimport env proxy_done
func proxyDone() uint32

//go:wasmimport env proxy_http_call
func proxyCall(cluster unsafe.Pointer, clusterSize uint32, headers unsafe.Pointer, headersSize uint32, body unsafe.Pointer, bodySize uint32, trailers unsafe.Pointer, trailersSize, timeout uint32, token unsafe.Pointer) uint32

//go:wasmimport env proxy_grpc_stream
func proxyGRPCStream(service unsafe.Pointer, serviceSize uint32, name unsafe.Pointer, nameSize uint32, method unsafe.Pointer, methodSize uint32, metadata unsafe.Pointer, metadataSize uint32, token unsafe.Pointer) uint32

//go:wasmimport env proxy_grpc_send
func proxyGRPCSend(token uint32, data unsafe.Pointer, size, end uint32) uint32

//go:wasmimport env proxy_grpc_close
func proxyGRPCClose(token uint32) uint32

//go:wasmimport env proxy_grpc_cancel
func proxyGRPCCancel(token uint32) uint32

//go:wasmimport env proxy_get_shared_data
func proxySharedGet(key unsafe.Pointer, keySize uint32, data, size, cas unsafe.Pointer) uint32

//go:wasmimport env proxy_set_shared_data
func proxySharedSet(key unsafe.Pointer, keySize uint32, data unsafe.Pointer, size, cas uint32) uint32

//go:wasmimport env proxy_register_shared_queue
func proxyQueueRegister(name unsafe.Pointer, nameSize uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_resolve_shared_queue
func proxyQueueResolve(vm unsafe.Pointer, vmSize uint32, name unsafe.Pointer, nameSize uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_enqueue_shared_queue
func proxyEnqueue(id uint32, data unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_dequeue_shared_queue
func proxyDequeue(id uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_define_metric
func proxyDefine(t uint32, name unsafe.Pointer, nameSize uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_increment_metric
func proxyIncrement(id uint32, offset int64) uint32

//go:wasmimport env proxy_record_metric
func proxyRecord(id uint32, value uint64) uint32

//go:wasmimport env proxy_get_metric
func proxyMetric(id uint32, value unsafe.Pointer) uint32

//go:wasmimport env proxy_set_tick_period_milliseconds
func proxyTick(ms uint32) uint32

//go:wasmimport env proxy_get_current_time_nanoseconds
func proxyTime(ns unsafe.Pointer) uint32

func sp(s string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(s)), uint32(len(s))
}
func bp(b []byte) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.SliceData(b)), uint32(len(b))
}

// out is where the host puts a value.
type out struct {
	data *byte
	size uint32
}

func (o *out) d() unsafe.Pointer { return unsafe.Pointer(&o.data) }
func (o *out) s() unsafe.Pointer { return unsafe.Pointer(&o.size) }

func (o *out) bytes() []byte {
	if o.data == nil {
		return nil
	}
	return unsafe.Slice(o.data, o.size)
}

func marshal(pairs [][2]string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(pairs)))
	for _, p := range pairs {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p[0])))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p[1])))
	}
	for _, p := range pairs {
		b = append(append(b, p[0]...), 0)
		b = append(append(b, p[1]...), 0)
	}
	return b
}

func unmarshal(b []byte) [][2]string {
	if len(b) < 4 {
		return nil
	}
	pairs := make([][2]string, binary.LittleEndian.Uint32(b))
	data := 4 + 8*len(pairs)
	for i := range pairs {
		for j := range pairs[i] {
			n := int(binary.LittleEndian.Uint32(b[4+8*i+4*j:]))
			pairs[i][j] = string(b[data : data+n])
			data += n + 1
		}
	}
	return pairs
}

func (host) Log(level uint32, text string) uint32 {
	p, n := sp(text)
	return proxyLog(level, p, n)
}

func (host) GetProperty(path string) ([]byte, uint32) {
	var o out
	p, n := sp(path)
	st := proxyGetProperty(p, n, o.d(), o.s())
	return o.bytes(), st
}

func (host) SetProperty(path string, value []byte) uint32 {
	p, n := sp(path)
	v, vn := bp(value)
	return proxySetProperty(p, n, v, vn)
}

func (host) GetStatus() (uint32, string) {
	var o out
	var code uint32
	proxyGetStatus(unsafe.Pointer(&code), o.d(), o.s())
	return code, string(o.bytes())
}

func (host) Foreign(name string) uint32 {
	var o out
	p, n := sp(name)
	return proxyForeign(p, n, nil, 0, o.d(), o.s())
}

func (host) Get(m uint32, key string) (string, uint32) {
	var o out
	p, n := sp(key)
	st := proxyGetMapValue(m, p, n, o.d(), o.s())
	return string(o.bytes()), st
}

func (host) Pairs(m uint32) ([][2]string, uint32) {
	var o out
	st := proxyGetMapPairs(m, o.d(), o.s())
	return unmarshal(o.bytes()), st
}

func (host) Size(m uint32) (size, st uint32) {
	st = proxyGetMapSize(m, unsafe.Pointer(&size))
	return
}

func (host) Add(m uint32, key, value string) uint32 {
	p, n := sp(key)
	v, vn := sp(value)
	return proxyAddMapValue(m, p, n, v, vn)
}

func (host) Replace(m uint32, key, value string) uint32 {
	p, n := sp(key)
	v, vn := sp(value)
	return proxyReplaceMapValue(m, p, n, v, vn)
}

func (host) Remove(m uint32, key string) uint32 {
	p, n := sp(key)
	return proxyRemoveMapValue(m, p, n)
}

func (host) SetPairs(m uint32, pairs [][2]string) uint32 {
	p, n := bp(marshal(pairs))
	return proxySetMapPairs(m, p, n)
}

func (host) Buffer(b, start, length uint32) ([]byte, uint32) {
	var o out
	st := proxyGetBuffer(b, start, length, o.d(), o.s())
	return o.bytes(), st
}

func (host) BufferSize(b uint32) (size, st uint32) {
	var flags uint32
	st = proxyBufferStatus(b, unsafe.Pointer(&size), unsafe.Pointer(&flags))
	return
}

func (host) SetBuffer(b, start, length uint32, value []byte) uint32 {
	p, n := bp(value)
	return proxySetBuffer(b, start, length, p, n)
}

func (host) Continue(t uint32) uint32 { return proxyContinue(t) }
func (host) Close(t uint32) uint32    { return proxyClose(t) }

func (host) Reply(code uint32, details string, body []byte, headers [][2]string, grpc int32) uint32 {
	d, dn := sp(details)
	b, bn := bp(body)
	h, hn := bp(marshal(headers))
	return proxyReply(code, d, dn, b, bn, h, hn, grpc)
}

func (host) Effective(id uint32) uint32 { return proxyEffective(id) }
func (host) Done() uint32               { return proxyDone() }

func (host) Call(cluster string, headers [][2]string, body []byte, trailers [][2]string, timeout uint32) (token, st uint32) {
	c, cn := sp(cluster)
	h, hn := bp(marshal(headers))
	b, bn := bp(body)
	t, tn := bp(marshal(trailers))
	st = proxyCall(c, cn, h, hn, b, bn, t, tn, timeout, unsafe.Pointer(&token))
	return
}

func (host) GRPCStream(service []byte, name, method string, metadata [][2]string) (token, st uint32) {
	s, sn := bp(service)
	n, nn := sp(name)
	m, mn := sp(method)
	h, hn := bp(marshal(metadata))
	st = proxyGRPCStream(s, sn, n, nn, m, mn, h, hn, unsafe.Pointer(&token))
	return
}

func (host) GRPCSend(token uint32, message []byte, end bool) uint32 {
	p, n := bp(message)
	last := uint32(0)
	if end {
		last = 1
	}
	return proxyGRPCSend(token, p, n, last)
}

func (host) GRPCClose(token uint32) uint32  { return proxyGRPCClose(token) }
func (host) GRPCCancel(token uint32) uint32 { return proxyGRPCCancel(token) }

func (host) SharedGet(key string) ([]byte, uint32, uint32) {
	var o out
	var cas uint32
	p, n := sp(key)
	st := proxySharedGet(p, n, o.d(), o.s(), unsafe.Pointer(&cas))
	return o.bytes(), cas, st
}

func (host) SharedSet(key string, value []byte, cas uint32) uint32 {
	p, n := sp(key)
	v, vn := bp(value)
	return proxySharedSet(p, n, v, vn, cas)
}

func (host) QueueRegister(name string) (id, st uint32) {
	p, n := sp(name)
	st = proxyQueueRegister(p, n, unsafe.Pointer(&id))
	return
}

func (host) QueueResolve(vmID, name string) (id, st uint32) {
	v, vn := sp(vmID)
	p, n := sp(name)
	st = proxyQueueResolve(v, vn, p, n, unsafe.Pointer(&id))
	return
}

func (host) Enqueue(id uint32, item []byte) uint32 {
	p, n := bp(item)
	return proxyEnqueue(id, p, n)
}

func (host) Dequeue(id uint32) ([]byte, uint32) {
	var o out
	st := proxyDequeue(id, o.d(), o.s())
	return o.bytes(), st
}

func (host) Define(t uint32, name string) (id, st uint32) {
	p, n := sp(name)
	st = proxyDefine(t, p, n, unsafe.Pointer(&id))
	return
}

func (host) Increment(id uint32, offset int64) uint32 { return proxyIncrement(id, offset) }
func (host) Record(id uint32, value uint64) uint32    { return proxyRecord(id, value) }

func (host) Metric(id uint32) (value uint64, st uint32) {
	st = proxyMetric(id, unsafe.Pointer(&value))
	return
}

func (host) Tick(ms uint32) uint32 { return proxyTick(ms) }

func (host) Time() (ns uint64) {
	proxyTime(unsafe.Pointer(&ns))
	return
}
