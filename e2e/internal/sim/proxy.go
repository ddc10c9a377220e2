package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oncegate/oncegate/plugin/gate"
)

// proxy is a process of a proxy: VMs that share data and queues.
type proxy struct {
	w     *World
	name  string
	life  int
	up    bool
	shift time.Duration // of its wall clock
	stage stage
	wires map[string]string // clusters that lead to the wrong manager

	data    map[string]shared
	cas     uint32
	queues  map[uint32]*sharedQueue
	byName  map[string]uint32
	metrics map[string]gate.MetricID
	counts  []int64

	vms     []*vm // the first is the main thread's, which gets no streams
	streams uint32
	used    []*operation // operations for which it had requests
	retired []*vm
}

type shared struct {
	value []byte
	cas   uint32
}

type sharedQueue struct {
	items [][]byte
	owner *vm
}

// vm is the gate on one thread.
type vm struct {
	closing uint32 // the connection whose end the running callback is about; 0: none, or the gate has closed it
	p       *proxy
	name    string
	life    int // the proxy's
	slot    int
	plugin  *gate.Plugin
	dead    bool
	// retired: another gate gets the new streams. finished: it has ended in good order.
	retired, draining, finished bool

	tickPeriod time.Duration
	ticks      int // how often the next tick was set

	current  *stream // nil: the plugin
	inside   bool
	deferred []func()
	streams  map[uint32]*stream
	calls    map[uint32]*callout
	lastCall uint32
	reading  *answer // of the callout that a callback is for
	conns    map[uint32]*conn
	lastConn uint32
	message  []byte        // that a callback is for
	trapIn   int           // host calls until it traps; 0: it does not
	busy     time.Duration // until then the thread has other work
}

func newProxy(w *World, name string) *proxy {
	p := &proxy{w: w, name: name, wires: make(map[string]string)}
	p.start()
	return p
}

// start starts the process with empty shared data.
func (p *proxy) start() {
	p.life++
	p.up = true
	p.data, p.queues, p.byName = make(map[string]shared), make(map[uint32]*sharedQueue), make(map[string]uint32)
	p.metrics, p.counts = make(map[string]gate.MetricID), make([]int64, 1)
	p.cas = 0
	p.vms, p.retired = nil, nil
	p.w.logf(p.name, "starts, life %d", p.life)
	p.newVM(-1) // the canary, which is thrown away
	for slot := range p.w.plan.Workers + 1 {
		p.vms = append(p.vms, p.newVM(slot))
	}
}

// newVM starts the gate in a VM of its own.
func (p *proxy) newVM(slot int) *vm {
	v := &vm{
		p: p, life: p.life, slot: slot, name: fmt.Sprintf("%s.%d", p.name, slot),
		streams: make(map[uint32]*stream), calls: make(map[uint32]*callout), conns: make(map[uint32]*conn),
	}
	v.plugin = gate.New(v)
	if err := v.plugin.Start([]byte(p.w.plan.config(p.stage, p.near()))); err != nil {
		p.w.fail("%s does not start: %v", v.name, err)
	}
	if slot >= 0 {
		v.nextTick(p.w.between(0, v.tickPeriod))
	}
	return v
}

// alive reports whether the VM can still run callbacks.
func (v *vm) alive() bool { return v.survived() && !v.finished }

// survived reports whether the VM is alive or has ended in good order.
func (v *vm) survived() bool { return !v.dead && v.p.up && v.life == v.p.life }

// wired returns the manager to which a cluster leads.
func (p *proxy) wired(cluster string) string {
	if name, ok := p.wires[cluster]; ok {
		return name
	}
	return cluster
}

// advance gives the process the configuration of a later stage.
func (p *proxy) advance(s stage) {
	if p.w.plan.NewShards == nil || p.stage >= s {
		return
	}
	p.stage = s
	p.w.logf(p.name, "has %s from now on", p.w.plan.shardFields(s, p.near()))
	p.update()
}

// update replaces all VMs of the process.
func (p *proxy) update() {
	if !p.up {
		return
	}
	p.w.logf(p.name, "gets a new configuration")
	p.newVM(-1)
	for slot, v := range p.vms {
		p.vms[slot] = p.newVM(slot)
		v.retired = true
		p.retired = append(p.retired, v)
	}
}

// retire asks a VM that has no streams any more whether it may go.
func (v *vm) retire() {
	if !v.retired || v.draining || len(v.streams) > 0 {
		return
	}
	v.draining = true
	v.enter(nil, func() {
		if v.plugin.Shutdown() {
			v.Done()
		}
	})
}

// nextTick makes the next tick come after d, and no other one before.
func (v *vm) nextTick(d time.Duration) {
	v.ticks++
	n := v.ticks
	v.p.w.after(d, func() {
		if n == v.ticks && v.alive() {
			v.tick()
		}
	})
}

func (v *vm) tick() {
	n := v.ticks
	v.enter(nil, v.plugin.OnTick)
	v.retire()
	if n != v.ticks {
		return // the plugin set another period
	}
	late := v.p.w.between(v.tickPeriod, v.tickPeriod*23/20)
	if len(v.streams) == 0 && !v.underWay() {
		late += v.p.w.between(0, 600*time.Millisecond) // nothing happens: look less often
	}
	v.nextTick(late)
}

// kill ends the process and loses its state.
func (p *proxy) kill() {
	if !p.up {
		return
	}
	p.w.logf(p.name, "is killed")
	p.up = false
	p.harm()
	for _, v := range append(p.retired, p.vms...) {
		v.hangUp("connection reset: the proxy is gone")
		v.dropConns()
	}
}

// harm notes the operations whose requests nobody may settle any more. They are those that the process
// had, because the calls that a gate still had to make are lost with it.
func (p *proxy) harm() {
	for _, op := range p.used {
		op.harmed = true
	}
}

// hangUp drops a VM's streams without telling the gate.
func (v *vm) hangUp(why string) {
	for _, id := range ids(v.streams) {
		s := v.streams[id]
		s.over = true
		if s.try != nil {
			s.try.reset(why)
		}
	}
	v.streams = nil
}

func ids[T any](m map[uint32]T) []uint32 {
	return slices.Sorted(maps.Keys(m))
}

// trapped is what a host call panics with when the VM traps in it.
type trapped struct{}

// enter runs a callback and then what it asked for.
func (v *vm) enter(s *stream, callback func()) {
	if !v.alive() {
		return
	}
	before := v.current
	v.current = s
	v.inside = true
	func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(trapped); !ok {
					panic(p)
				}
				v.trap()
			}
		}()
		callback()
	}()
	v.inside = false
	v.current = before
	for len(v.deferred) > 0 && v.alive() {
		do := v.deferred[0]
		v.deferred = v.deferred[1:]
		do()
	}
}

// trap ends the VM: its streams hang, and another VM takes its place.
func (v *vm) trap() {
	if v.dead {
		return
	}
	v.dead = true
	v.deferred = nil
	v.p.harm()
	v.dropConns()
	w := v.p.w
	w.logf(v.name, "traps; %d streams hang", len(v.streams))
	life := v.life
	w.after(w.between(time.Millisecond, 3*time.Second), func() {
		if v.p.up && v.p.life == life && !v.retired {
			w.logf(v.name, "is a new VM")
			v.p.vms[v.slot] = v.p.newVM(v.slot)
		}
	})
}

// ready runs the queue callback.
func (v *vm) ready(queue uint32) {
	v.enter(nil, func() { v.plugin.OnQueueReady(queue) })
}
