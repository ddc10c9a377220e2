// Guest script is the script filter on the bare ABI, without an SDK: it sees every
// status the host answers.
package main

import (
	"unsafe"

	"github.com/oncegate/oncegate/hostsim/testdata/script"
)

func main() {}

var vm = script.New(host{})

//export proxy_abi_version_0_2_0
func abiVersion() {}

//export proxy_on_memory_allocate
func allocate(size uint32) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(make([]byte, size)))
}

//export proxy_on_context_create
func onCreate(id, parent uint32) { vm.Create(id, parent) }

//export proxy_on_vm_start
func onStart(_, size uint32) bool { return vm.Start(size) }

//export proxy_on_configure
func onConfigure(_, size uint32) bool { return vm.Configure(size) }

//export proxy_on_tick
func onTick(uint32) { vm.Plugin("tick") }

//export proxy_on_queue_ready
func onQueue(_, _ uint32) { vm.Plugin("queue") }

//export proxy_on_http_call_response
func onAnswer(_, token, headers, size, trailers uint32) { vm.Answer(token, headers, size, trailers) }

//export proxy_on_grpc_receive_initial_metadata
func onMetadata(_, token, n uint32) { vm.GRPC("gm", token, n) }

//export proxy_on_grpc_receive
func onMessage(_, token, n uint32) { vm.GRPC("gr", token, n) }

//export proxy_on_grpc_receive_trailing_metadata
func onTrailers(_, token, n uint32) { vm.GRPC("gt", token, n) }

//export proxy_on_grpc_close
func onClose(_, token, n uint32) { vm.GRPC("gc", token, n) }

//export proxy_on_request_headers
func onRequestHeaders(id, n uint32, end bool) uint32 { return vm.Stream("rh", id, n, end) }

//export proxy_on_request_body
func onRequestBody(id, n uint32, end bool) uint32 { return vm.Stream("rb", id, n, end) }

//export proxy_on_request_trailers
func onRequestTrailers(id, n uint32) uint32 { return vm.Stream("rt", id, n, true) }

//export proxy_on_response_headers
func onResponseHeaders(id, n uint32, end bool) uint32 { return vm.Stream("sh", id, n, end) }

//export proxy_on_response_body
func onResponseBody(id, n uint32, end bool) uint32 { return vm.Stream("sb", id, n, end) }

//export proxy_on_response_trailers
func onResponseTrailers(id, n uint32) uint32 { return vm.Stream("st", id, n, true) }

//export proxy_on_done
func onDone(id uint32) bool { return vm.EndOf(id) }

//export proxy_on_log
func onLog(id uint32) { vm.Stream("log", id, 0, false) }

//export proxy_on_delete
func onDelete(id uint32) { vm.Stream("delete", id, 0, false) }
