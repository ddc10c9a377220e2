// Module noop is a filter that does nothing: every callback is the SDK's default. What
// a stream costs through it is the cost of having a filter made with this SDK at all.
package main

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

func init() { proxywasm.SetVMContext(&vm{}) }

func main() {}

type vm struct{ types.DefaultVMContext }

// NewPluginContext implements types.VMContext.
func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct{ types.DefaultPluginContext }

// NewHttpContext implements types.PluginContext.
func (*plugin) NewHttpContext(uint32) types.HttpContext { return &stream{} }

type stream struct{ types.DefaultHttpContext }
