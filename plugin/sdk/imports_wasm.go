//go:build tinygo

package sdk

import (
	"unsafe"

	"github.com/oncegate/oncegate/plugin/cache"
)

const (
	statusOK       = 0
	statusNotFound = 1
)

// room is where the host puts the value of the running call, if it fits.
var room []byte

// hostMemory is where the host asks for the memory of the values that it hands over; without this
// export it would call proxy_on_memory_allocate, which always makes a new block. Unlike TinyGo's own
// malloc, it does not keep the block alive.
//
//go:wasmexport malloc
func hostMemory(size uint32) unsafe.Pointer {
	if size > 0 && size <= uint32(len(room)) {
		return unsafe.Pointer(unsafe.SliceData(room))
	}
	return unsafe.Pointer(unsafe.SliceData(make([]byte, max(size, 1))))
}

//go:wasmimport env proxy_get_shared_data
func proxyGetSharedData(key unsafe.Pointer, keySize uint32, value, size, cas unsafe.Pointer) uint32

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, name unsafe.Pointer, size uint32, id unsafe.Pointer) uint32

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, offset int64) uint32

//go:wasmimport env proxy_record_metric
func proxyRecordMetric(id uint32, value uint64) uint32

//go:wasmimport env proxy_get_current_time_nanoseconds
func proxyGetCurrentTimeNanoseconds(result unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_pairs
func proxyGetHeaderMapPairs(kind uint32, pairs, size unsafe.Pointer) uint32

//go:wasmimport env proxy_send_local_response
func proxySendLocalResponse(status uint32, details unsafe.Pointer, detailsSize uint32, body unsafe.Pointer, bodySize uint32,
	headers unsafe.Pointer, headersSize uint32, grpcStatus int32) uint32

//go:wasmimport env proxy_grpc_stream
func proxyGRPCStream(target unsafe.Pointer, targetSize uint32, service unsafe.Pointer, serviceSize uint32, method unsafe.Pointer, methodSize uint32,
	metadata unsafe.Pointer, metadataSize uint32, token unsafe.Pointer) uint32

//go:wasmimport env proxy_grpc_send
func proxyGRPCSend(token uint32, message unsafe.Pointer, size, end uint32) uint32

//go:wasmimport env proxy_grpc_cancel
func proxyGRPCCancel(token uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func proxyGetBufferBytes(kind, start, most uint32, data, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_property
func proxySetProperty(path unsafe.Pointer, pathSize uint32, value unsafe.Pointer, valueSize uint32) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func wasiRandomGet(buffer unsafe.Pointer, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func wasiEnvironSizesGet(count, size unsafe.Pointer) uint32

//go:wasmimport wasi_snapshot_preview1 environ_get
func wasiEnvironGet(pointers, buffer unsafe.Pointer) uint32

// defineMetric returns 0 if the host refuses.
func defineMetric(kind uint32, name string) uint32 {
	var id uint32
	if proxyDefineMetric(kind, unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(&id)) != statusOK {
		return 0
	}
	return id
}

func addMetric(id uint32, delta int64) { proxyIncrementMetric(id, delta) }

func recordMetric(id uint32, value uint64) { proxyRecordMetric(id, value) }

func now() int64 {
	var ns uint64
	if proxyGetCurrentTimeNanoseconds(unsafe.Pointer(&ns)) != statusOK {
		return 0
	}
	return int64(ns)
}

func random(b []byte) bool {
	return len(b) == 0 || wasiRandomGet(unsafe.Pointer(unsafe.SliceData(b)), uint32(len(b))) == 0
}

// environment returns the VM's environment: NAME=VALUE for each variable, each ended by a zero byte. It returns nil if
// there is none, or if a capability list keeps the module from asking.
func environment() []byte {
	var count, size uint32
	if wasiEnvironSizesGet(unsafe.Pointer(&count), unsafe.Pointer(&size)) != 0 || count == 0 || size == 0 {
		return nil
	}
	pointers, block := make([]uint32, count), make([]byte, size)
	if wasiEnvironGet(unsafe.Pointer(unsafe.SliceData(pointers)), unsafe.Pointer(unsafe.SliceData(block))) != 0 {
		return nil
	}
	return block
}

// headerPairs returns a header map in its serialized form. The caller owns it.
func headerPairs(kind uint32) []byte {
	var pairs *byte
	var size uint32
	if proxyGetHeaderMapPairs(kind, unsafe.Pointer(&pairs), unsafe.Pointer(&size)) != statusOK || pairs == nil {
		return nil
	}
	return unsafe.Slice(pairs, size)
}

// sharedData reads a shared value, into within if it fits.
func sharedData(key string, within []byte) (value []byte, cas uint32, status cache.Status) {
	var data *byte
	var size uint32
	room = within
	result := proxyGetSharedData(unsafe.Pointer(unsafe.StringData(key)), uint32(len(key)), unsafe.Pointer(&data), unsafe.Pointer(&size), unsafe.Pointer(&cas))
	room = nil
	switch result {
	case statusOK:
		if data != nil {
			value = unsafe.Slice(data, size)
		}
		return value, cas, cache.OK
	case statusNotFound:
		return nil, 0, cache.NotFound
	}
	return nil, 0, cache.Failed
}

// grpcStream opens a gRPC stream. target is the host's serialized GrpcService, metadata a serialized header map.
func grpcStream(target []byte, service, method string, metadata []byte) (token, status uint32) {
	status = proxyGRPCStream(unsafe.Pointer(unsafe.SliceData(target)), uint32(len(target)),
		unsafe.Pointer(unsafe.StringData(service)), uint32(len(service)), unsafe.Pointer(unsafe.StringData(method)), uint32(len(method)),
		unsafe.Pointer(unsafe.SliceData(metadata)), uint32(len(metadata)), unsafe.Pointer(&token))
	return token, status
}

func grpcSend(token uint32, message []byte) bool {
	return proxyGRPCSend(token, unsafe.Pointer(unsafe.SliceData(message)), uint32(len(message)), 0) == statusOK
}

func grpcCancel(token uint32) { proxyGRPCCancel(token) }

// grpcMessage reads the message that a callback runs for, into within if it fits.
func grpcMessage(size uint32, within []byte) []byte {
	const grpcReceiveBuffer = 5
	var data *byte
	var n uint32
	room = within
	status := proxyGetBufferBytes(grpcReceiveBuffer, 0, size, unsafe.Pointer(&data), unsafe.Pointer(&n))
	room = nil
	if status != statusOK || data == nil {
		return nil
	}
	return unsafe.Slice(data, n)
}

// The SDK has no gRPC callbacks. These come to the plugin as queue callbacks, because the SDK's own callbacks set which context
// is active, and it makes HTTP callouts in the name of that context.

//go:wasmexport proxy_on_grpc_receive
func onGRPCReceive(context, token, size uint32) {
	event = grpcEvent{token: token, size: int(size)}
	queueReady(context, grpcQueue)
}

//go:wasmexport proxy_on_grpc_close
func onGRPCClose(context, token, status uint32) {
	event = grpcEvent{token: token, closed: true, status: int(status)}
	queueReady(context, grpcQueue)
}

// queueReady is the SDK's callback.
//
//export proxy_on_queue_ready
func queueReady(context, queue uint32)

func setProperty(name, value string) {
	proxySetProperty(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(unsafe.StringData(value)), uint32(len(value)))
}

func sendLocalResponse(status, grpcStatus int, details string, headers, body []byte) bool {
	return proxySendLocalResponse(uint32(status), unsafe.Pointer(unsafe.StringData(details)), uint32(len(details)),
		unsafe.Pointer(unsafe.SliceData(body)), uint32(len(body)),
		unsafe.Pointer(unsafe.SliceData(headers)), uint32(len(headers)), int32(grpcStatus)) == statusOK
}
