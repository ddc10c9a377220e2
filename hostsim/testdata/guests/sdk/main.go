// Guest sdk is built with the Proxy-Wasm Go SDK, to show what the SDK makes of the
// host's answers. The header x-do says what a request does.
package main

import (
	"strconv"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

// A reactor's main never runs: the VM context is registered here.
func init() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct {
	types.DefaultPluginContext
	counter proxywasm.MetricCounter
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	p.counter = proxywasm.DefineCounterMetric("requests")
	if _, err := proxywasm.RegisterSharedQueue("work"); err != nil {
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// OnQueueReady makes a call while the plugin's context is active.
func (p *plugin) OnQueueReady(queue uint32) {
	if _, err := proxywasm.DequeueSharedQueue(queue); err == nil {
		dispatch("plugin")
	}
}

func (p *plugin) NewHttpContext(id uint32) types.HttpContext { return &stream{id: id, plugin: p} }

type stream struct {
	types.DefaultHttpContext
	id     uint32
	plugin *plugin
}

func dispatch(who string) {
	headers := [][2]string{{":method", "POST"}, {":path", "/" + who}, {":authority", "callee"}}
	_, err := proxywasm.DispatchHttpCall("c", headers, nil, nil, 10000, func(numHeaders, bodySize, numTrailers int) {
		proxywasm.LogInfo(who + " got an answer of " + strconv.Itoa(numHeaders) + " headers")
	})
	if err != nil {
		proxywasm.LogInfo(who + " cannot call: " + err.Error())
	}
}

func (s *stream) OnHttpRequestHeaders(int, bool) types.Action {
	do, _ := proxywasm.GetHttpRequestHeader("x-do")
	switch do {
	case "call": // the stream's own call
		dispatch("stream")
		return types.ActionPause
	case "enqueue": // a call that the plugin makes
		id, err := proxywasm.ResolveSharedQueue("", "work")
		if err == nil {
			err = proxywasm.EnqueueSharedQueue(id, []byte("x"))
		}
		if err != nil {
			proxywasm.LogInfo(err.Error())
		}
		return types.ActionPause
	case "reply":
		if err := proxywasm.SendHttpResponse(202, [][2]string{{"x-a", "1"}}, []byte("ok"), -1); err != nil {
			proxywasm.LogInfo(err.Error())
		}
		return types.ActionPause
	case "increment-zero":
		s.plugin.counter.Increment(0)
	case "increment":
		s.plugin.counter.Increment(1)
	case "recover":
		defer func() { _ = recover() }()
		panic("recovered?")
	case "read":
		v, err := proxywasm.GetHttpRequestHeader("x-data")
		if err != nil {
			proxywasm.LogInfo(err.Error())
		}
		if len(v) > 100 {
			return types.ActionContinue
		}
		proxywasm.LogInfo(v)
	case "effective":
		if err := proxywasm.SetEffectiveContext(99); err != nil {
			proxywasm.LogInfo("effective: " + err.Error())
		}
	}
	return types.ActionContinue
}

func (s *stream) OnHttpStreamDone() {
	details, err := proxywasm.GetProperty([]string{"response", "code_details"})
	text := "details " + strconv.Quote(string(details))
	if err != nil {
		text = "details " + err.Error()
	}
	proxywasm.LogInfo(text)
}
