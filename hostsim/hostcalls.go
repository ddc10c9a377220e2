package hostsim

import (
	"bytes"
	"cmp"
	"time"
)

// This file implements the host functions that do not concern a stream's maps and buffers; hostcalls_stream.go has
// those.

var _ HostCalls = (*vm)(nil)

// Log implements HostCalls.
func (v *vm) Log(level LogLevel, message string) Status {
	if level > logMax {
		return StatusBadArgument
	}
	v.host.guestLog(v.name, level, message)
	return StatusOK
}

// GetStatus implements HostCalls.
func (v *vm) GetStatus() (uint32, string) {
	v.ctx()
	return v.callCode, v.callStatus
}

// CallForeignFunction implements HostCalls. Of Envoy's own functions only clear_route_cache is available.
func (v *vm) CallForeignFunction(name string, _ []byte) ([]byte, Status) {
	c := v.ctx()
	if name == "clear_route_cache" {
		if c.stream != nil {
			c.stream.clearRoute()
		}
		return nil, StatusOK
	}
	return nil, StatusNotFound
}

// SetEffectiveContext implements HostCalls.
func (v *vm) SetEffectiveContext(id uint32) Status {
	v.ctx()
	c := v.contexts[id]
	if c == nil {
		return StatusBadArgument
	}
	if id == 0 {
		c = nil // the VM's own context means the callback's context
	}
	v.effective = c
	return StatusOK
}

// Done implements HostCalls.
func (v *vm) Done() Status {
	v.ctx()
	if !v.root.pendingDone {
		return StatusNotFound
	}
	v.root.pendingDone = false
	v.after = append(v.after, afterAction{kind: afterPluginDone})
	return StatusOK
}

// HTTPCall implements HostCalls.
func (v *vm) HTTPCall(cluster string, h Headers, body []byte, trailers Headers, timeoutMS uint32) (uint32, Status) {
	v.ctx()
	h, trailers = h.Clone(), trailers.Clone()
	lowerNames(h)
	lowerNames(trailers)
	return v.httpCall(cluster, h, bytes.Clone(body), trailers, timeoutMS)
}

// GetSharedData implements HostCalls.
func (v *vm) GetSharedData(key string) ([]byte, uint32, Status) {
	v.ctx()
	value, cas, st := v.host.process.data.get(v.host.cfg.VMID, key)
	if hook := v.host.cfg.Hooks.AfterGetSharedData; hook != nil {
		hook(HookSharedData{Thread: v.name, Key: key, Value: value, CAS: cas, Status: st})
	}
	return value, cas, st
}

// SetSharedData implements HostCalls.
func (v *vm) SetSharedData(key string, value []byte, cas uint32) Status {
	v.ctx()
	if hook := v.host.cfg.Hooks.BeforeSetSharedData; hook != nil {
		hook(HookSharedData{Thread: v.name, Key: key, Value: append([]byte{}, value...), CAS: cas})
	}
	return v.host.process.data.set(v.host.cfg.VMID, key, value, cas)
}

// RegisterSharedQueue implements HostCalls.
func (v *vm) RegisterSharedQueue(name string) (uint32, Status) {
	v.ctx()
	return v.host.process.queues.register(v.host.cfg.VMID, name, v.thread, v.root.id)
}

// ResolveSharedQueue implements HostCalls.
func (v *vm) ResolveSharedQueue(vmID, name string) (uint32, Status) {
	v.ctx()
	vmID = cmp.Or(vmID, v.host.cfg.VMID)
	return v.host.process.queues.resolve(vmID, name)
}

// EnqueueSharedQueue implements HostCalls.
func (v *vm) EnqueueSharedQueue(id uint32, item []byte) Status {
	v.ctx()
	return v.host.process.queues.enqueue(id, item)
}

// DequeueSharedQueue implements HostCalls.
func (v *vm) DequeueSharedQueue(id uint32) ([]byte, Status) {
	v.ctx()
	return v.host.process.queues.dequeue(id)
}

// DefineMetric implements HostCalls.
func (v *vm) DefineMetric(t MetricType, name string) (uint32, Status) {
	v.ctx()
	return v.metrics.define(v.host.process.metrics, t, name)
}

// IncrementMetric implements HostCalls.
func (v *vm) IncrementMetric(id uint32, offset int64) Status {
	v.ctx()
	return v.metrics.increment(id, offset)
}

// RecordMetric implements HostCalls.
func (v *vm) RecordMetric(id uint32, value uint64) Status {
	v.ctx()
	return v.metrics.record(id, value)
}

// GetMetric implements HostCalls.
func (v *vm) GetMetric(id uint32) (uint64, Status) {
	v.ctx()
	return v.metrics.get(id)
}

// SetTickPeriod implements HostCalls.
func (v *vm) SetTickPeriod(ms uint32) Status {
	v.ctx()
	v.setTick(time.Duration(ms) * time.Millisecond)
	return StatusOK
}

// Environ implements HostCalls.
func (v *vm) Environ() []string { return v.host.cfg.environ() }

// CurrentTime implements HostCalls.
func (v *vm) CurrentTime() uint64 {
	v.ctx()
	return uint64(v.host.cfg.Clock.Now().UnixNano())
}
