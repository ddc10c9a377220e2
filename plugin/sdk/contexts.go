package sdk

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/oncegate/oncegate/plugin/gate"
)

// Register makes the VM run the gate. Call it from an init function, because main
// never runs in a reactor module. It makes no host calls, because they trap during
// initialisation.
func Register() { proxywasm.SetVMContext(NewVMContext()) }

// NewVMContext returns the context that Register registers, for modules that wrap it.
func NewVMContext() types.VMContext { return &vm{metrics: map[string]gate.MetricID{}} }

// vm is what the plugins of a VM share. Envoy makes a new plugin in a running VM for each new
// configuration. A plugin cannot give metrics and queues back to the host, so later plugins
// reuse them.
type vm struct {
	types.DefaultVMContext
	room []byte // only assigned, never read; see roomBytes
	// roomy: the heap has grown by roomBytes.
	roomy bool
	// metrics are the defined metrics by name. Envoy would store a second definition again.
	metrics map[string]gate.MetricID
	// queues are the names of the queues of plugins that have ended.
	queues []string
}

// NewPluginContext implements types.VMContext.
func (v *vm) NewPluginContext(id uint32) types.PluginContext {
	if !v.roomy {
		v.roomy = true
		// The heap never shrinks, so it keeps this room.
		v.room = make([]byte, roomBytes)
		v.room = nil
	}
	h := &host{vm: v, plugin: id}
	h.gate = gate.New(h)
	return &plugin{host: h, gate: h.gate}
}

type plugin struct {
	types.DefaultPluginContext
	host *host
	gate *gate.Plugin
}

// roomBytes is by how much a VM's heap grows at its start. Otherwise it would grow in
// steps while requests run, whenever the collector finds no gap for a block. A larger
// heap would not fit into a core's cache, which makes hits slower.
const roomBytes = 512 << 10

// OnPluginStart implements types.PluginContext.
func (p *plugin) OnPluginStart(size int) types.OnPluginStartStatus {
	var configuration []byte
	if size > 0 {
		var err error
		if configuration, err = proxywasm.GetPluginConfiguration(); err != nil {
			proxywasm.LogCritical("oncegate: the configuration cannot be read: " + err.Error())
			return types.OnPluginStartStatusFailed
		}
	}
	if err := p.gate.Start(configuration); err != nil {
		proxywasm.LogCritical("oncegate: configuration refused: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// OnPluginDone implements types.PluginContext.
func (p *plugin) OnPluginDone() bool {
	done := p.gate.Shutdown()
	if done {
		p.host.leaveQueue()
	}
	return done
}

// OnQueueReady implements types.PluginContext.
func (p *plugin) OnQueueReady(queue uint32) {
	if queue != grpcQueue {
		p.gate.OnQueueReady(queue)
		return
	}
	if e := event; e.closed {
		p.gate.OnStreamClose(e.token, e.status)
	} else {
		p.gate.OnStreamMessage(e.token, e.size)
	}
}

// grpcQueue is the number of no queue: it stands for the gRPC callback that runs, which event describes.
const grpcQueue = ^uint32(0)

var event grpcEvent

type grpcEvent struct {
	token        uint32
	closed       bool
	size, status int
}

// OnTick implements types.PluginContext.
func (p *plugin) OnTick() { p.gate.OnTick() }

// NewHttpContext implements types.PluginContext.
func (p *plugin) NewHttpContext(id uint32) types.HttpContext {
	return &stream{gate: p.gate.NewStream(id)}
}

type stream struct{ gate *gate.Stream }

// The filter statuses for gate.Action. The ABI names only 0 and 1. The larger ones are
// Envoy's own; it accepts their numbers unchanged.
const (
	headersStopAll types.Action = 4 // StopAllIterationAndWatermark
	bodyBuffer     types.Action = 1 // StopIterationAndBuffer
	bodyWatermark  types.Action = 2 // StopIterationAndWatermark
	bodyNoBuffer   types.Action = 3 // StopIterationNoBuffer
)

// headersAction is the status for headers and trailers.
func headersAction(a gate.Action) types.Action {
	switch a {
	case gate.Continue:
		return types.ActionContinue
	case gate.PauseAll:
		return headersStopAll
	}
	return types.ActionPause
}

func bodyAction(a gate.Action) types.Action {
	switch a {
	case gate.Continue:
		return types.ActionContinue
	case gate.Collect:
		return bodyBuffer
	case gate.Drop:
		return bodyNoBuffer
	}
	return bodyWatermark
}

// OnHttpRequestHeaders implements types.HttpContext.
func (s *stream) OnHttpRequestHeaders(_ int, end bool) types.Action {
	return headersAction(s.gate.OnRequestHeaders(end))
}

// OnHttpRequestBody implements types.HttpContext.
func (s *stream) OnHttpRequestBody(size int, end bool) types.Action {
	return bodyAction(s.gate.OnRequestBody(size, end))
}

// OnHttpRequestTrailers implements types.HttpContext.
func (s *stream) OnHttpRequestTrailers(int) types.Action {
	return headersAction(s.gate.OnRequestTrailers())
}

// OnHttpResponseHeaders implements types.HttpContext.
func (s *stream) OnHttpResponseHeaders(_ int, end bool) types.Action {
	return headersAction(s.gate.OnResponseHeaders(end))
}

// OnHttpResponseBody implements types.HttpContext.
func (s *stream) OnHttpResponseBody(size int, end bool) types.Action {
	return bodyAction(s.gate.OnResponseBody(size, end))
}

// OnHttpResponseTrailers implements types.HttpContext.
func (s *stream) OnHttpResponseTrailers(int) types.Action {
	return headersAction(s.gate.OnResponseTrailers())
}

// OnHttpStreamDone implements types.HttpContext.
func (s *stream) OnHttpStreamDone() { s.gate.OnDone() }
