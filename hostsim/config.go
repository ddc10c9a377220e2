package hostsim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// FailurePolicy says what happens after a VM has trapped.
type FailurePolicy int

// Failure policies, named as in Envoy's PluginConfig.
const (
	// FailClosed answers new streams of that worker with 503 (response.code_details
	// "wasm_fail_stream").
	FailClosed FailurePolicy = iota
	// FailOpen lets new streams pass without the filter. Streams that the VM knew get the 503.
	FailOpen
	// FailReload makes a new VM for the next stream, at most one per ReloadBackoff. Streams in between get the 503.
	FailReload
)

// Config describes a host: one process with one plugin. The zero value of every
// optional field means the default named in its comment.
type Config struct {
	// Guest is the filter: Wasm(bytes) or Native(factory). Required.
	Guest Source
	// VMID separates shared data and queues of different plugins (vm_id).
	VMID string
	// PluginName and RootID answer the properties plugin_name and plugin_root_id.
	PluginName, RootID string
	// VMConfig and PluginConfig are passed to on_vm_start and on_configure.
	VMConfig, PluginConfig []byte
	// Environment has the variables of the VM's environment by name, as vm_config.environment_variables
	// does. Names are not empty and have no "="; neither names nor values have a zero byte.
	Environment map[string]string
	// Workers is the number of worker VMs: 1 to 256, default 1. One more VM runs on
	// the main thread.
	Workers int
	// AllowOnHeadersStopIteration is Envoy's PluginConfig field of that name: Pause
	// on headers then still delivers body callbacks.
	AllowOnHeadersStopIteration bool
	// BufferLimit is per_connection_buffer_limit_bytes: 1 KiB to 1 GiB, default 1 MiB.
	BufferLimit int
	// FailurePolicy after a trap, default FailClosed.
	FailurePolicy FailurePolicy
	// ReloadBackoff is the least time between two loads of a worker's VM, the first one
	// included, under FailReload; default 1 s.
	ReloadBackoff time.Duration
	// StreamIdleTimeout ends streams without any activity, default 5 min.
	StreamIdleTimeout time.Duration
	// MaxStreams bounds the streams of each worker, default 16384.
	MaxStreams int
	// MaxNestedReplies is how many local replies (or four times as many resumes) one callback may ask for, 1 to 4096,
	// default 304. Each is executed inside the previous one. Beyond this number the VM's stack overflows, which is a
	// trap. Envoy allows 304 replies in 1.36.2 and 1.40.0, 306 in 1.39.3, and 1309 to 1400 resumes.
	MaxNestedReplies int
	// CallbackTimeout ends a callback of a wasm guest that loops for longer, in real time: the guest traps. It must not be
	// negative. 0, the default, is no limit, as in Envoy. With a limit, callbacks and loops take longer. Functions that
	// call each other without a loop are not ended.
	CallbackTimeout time.Duration
	// MemoryLimit bounds one VM's linear memory in bytes: 64 KiB to 4 GiB, default 256
	// MiB, rounded up to wasm pages (64 KiB).
	MemoryLimit int
	// Clock is the time that guests, ticks and timeouts see, default the real one.
	Clock Clock
	// Clusters are the targets of callouts by name. The map must not change later.
	Clusters map[string]Cluster
	// Logger gets the guest's log lines and the host's own reports; default none.
	Logger *slog.Logger
	// Seed makes request ids and the guest's random_get reproducible; 0 uses real randomness.
	Seed uint64
	// Process is the process-wide state. Nil makes one for this host alone. Several hosts with one Process are several
	// filters, or two generations of one filter, in one Envoy.
	Process *Process
	// Hooks are called around what the guest does, for tests.
	Hooks Hooks
	// Recorder records callbacks and host calls, for golden transcripts.
	Recorder *Recorder
}

// Hooks let a test act at the points where threads race. They run on the VM's loop, must not block for long and must
// not call Settle or Advance. All are optional.
type Hooks struct {
	// BeforeCallback runs before each call into a guest; an error makes the VM trap
	// instead.
	BeforeCallback func(HookCallback) error
	// AfterGetSharedData runs after a guest has read a key, before it sees the answer.
	AfterGetSharedData func(HookSharedData)
	// BeforeSetSharedData runs before a guest's write takes effect. If it writes the same key (Process.SetSharedData),
	// the guest loses the race.
	BeforeSetSharedData func(HookSharedData)
}

// HookCallback is a callback about to happen.
type HookCallback struct {
	Thread   string // "canary", "main" or "worker-N"
	Callback string // ABI name
	Context  uint32
}

// HookSharedData is a shared-data access. Value must not be written to.
type HookSharedData struct {
	Thread, Key string
	Value       []byte
	CAS         uint32
	Status      Status // of a read
}

const defaultMemoryLimit = 256 << 20

func (c Config) withDefaults() (Config, error) {
	if c.Guest == nil {
		return c, errors.New("hostsim: Config.Guest is required")
	}
	bound := func(name string, v *int, def, lo, hi int) error {
		if *v == 0 {
			*v = def
		}
		if *v < lo || *v > hi {
			return fmt.Errorf("hostsim: Config.%s is %d, allowed are %d to %d", name, *v, lo, hi)
		}
		return nil
	}
	positive := func(name string, d *time.Duration, def time.Duration) error {
		if *d == 0 {
			*d = def
		}
		if *d < 0 {
			return fmt.Errorf("hostsim: Config.%s is %v, allowed are durations above 0", name, *d)
		}
		return nil
	}
	if err := errors.Join(
		bound("Workers", &c.Workers, 1, 1, 256),
		bound("BufferLimit", &c.BufferLimit, 1<<20, 1<<10, 1<<30),
		bound("MaxStreams", &c.MaxStreams, 16384, 1, 1<<20),
		bound("MaxNestedReplies", &c.MaxNestedReplies, 304, 1, 4096),
		bound("MemoryLimit", &c.MemoryLimit, defaultMemoryLimit, 64<<10, 4<<30),
		positive("ReloadBackoff", &c.ReloadBackoff, time.Second),
		positive("StreamIdleTimeout", &c.StreamIdleTimeout, 5*time.Minute),
	); err != nil {
		return c, err
	}
	for name, value := range c.Environment {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return c, fmt.Errorf("hostsim: Config.Environment has the variable %q; allowed are names without = and zero bytes, and values without zero bytes", name)
		}
	}
	if c.FailurePolicy < FailClosed || c.FailurePolicy > FailReload {
		return c, fmt.Errorf("hostsim: Config.FailurePolicy is %d, allowed are FailClosed, FailOpen and FailReload", c.FailurePolicy)
	}
	if c.CallbackTimeout < 0 {
		return c, fmt.Errorf("hostsim: Config.CallbackTimeout is %v, allowed are 0 and more", c.CallbackTimeout)
	}
	if c.Clock == nil {
		c.Clock = RealClock()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Process == nil {
		c.Process = NewProcess()
	}
	return c, nil
}

// environ returns the environment as NAME=VALUE, in the order of the names. Envoy's order is that of a hash table.
func (c Config) environ() []string {
	all := make([]string, 0, len(c.Environment))
	for name, value := range c.Environment {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return all
}
