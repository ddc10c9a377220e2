package hostsim

import (
	"context"
	"time"
)

// Source is a program that can be started once per VM: Wasm or Native.
type Source interface {
	// load prepares the program; limits hold for each of its VMs.
	load(ctx context.Context, limits guestLimits) (program, error)
}

// guestLimits bound what one VM of a program may use.
type guestLimits struct {
	memory   int           // bytes of linear memory
	callback time.Duration // see Config.CallbackTimeout
	seed     uint64
}

// program is a loaded Source.
type program interface {
	// newGuest makes one VM's guest and runs its initialisation, during which host
	// calls are restricted (see HostCalls).
	newGuest(ctx context.Context, env guestEnv, calls HostCalls) (guest, error)
	close()
}

// guestEnv is what a VM knows about its surroundings without calling the host.
type guestEnv struct {
	name  string // "canary", "main", "worker-N"
	clock Clock
	epoch time.Time // the monotonic clock's zero
	// environ is the environment, NAME=VALUE for each variable.
	environ []string
}

// guest is one VM as the host sees it. The host never calls it from two goroutines at a time. A returned error is a trap:
// the VM is dead, and only close is called after that.
type guest interface {
	// call runs a callback. args are its parameters, the context first.
	call(f *callback, args [maxParams]uint32) (result uint32, err error)
	// memorySize is the size in bytes of the linear memory; 0 for a native guest.
	memorySize() uint64
	close()
}

// Guest is the VM of a Native guest: the callbacks of the Proxy-Wasm ABI. The host never calls a guest from two
// goroutines at a time and never re-enters it. A returned error is a trap: the VM is dead, and only Close is called
// after that.
type Guest interface {
	OnContextCreate(contextID, parentID uint32) error
	OnVMStart(contextID uint32, configSize int) (bool, error)
	OnConfigure(contextID uint32, configSize int) (bool, error)
	OnTick(contextID uint32) error
	OnQueueReady(contextID, queueID uint32) error
	OnHTTPCallResponse(contextID, token uint32, headers, bodySize, trailers int) error
	OnGRPCReceiveInitialMetadata(contextID, token uint32, headers int) error
	OnGRPCReceive(contextID, token uint32, size int) error
	OnGRPCReceiveTrailingMetadata(contextID, token uint32, trailers int) error
	OnGRPCClose(contextID, token, status uint32) error
	OnRequestHeaders(contextID uint32, headers int, endStream bool) (Action, error)
	OnRequestBody(contextID uint32, size int, endStream bool) (Action, error)
	OnRequestTrailers(contextID uint32, trailers int) (Action, error)
	OnResponseHeaders(contextID uint32, headers int, endStream bool) (Action, error)
	OnResponseBody(contextID uint32, size int, endStream bool) (Action, error)
	OnResponseTrailers(contextID uint32, trailers int) (Action, error)
	OnDone(contextID uint32) (bool, error)
	OnLog(contextID uint32) error
	OnDelete(contextID uint32) error
	// Close releases the VM's resources.
	Close()
}

// DefaultGuest implements every callback like a module that does not export it: streams continue, configuration is
// accepted. Native guests embed it.
type DefaultGuest struct{}

func (DefaultGuest) OnContextCreate(_, _ uint32) error                      { return nil }
func (DefaultGuest) OnVMStart(uint32, int) (bool, error)                    { return true, nil }
func (DefaultGuest) OnConfigure(uint32, int) (bool, error)                  { return true, nil }
func (DefaultGuest) OnTick(uint32) error                                    { return nil }
func (DefaultGuest) OnQueueReady(_, _ uint32) error                         { return nil }
func (DefaultGuest) OnHTTPCallResponse(_, _ uint32, _, _, _ int) error      { return nil }
func (DefaultGuest) OnGRPCReceiveInitialMetadata(_, _ uint32, _ int) error  { return nil }
func (DefaultGuest) OnGRPCReceive(_, _ uint32, _ int) error                 { return nil }
func (DefaultGuest) OnGRPCReceiveTrailingMetadata(_, _ uint32, _ int) error { return nil }
func (DefaultGuest) OnGRPCClose(_, _, _ uint32) error                       { return nil }
func (DefaultGuest) OnRequestHeaders(uint32, int, bool) (Action, error)     { return ActionContinue, nil }
func (DefaultGuest) OnRequestBody(uint32, int, bool) (Action, error)        { return ActionContinue, nil }
func (DefaultGuest) OnRequestTrailers(uint32, int) (Action, error)          { return ActionContinue, nil }
func (DefaultGuest) OnResponseHeaders(uint32, int, bool) (Action, error)    { return ActionContinue, nil }
func (DefaultGuest) OnResponseBody(uint32, int, bool) (Action, error)       { return ActionContinue, nil }
func (DefaultGuest) OnResponseTrailers(uint32, int) (Action, error)         { return ActionContinue, nil }
func (DefaultGuest) OnDone(uint32) (bool, error)                            { return true, nil }
func (DefaultGuest) OnLog(uint32) error                                     { return nil }
func (DefaultGuest) OnDelete(uint32) error                                  { return nil }
func (DefaultGuest) Close()                                                 {}

// HostCalls is what a guest may call during one of its callbacks. All calls act on the current context: that of the
// callback, or the one chosen with SetEffectiveContext until the callback ends. A byte slice that is passed in is only
// read during the call. A returned one must not be written to and is valid until the callback ends.
//
// Before a VM has started (in a wasm module's _initialize or _start, or a native factory) and in the guest's allocator,
// only Log and the WASI functions work; any other call is a trap.
type HostCalls interface {
	Log(level LogLevel, message string) Status
	GetProperty(path string) ([]byte, Status) // segments separated by a zero byte
	SetProperty(path string, value []byte) Status
	GetStatus() (code uint32, message string)
	CallForeignFunction(name string, argument []byte) ([]byte, Status)

	GetHeaderMapValue(t MapType, key string) (string, Status)
	GetHeaderMapPairs(t MapType) (Headers, Status)
	GetHeaderMapSize(t MapType) (uint32, Status)
	AddHeaderMapValue(t MapType, key, value string) Status
	ReplaceHeaderMapValue(t MapType, key, value string) Status
	RemoveHeaderMapValue(t MapType, key string) Status
	SetHeaderMapPairs(t MapType, h Headers) Status

	GetBufferBytes(t BufferType, start, length uint32) ([]byte, Status)
	GetBufferStatus(t BufferType) (size uint32, status Status)
	SetBufferBytes(t BufferType, start, length uint32, value []byte) Status

	ContinueStream(t StreamType) Status
	CloseStream(t StreamType) Status
	SendLocalResponse(code uint32, details string, body []byte, headers Headers, grpcStatus int32) Status
	SetEffectiveContext(contextID uint32) Status
	Done() Status

	HTTPCall(cluster string, headers Headers, body []byte, trailers Headers, timeoutMS uint32) (token uint32, status Status)

	// GRPCStream opens a stream to the cluster that a serialized envoy.config.core.v3.GrpcService names. The stream belongs
	// to the plugin: its callbacks have the plugin's context, whichever context opened it. GRPCClose ends the guest's side,
	// and the server's answers still come; GRPCCancel cuts the stream, and no callback follows. A guest must do one of the
	// two in OnGRPCClose at the latest, and must not use the token after that.
	GRPCStream(service []byte, serviceName, method string, metadata Headers) (token uint32, status Status)
	GRPCSend(token uint32, message []byte, end bool) Status
	GRPCClose(token uint32) Status
	GRPCCancel(token uint32) Status

	GetSharedData(key string) (value []byte, cas uint32, status Status)
	SetSharedData(key string, value []byte, cas uint32) Status
	RegisterSharedQueue(name string) (id uint32, status Status)
	ResolveSharedQueue(vmID, name string) (id uint32, status Status)
	EnqueueSharedQueue(id uint32, item []byte) Status
	DequeueSharedQueue(id uint32) ([]byte, Status)

	DefineMetric(t MetricType, name string) (id uint32, status Status)
	IncrementMetric(id uint32, offset int64) Status
	RecordMetric(id uint32, value uint64) Status
	GetMetric(id uint32) (uint64, Status)

	SetTickPeriod(ms uint32) Status
	CurrentTime() uint64 // nanoseconds of the wall clock

	// Environ returns the VM's environment, NAME=VALUE for each variable (WASI's environ_get).
	Environ() []string
}
