// Module roots starts only if the collector sees the module's variables, although plugin/sdk takes the constants out of what
// the collector reads.
package main

import (
	"runtime"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/oncegate/oncegate/plugin/sdk"
)

func init() { proxywasm.SetVMContext(&vm{VMContext: sdk.NewVMContext()}) }

func main() {}

type vm struct{ types.VMContext }

// NewPluginContext implements types.VMContext.
func (*vm) NewPluginContext(uint32) types.PluginContext { return &plugin{} }

type plugin struct{ types.DefaultPluginContext }

type block struct {
	next  *block
	value int
}

// The linker keeps variables with a value and those without one apart.
var (
	written = &block{}
	empty   *block
)

const blocks = 1000

// OnPluginStart implements types.PluginContext.
func (*plugin) OnPluginStart(int) types.OnPluginStartStatus {
	fill()
	for range 10 {
		chain(3)
		runtime.GC()
	}
	if !intact() {
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// Calls that are not inlined leave the blocks to the variables alone: no pointer to them stays on the stack.

//go:noinline
func fill() { written, empty = chain(1), chain(2) }

//go:noinline
func intact() bool { return isChain(written, 1) && isChain(empty, 2) }

//go:noinline
func chain(value int) (first *block) {
	for range blocks {
		first = &block{first, value}
	}
	return first
}

func isChain(b *block, value int) bool {
	n := 0
	for ; b != nil && b.value == value && n <= blocks; b = b.next {
		n++
	}
	return b == nil && n == blocks
}
