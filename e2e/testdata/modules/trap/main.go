// Module trap is the gate in a VM that dies on demand: a request with the header x-trap ends it.
// All answers name the VM, in the header x-vm.
package main

import (
	"math/rand/v2"
	"strconv"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/oncegate/oncegate/plugin/sdk"
)

func init() { proxywasm.SetVMContext(&vm{VMContext: sdk.NewVMContext()}) }

func main() {}

var name = strconv.FormatUint(rand.Uint64(), 36)

type vm struct{ types.VMContext }

// NewPluginContext implements types.VMContext.
func (v *vm) NewPluginContext(id uint32) types.PluginContext {
	return &plugin{v.VMContext.NewPluginContext(id)}
}

type plugin struct{ types.PluginContext }

// NewHttpContext implements types.PluginContext.
func (p *plugin) NewHttpContext(id uint32) types.HttpContext {
	return &stream{p.PluginContext.NewHttpContext(id)}
}

type stream struct{ types.HttpContext }

// OnHttpRequestHeaders implements types.HttpContext.
func (s *stream) OnHttpRequestHeaders(count int, end bool) types.Action {
	if _, err := proxywasm.GetHttpRequestHeader("x-trap"); err == nil {
		panic("as the test asks")
	}
	return s.HttpContext.OnHttpRequestHeaders(count, end)
}

// OnHttpResponseHeaders implements types.HttpContext.
func (s *stream) OnHttpResponseHeaders(count int, end bool) types.Action {
	if err := proxywasm.ReplaceHttpResponseHeader("x-vm", name); err != nil {
		panic(err)
	}
	return s.HttpContext.OnHttpResponseHeaders(count, end)
}
