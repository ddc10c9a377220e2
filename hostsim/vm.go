package hostsim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// vm is one Wasm VM: a guest, its contexts and the state of the running callback. All of it belongs to one thread's
// loop (a canary to the main thread's).
type vm struct {
	host   *Host
	thread *thread
	name   string
	canary bool
	guest  guest
	failed bool // trapped: every later call fails
	closed bool // discarded: late answers and ticks are dropped

	contexts map[uint32]*vmContext
	nextID   uint32
	root     *vmContext

	// current is the context of the running callback, nil between callbacks;
	// effective replaces it in host calls until the callback ends.
	current, effective *vmContext
	outer              []savedContext // contexts of outer callbacks, whose host calls led to this one
	configuring        bool           // plugin configuration may be read
	stopIteration      bool           // a local response was sent: the callback's action counts as "stop"
	after              []afterAction
	nesting            int // cost of the nested actions in progress

	calls        map[uint32]*callout
	callBytes    int // of the requests of all calls
	lastCall     uint32
	callResponse CallResponse // during OnHTTPCallResponse; without Headers there is none
	callCode     uint32       // of the last failed call or ended gRPC stream
	callStatus   string       // its text, while it is reported

	grpcStreams map[uint32]*guestStream
	lastStream  uint32
	grpcEvent   grpcEvent    // during a callback of a gRPC stream
	grpcClosing uint32       // the stream whose close callback is running
	refused     []func()     // close callbacks that must wait for the end of all callbacks
	grpcBytes   atomic.Int64 // what servers have sent and the guest has not got

	metrics    vmMetrics
	tick       timer
	tickPeriod time.Duration

	onClosed chan struct{} // closed once the VM is discarded; nil while nobody waits
}

// savedContext is the state of a callback that a nested callback interrupts.
type savedContext struct{ current, effective *vmContext }

// vmContext is a context inside a VM: the VM itself (id 0), the plugin's root
// context, or a stream.
type vmContext struct {
	id     uint32
	stream *Stream
	// pendingDone: proxy_on_done answered false and proxy_done has not come yet.
	pendingDone bool
}

// afterAction is an action that a callback asked for and that runs after its end.
type afterAction struct {
	kind   afterKind
	stream *Stream
	reply  *localReply
	f      func()
}

type afterKind uint8

const (
	afterContinueRequest afterKind = iota
	afterContinueResponse
	afterClose
	afterReply
	afterPluginDone
	afterFunc
)

// later queues an action to run after the callback.
func (v *vm) later(a afterAction) Status {
	if len(v.after) >= afterLimit {
		return StatusInternalFailure
	}
	v.after = append(v.after, a)
	return StatusOK
}

func newVM(t *thread, name string, canary bool) *vm {
	v := &vm{
		host: t.host, thread: t, name: name, canary: canary,
		contexts: map[uint32]*vmContext{0: {}}, nextID: 1,
		calls: make(map[uint32]*callout), grpcStreams: make(map[uint32]*guestStream), metrics: newVMMetrics(),
	}
	v.tick = timer{clock: t.host.cfg.Clock, loop: t.loop}
	return v
}

// start makes the guest and starts the plugin in it: on_context_create for the root context, on_vm_start, on_configure.
func (v *vm) start(ctx context.Context) error {
	var calls HostCalls = v
	if r := v.host.cfg.Recorder; r != nil {
		calls = &recordingCalls{v: v, rec: r}
	}
	g, err := v.host.program.newGuest(ctx, guestEnv{
		name: v.name, clock: v.host.cfg.Clock, epoch: v.host.epoch, environ: v.host.cfg.environ(),
	}, calls)
	if err != nil {
		v.trap("initialisation", err)
		return fmt.Errorf("hostsim: %s: initialisation: %w", v.name, err)
	}
	v.guest = g
	v.root = v.newContext(nil)
	v.configuring = true
	_, _ = v.callback(v.root, onContextCreate, 0)
	v.configuring = false
	started, _ := v.callback(v.root, onVMStart, uint32(len(v.host.cfg.VMConfig)))
	v.finish()
	if err := v.startError(onVMStart, started); err != nil {
		return err
	}
	v.configuring = true
	configured, _ := v.callback(v.root, onConfigure, uint32(len(v.host.cfg.PluginConfig)))
	v.configuring = false
	v.finish()
	return v.startError(onConfigure, configured)
}

func (v *vm) startError(f *callback, accepted uint32) error {
	if v.failed {
		return fmt.Errorf("hostsim: %s: %s: %w", v.name, f.name, v.host.lastTrap(v.name))
	}
	if accepted == 0 {
		return fmt.Errorf("hostsim: %s: %s refused the configuration%s", v.name, f.name, v.host.lastErrorLog())
	}
	return nil
}

func (v *vm) newContext(s *Stream) *vmContext {
	for {
		id := v.nextID
		v.nextID++
		if _, used := v.contexts[id]; !used {
			c := &vmContext{id: id, stream: s}
			v.contexts[id] = c
			return c
		}
	}
}

// callback calls the guest in context c. If it returns false the VM is dead, and the guest was not called. Each call that
// returned true must be followed by finish, once the result was read. A trap of the guest leaves a zero result. args are
// the callback's parameters after the context.
func (v *vm) callback(c *vmContext, f *callback, args ...uint32) (result uint32, called bool) {
	if !v.begin(c, f.name) {
		return 0, false
	}
	recorder := v.host.cfg.Recorder
	if recorder != nil {
		recorder.called(v.name, f, c.id, args)
	}
	params := [maxParams]uint32{c.id}
	copy(params[1:], args)
	result, err := guarded(v.guest, f, params)
	if recorder != nil {
		recorder.returned(v.name, f, result, err)
	}
	v.end(f.name, err)
	return result, true
}

func guarded(g guest, f *callback, params [maxParams]uint32) (result uint32, err error) {
	defer recoverTrap(&err)
	return g.call(f, params)
}

// notify is callback and finish, for callbacks without a result that matters.
func (v *vm) notify(c *vmContext, f *callback, args ...uint32) {
	if _, called := v.callback(c, f, args...); called {
		v.finish()
	}
}

// begin prepares a callback in context c. If it returns false the VM is (now) dead and the guest must not be called.
func (v *vm) begin(c *vmContext, callback string) bool {
	if v.failed || v.closed {
		return false
	}
	if v.nesting > v.host.cfg.MaxNestedReplies*replyCost {
		v.trap(callback, errNesting)
		return false
	}
	if hook := v.host.cfg.Hooks.BeforeCallback; hook != nil {
		if err := hook(HookCallback{Thread: v.name, Callback: callback, Context: c.id}); err != nil {
			v.trap(callback, err)
			return false
		}
	}
	v.outer = append(v.outer, savedContext{v.current, v.effective})
	v.current, v.effective = c, nil
	return true
}

// end closes the callback; err is a trap.
func (v *vm) end(callback string, err error) {
	last := len(v.outer) - 1
	v.current, v.effective = v.outer[last].current, v.outer[last].effective
	v.outer = v.outer[:last]
	switch {
	case err != nil:
		v.trap(callback, err)
	case v.failed && last == 0:
		v.guest.close() // a nested callback trapped
	}
}

// The stack space of a local reply, relative to a resume. In Envoy about 304 replies or 1300 resumes fill the stack.
const replyCost = 4

var errNesting = errors.New("RangeError: Maximum call stack size exceeded: too many replies or resumes asked for in one callback")

// finish runs the actions that callbacks queued until after their end. The actions may run further callbacks, whose own
// actions join the same queue, and whose end runs the rest of it. So, as in Envoy, each action is nested in the
// previous one.
func (v *vm) finish() {
	v.stopIteration = false
	for len(v.after) > 0 {
		a := v.after[0]
		v.after = v.after[1:]
		if len(v.after) == 0 {
			v.after = nil
		}
		cost := 1
		if a.kind == afterReply {
			cost = replyCost
		}
		v.nesting += cost
		switch a.kind {
		case afterContinueRequest:
			a.stream.req.resume()
		case afterContinueResponse:
			a.stream.resp.resume()
		case afterClose:
			a.stream.closeByFilter()
		case afterReply:
			a.stream.filterReply(a.reply)
		case afterPluginDone:
			v.deleteRoot()
		case afterFunc:
			a.f()
		}
		v.nesting -= cost
		if len(v.after) == 0 && len(v.outer) == 0 {
			for _, f := range v.refused {
				f()
			}
			v.refused = nil
		}
	}
}

// trap marks the VM dead and reports why.
func (v *vm) trap(callback string, err error) {
	v.failed = true
	v.tick.disarm()
	v.host.reportTrap(Trap{Time: v.host.cfg.Clock.Now(), Thread: v.name, Callback: callback, Err: err})
	if v.guest != nil && len(v.outer) == 0 {
		v.guest.close()
	}
	v.gone()
}

// gone wakes the callers that wait until the plugin is done.
func (v *vm) gone() {
	if v.onClosed != nil {
		close(v.onClosed)
		v.onClosed = nil
	}
}

// shutdown runs the plugin's done callback and, unless the plugin wants to wait for proxy_done, its delete callback.
func (v *vm) shutdown() {
	if v.root == nil {
		return
	}
	done, called := v.callback(v.root, onDone)
	if called {
		v.finish()
	}
	if called && done == 0 && !v.failed {
		v.root.pendingDone = true
		return
	}
	v.deleteRoot()
}

func (v *vm) deleteRoot() {
	v.root.pendingDone = false
	v.notify(v.root, onDelete)
	v.discard()
}

// discard removes the VM without any callback: it cancels the callouts and gRPC streams, stops the timer and frees the memory.
func (v *vm) discard() {
	if v.closed {
		return
	}
	v.closed = true
	v.tick.disarm()
	for token := range v.calls {
		v.forgetCall(token)
	}
	v.closeStreams()
	if v.guest != nil && !v.failed {
		v.guest.close()
	}
	v.gone()
}

// --- plugin callbacks ---

func (v *vm) onQueueReady(contextID, queue uint32) {
	if c := v.contexts[contextID]; c != nil {
		v.notify(c, onQueueReady, queue)
	}
}

func (v *vm) onTick() {
	if v.tickPeriod == 0 {
		return
	}
	v.notify(v.root, onTick)
	// The next period starts after the callback: ticks drift, but never queue up.
	if v.tickPeriod > 0 && !v.failed && !v.closed {
		v.armTick()
	}
}

func (v *vm) armTick() {
	v.tick.arm(v.tickPeriod, event{kind: evFunc, f: v.onTick})
}

// setTick starts, changes or stops the VM's timer. A new period counts from now.
func (v *vm) setTick(period time.Duration) {
	v.tickPeriod = period
	switch {
	case period == 0:
		v.tick.disarm()
	case !v.canary:
		v.armTick()
	}
}

// ctx returns the context that host calls act on. Outside a callback there is none, and the call is a trap. That
// enforces the restrictions during initialisation.
func (v *vm) ctx() *vmContext {
	if v.effective != nil {
		return v.effective
	}
	if v.current == nil {
		panic(trapError("host call outside a callback: before the VM has started only logging is allowed"))
	}
	return v.current
}
