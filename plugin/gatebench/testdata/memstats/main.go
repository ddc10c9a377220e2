// Module memstats is the gate with two gauges more: how many objects and bytes its
// runtime has allocated since the VM started, summed over the process's VMs. Each VM
// brings them up to date on its tick, and nowhere else, so streams take the same way
// through the same code as in the module that ships.
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
func (v *vm) NewPluginContext(id uint32) types.PluginContext {
	return &plugin{PluginContext: v.VMContext.NewPluginContext(id)}
}

type plugin struct {
	types.PluginContext
	objects, bytes proxywasm.MetricGauge
	stats          runtime.MemStats
	seen           struct{ objects, bytes uint64 }
}

// OnPluginStart implements types.PluginContext.
func (p *plugin) OnPluginStart(size int) types.OnPluginStartStatus {
	p.objects = proxywasm.DefineGaugeMetric("memstats_objects")
	p.bytes = proxywasm.DefineGaugeMetric("memstats_bytes")
	return p.PluginContext.OnPluginStart(size)
}

// OnTick implements types.PluginContext.
func (p *plugin) OnTick() {
	p.PluginContext.OnTick()
	runtime.ReadMemStats(&p.stats)
	// A host takes no change by 0.
	if d := p.stats.Mallocs - p.seen.objects; d > 0 {
		p.objects.Add(int64(d))
		p.bytes.Add(int64(p.stats.TotalAlloc - p.seen.bytes))
	}
	p.seen.objects, p.seen.bytes = p.stats.Mallocs, p.stats.TotalAlloc
}
