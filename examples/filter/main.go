// Command filter is a Proxy-Wasm filter that refuses POST requests without the header idempotency-key. It is an example
// of a filter with a test on hostsim; docs/hostsim.md has its build line.
package main

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

// The host calls no main of a module that is built with -buildmode=c-shared.
func init() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct {
	types.DefaultPluginContext
	refused proxywasm.MetricCounter
}

func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	p.refused = proxywasm.DefineCounterMetric("refused")
	return types.OnPluginStartStatusOK
}

func (p *plugin) NewHttpContext(uint32) types.HttpContext { return &stream{plugin: p} }

type stream struct {
	types.DefaultHttpContext
	plugin *plugin
}

func (s *stream) OnHttpRequestHeaders(int, bool) types.Action {
	method, _ := proxywasm.GetHttpRequestHeader(":method")
	if _, err := proxywasm.GetHttpRequestHeader("idempotency-key"); method != "POST" || err == nil {
		return types.ActionContinue
	}
	proxywasm.LogInfo("refused a POST without a key")
	s.plugin.refused.Increment(1)
	if err := proxywasm.SendHttpResponse(400, nil, []byte("a key is required"), -1); err != nil {
		proxywasm.LogError(err.Error())
	}
	return types.ActionPause
}
