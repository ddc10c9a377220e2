package hostsim

import (
	"sort"
	"sync"
)

// sharedData is the process-wide key/value store: one map per vm_id under one lock. Keys are neither deleted nor
// expire. A vm_id's map is removed with its last VM (Process.release).
type sharedData struct {
	mu      sync.Mutex
	byVM    map[string]map[string]sharedValue
	bytes   int    // of all keys and values
	lastCAS uint32 // process-wide; never 0, which means "no CAS" in set
}

type sharedValue struct {
	value []byte // never written again once stored
	cas   uint32
}

func newSharedData() *sharedData {
	return &sharedData{byVM: make(map[string]map[string]sharedValue)}
}

// get returns the stored slice itself: callers must copy it or only read it.
func (d *sharedData) get(vmID, key string) ([]byte, uint32, Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.byVM[vmID][key]
	if !ok {
		return nil, 0, StatusNotFound
	}
	return v.value, v.cas, StatusOK
}

// set copies value. If the key exists with another CAS than a non-zero cas, the result is CasMismatch. cas 0 overwrites
// any value. An absent key is created whatever cas is.
func (d *sharedData) set(vmID, key string, value []byte, cas uint32) Status {
	stored := make([]byte, len(value))
	copy(stored, value)
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.byVM[vmID]
	if m == nil {
		m = make(map[string]sharedValue)
		d.byVM[vmID] = m
	}
	old, ok := m[key]
	if ok && cas != 0 && cas != old.cas {
		return StatusCasMismatch
	}
	grows := len(value) - len(old.value)
	if !ok {
		grows += len(key)
	}
	if d.bytes+grows > sharedDataLimit {
		return StatusInternalFailure
	}
	d.bytes += grows
	d.lastCAS++
	if d.lastCAS == 0 {
		d.lastCAS = 1
	}
	m[key] = sharedValue{stored, d.lastCAS}
	return StatusOK
}

func (d *sharedData) entries(vmID string) []SharedDataEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.byVM[vmID]
	out := make([]SharedDataEntry, 0, len(m))
	for k, v := range m {
		out = append(out, SharedDataEntry{Key: k, Value: append([]byte{}, v.value...), CAS: v.cas})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

func (d *sharedData) size(vmID string) (keys, bytes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.byVM[vmID] {
		bytes += len(k) + len(v.value)
	}
	return len(d.byVM[vmID]), bytes
}

func (d *sharedData) deleteVM(vmID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.byVM[vmID] {
		d.bytes -= len(k) + len(v.value)
	}
	delete(d.byVM, vmID)
}
