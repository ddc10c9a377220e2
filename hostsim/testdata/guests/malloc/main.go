// Guest malloc exports TinyGo's malloc, which a host prefers over
// proxy_on_memory_allocate, and which keeps every block until it is freed.
package main

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

func main() {}

func init() { proxywasm.SetVMContext(&vm{}) }

type vm struct{ types.DefaultVMContext }

func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct{ types.DefaultPluginContext }

func (*plugin) NewHttpContext(uint32) types.HttpContext { return &stream{} }

type stream struct{ types.DefaultHttpContext }

func (*stream) OnHttpRequestHeaders(int, bool) types.Action {
	if _, err := proxywasm.GetHttpRequestHeader("x-data"); err != nil {
		proxywasm.LogInfo(err.Error())
	}
	return types.ActionContinue
}
