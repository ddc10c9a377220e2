package hostsim

import (
	"io"
	"sync"
)

// Process is what all VMs of one Envoy process share: shared data, shared queues and metrics. It is safe for concurrent
// use. Shared data and queues of a vm_id live as long as a host of that vm_id runs; metrics live as long as the
// process.
type Process struct {
	data    *sharedData
	queues  *sharedQueues
	metrics *metrics

	mu   sync.Mutex
	refs map[string]int
	conn uint64
}

// NewProcess makes an empty process.
func NewProcess() *Process {
	return &Process{data: newSharedData(), queues: newSharedQueues(), metrics: newMetrics(), refs: make(map[string]int)}
}

func (p *Process) acquire(vmID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refs[vmID]++
}

func (p *Process) release(vmID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs[vmID]--; p.refs[vmID] > 0 {
		return
	}
	delete(p.refs, vmID)
	p.data.deleteVM(vmID)
	p.queues.deleteVM(vmID)
}

func (p *Process) nextConnection() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn++
	return p.conn
}

// WritePrometheus writes the filters' metrics in the Prometheus text format, as
// Envoy's /stats/prometheus shows them: custom metrics keep their own name there
// (without the "wasmcustom." they carry in /stats), with every character outside
// [a-zA-Z0-9_] replaced by "_".
func (p *Process) WritePrometheus(w io.Writer) error { return p.metrics.writePrometheus(w) }

// Metrics returns the filters' metrics by name.
func (p *Process) Metrics() []Metric { return p.metrics.snapshot() }

// Metric returns the filters' metric of that name, or false if none has defined it yet. Of several types with one name, a
// counter comes before a gauge, and both before a histogram.
func (p *Process) Metric(name string) (Metric, bool) {
	for _, m := range p.Metrics() {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{}, false
}

// SharedDataEntry is one key of a vm_id's shared data.
type SharedDataEntry struct {
	Key   string
	Value []byte
	CAS   uint32
}

// SharedData returns a copy of a vm_id's shared data, ordered by key.
func (p *Process) SharedData(vmID string) []SharedDataEntry { return p.data.entries(vmID) }

// SharedDataSize returns the number of keys of a vm_id and the bytes of its keys
// and values, without copying them.
func (p *Process) SharedDataSize(vmID string) (keys, bytes int) { return p.data.size(vmID) }

// GetSharedData is proxy_get_shared_data from outside a VM. The value must not be
// written to.
func (p *Process) GetSharedData(vmID, key string) ([]byte, uint32, Status) {
	return p.data.get(vmID, key)
}

// SetSharedData is proxy_set_shared_data from outside a VM. With it, tests make a guest lose a CAS race. The value is
// copied.
func (p *Process) SetSharedData(vmID, key string, value []byte, cas uint32) Status {
	return p.data.set(vmID, key, value, cas)
}
