package hostsim

import (
	"context"
	"io"
	"log/slog"
	"time"
)

// FailurePolicy says what happens after a VM has trapped.
type FailurePolicy int

// Failure policies, named as in Envoy's PluginConfig.
const (
	// FailClosed answers new streams with 503 (response flag bits aside, code
	// details "wasm_fail_stream").
	FailClosed FailurePolicy = iota
	// FailOpen lets new streams pass without the filter.
	FailOpen
	// FailReload makes a new VM for the next stream, at most one per ReloadBackoff.
	FailReload
)

// Config describes a host: one process with one plugin. The zero value of every
// optional field means the default named in its comment.
type Config struct {
	// Guest is the filter: Wasm(bytes) or Native(factory). Required.
	Guest Source
	// VMID separates shared data and queues of different plugins (vm_id).
	VMID string
	// PluginName answers the property plugin_name; RootID is the plugin's root id.
	PluginName, RootID string
	// VMConfig and PluginConfig are handed to on_vm_start and on_configure.
	VMConfig, PluginConfig []byte
	// Workers is the number of worker VMs: 1 to 256, default 1. One more VM runs on
	// the main thread.
	Workers int
	// AllowOnHeadersStopIteration is Envoy's PluginConfig field of that name: Pause
	// on headers then still delivers body callbacks.
	AllowOnHeadersStopIteration bool
	// BufferLimit is per_connection_buffer_limit_bytes, default 1 MiB.
	BufferLimit int
	// FailurePolicy after a trap, default FailClosed.
	FailurePolicy FailurePolicy
	// ReloadBackoff is the least time between two reloads of a worker's VM under
	// FailReload, default 1 s.
	ReloadBackoff time.Duration
	// StreamIdleTimeout ends streams on which nothing moves, default 5 min.
	StreamIdleTimeout time.Duration
	// MaxStreams bounds the streams of each worker, default 16384.
	MaxStreams int
	// CallbackTimeout bounds one call into the guest; a longer one is a trap. Default
	// 10 s. It is real time, whatever Clock says.
	CallbackTimeout time.Duration
	// MemoryLimit bounds one VM's linear memory in bytes, default 256 MiB; rounded
	// up to wasm pages (64 KiB).
	MemoryLimit int
	// Clock is the time that guests, ticks and timeouts see, default the real one.
	Clock Clock
	// Clusters are the targets of callouts by name.
	Clusters map[string]Cluster
	// Logger gets the guest's log lines and the host's own reports, default none.
	Logger *slog.Logger
	// Seed makes request ids and the guest's random_get reproducible; 0 takes true
	// randomness.
	Seed uint64
	// Process is the process-wide state (shared data, queues, metrics). Nil makes one
	// that belongs to this host; several hosts with one Process are several filters,
	// or two generations of one filter, in one Envoy.
	Process *Process
}

// Host is a running plugin: the canary has been tried, the main-thread VM and the
// workers' VMs are configured.
type Host struct{}

// Process is what all VMs of one Envoy process share.
type Process struct{}

// Start loads the guest and brings the plugin up as Envoy does: canary first,
// then the main thread's VM, then the workers'. A guest that is malformed, imports
// what Envoy does not offer, traps or refuses its configuration is an error that
// says so, and nothing is left running.
func Start(ctx context.Context, cfg Config) (*Host, error) { return nil, ErrClosed }

// Close resets the streams that are still open, runs the plugin's done and delete
// callbacks and stops all loops. It waits for them until ctx ends.
func (h *Host) Close(ctx context.Context) error { return nil }

// Workers is the number of workers.
func (h *Host) Workers() int { return 0 }

// Traps returns the traps so far, oldest first (at most the last 1000).
func (h *Host) Traps() []Trap { return nil }

// Trap is one failed call into a guest.
type Trap struct {
	Time     time.Time
	Thread   string // "canary", "main" or "worker-N"
	Callback string // the callback's ABI name, "proxy_on_request_headers"
	Err      error
}

// WritePrometheus writes the filter's metrics in the Prometheus text format, named
// as Envoy's /stats/prometheus names them (prefix wasmcustom_).
func (h *Host) WritePrometheus(w io.Writer) error { return nil }

// SharedDataEntry is one key of the plugin's shared data.
type SharedDataEntry struct {
	Key   string
	Value []byte
	CAS   uint32
}

// SharedData returns a copy of the shared data of the plugin's vm_id, by key.
func (h *Host) SharedData() []SharedDataEntry { return nil }

// SharedDataSize returns the number of keys and the bytes of keys and values,
// without copying them.
func (h *Host) SharedDataSize() (keys, bytes int) { return 0, 0 }
