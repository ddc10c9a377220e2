package gate

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

const (
	// tickPeriod is how often a VM looks after what nothing else reminds it of:
	// waits that are over, outcomes to repeat, answers that got lost, the sweep.
	tickPeriod = 200 * time.Millisecond
	// recheckPeriod is how often waiting duplicates look into the cache without
	// having been woken.
	recheckPeriod = time.Second
	// lostGrace is how long after its timeout a callout's answer is waited for.
	// The host answers a timeout by itself, so this is for answers that get lost.
	lostGrace = 5 * time.Second
	// sweepSets bounds the part of the cache that one tick looks at: with it, one VM looks
	// through a table of the default size within the default interval.
	sweepSets = 320
	// drainMessages bounds the messages that one queue callback takes.
	drainMessages = 256
	// pumpRounds bounds how often one callback follows up on its own consequences.
	pumpRounds = 8
	// maxActs bounds the replies and resumes of one callback of the plugin context. The host
	// carries them out when the callback has returned, each within the one before, and every
	// one calls back into the VM: about 300 of them overflow its stack, and the VM is lost
	// with all its streams.
	maxActs = 32
)

// Messages between VMs. Sixteen bytes are the hash of an entry that ended.
const (
	messageKick = 'k' // to itself: there is work for the plugin context
	messageAll  = 'a' // entries ended whose hashes are not known: all must look
)

// Plugin is the gate in one VM. Its methods are the host's callbacks; they
// never overlap.
type Plugin struct {
	host     Host
	config   *config.Config
	table    *cache.Table
	digester *request.Digester
	metrics  metrics
	queue    uint32

	calls   ledger
	carrier carrier

	working   []*reservation // upstream works under them: the tick renews them
	renewNext int            // the one that the last tick looked at last

	waiting list    // duplicates
	endings endings // replies that wait for their requests' ends
	bodies  bodyWatch
	partial list  // those of which the host holds body until more of it comes
	uploads int   // bytes of request bodies that are held here
	fullAt  int64 // an answer of more bytes fills the host's buffer; 0: not seen yet
	stuck   bool  // it was said that a request body stands still
	ticks   int64
	ticked  int64   // the last tick, except those that only look at endings
	writes  []write // changes of the cache to be tried again

	woken    []cache.Hash // entries whose local waiters must look again
	wokenAll bool
	kicked   bool   // a kick is in our queue
	inside   bool   // the plugin context is active and will pump
	acts     int    // replies and resumes of the running callback
	overdue  bool   // waiters whose time is over are left
	chosen   uint32 // the stream that was selected, 0: none
	draining bool   // the host waits for us to finish

	swept     cache.Stats // what the metrics know already
	rechecked int64
	beaten    int64 // the last beat
	steady    int64 // since when this VM has beaten without a gap, 0: since its start
	sweepSize int

	// Buffers that are used again from call to call.
	entry   cache.Entry
	scratch []byte
	headers [][2]string
}

// New returns a gate that is not started.
func New(host Host) *Plugin { return &Plugin{host: host} }

// Start reads the configuration and prepares the VM. The error says what is
// wrong, naming the field; the plugin must then not be used.
//
// It is also called on VMs that never get a stream, so what it does is harmless
// there: a scratch key, a queue that nobody writes to, metrics by name.
func (p *Plugin) Start(configuration []byte) error {
	cfg, err := config.Parse(configuration)
	if err != nil {
		return err
	}
	p.config = cfg
	p.metrics.define(p.host)
	var name [16]byte
	if !p.host.Random(name[:]) {
		return startError("the host has no randomness to offer")
	}
	queue, ok := p.host.RegisterQueue("oncegate." + hexString(name[:]))
	if !ok {
		return startError("the host refused to register a shared queue")
	}
	p.queue = queue
	semantics := cache.Probe(p.host, cachePrefix)
	if !semantics.Usable {
		p.host.Log(LevelWarn, "oncegate: shared data is not usable here; every request asks the ledger")
	}
	p.table = cache.New(p.host, semantics, cache.Options{
		Prefix:     cachePrefix,
		MaxEntries: cfg.MaxEntries,
		MaxBytes:   cfg.MaxBytes,
		// What comes with a body: status and headers.
		MaxResultBytes: cfg.LargestAnswer() + api.MaxResultHeaderBytes,
	})
	p.beaten = p.host.Now()
	p.table.Beat(p.queue, p.beaten)
	p.digester = request.NewDigester(cfg.ScopeSecret)
	p.calls.init(p)
	p.carrier.p = p
	p.sweepSize = sweepSets
	if cfg.CleanupInterval > 0 {
		perTick := int64(p.table.Buckets()) * int64(tickPeriod) / int64(cfg.CleanupInterval)
		p.sweepSize = int(min(perTick+1, sweepSets))
	}
	if !p.host.SetTick(tickPeriod) {
		return startError("the host refused to set the tick period")
	}
	// Whatever is in the queue raises no callback.
	p.drain()
	return nil
}

// cachePrefix starts the keys of all that gates keep in shared data. A gate and its
// successor share them; the version in each record tells formats apart.
const cachePrefix = "oncegate"

type startError string

func (e startError) Error() string { return string(e) }

// Shutdown tells that the host wants to remove the plugin. True: at once.
// Otherwise requests are still running, whose reservations are renewed, or outcomes are on
// their way to the ledger or the cache. Host.Done is called when these have arrived or run out.
func (p *Plugin) Shutdown() bool {
	if p.idle() {
		return true
	}
	p.draining = true
	return false
}

func (p *Plugin) idle() bool {
	return p.calls.idle() && p.carrier.idle() && len(p.writes) == 0 && len(p.working) == 0
}

// NewStream returns the state of a new stream.
func (p *Plugin) NewStream(id uint32) *Stream { return &Stream{plugin: p, id: id} }

// OnQueueReady runs in the plugin context when a message is in a queue.
func (p *Plugin) OnQueueReady(queue uint32) {
	if p.table == nil || queue != p.queue {
		return
	}
	p.enter()
	p.drain()
	p.pace()
	p.calls.turn()
	p.pump()
}

// OnTick runs in the plugin context about every tickPeriod.
func (p *Plugin) OnTick() {
	if p.table == nil {
		return
	}
	p.enter()
	now := p.host.Now()
	p.endings.tick = p.endings.slow.size > 0
	if since := now - p.ticked; p.endings.fast && since >= 0 && since < int64(tickPeriod) {
		p.pump()
		return
	}
	p.ticked = now
	// A kick that never came back must not silence all later ones.
	p.kicked = false
	p.drain()
	p.beat(now)
	p.calls.tick()
	p.renew(now)
	p.carrier.lost = true
	p.rewrite(now)
	p.stalls()
	p.checkBodies(now)
	p.overdue = true
	if now-p.rechecked >= int64(recheckPeriod) || now < p.rechecked {
		p.rechecked = now
		if p.waiting.size > 0 {
			p.wokenAll = true
		}
	}
	p.wakeAll(p.table.Sweep(p.sweepSize, now))
	p.pump()
	p.report()
}

// OnCallResponse runs in the plugin context when a callout has ended.
func (p *Plugin) OnCallResponse(id uint32, bodySize int) {
	if p.table == nil {
		return
	}
	p.enter()
	if p.carrier.answered(id, bodySize) {
		// Upstream answers many in one turn of the event loop, each in a callback of its own. Their outcomes go
		// to the ledger together, out of the queue callback behind them.
		p.leave()
		return
	}
	p.calls.answered(id, bodySize)
	p.pump()
}

// beat tells the other VMs that this one is alive.
func (p *Plugin) beat(now int64) {
	since := now - p.beaten
	if since >= 0 && since < cache.BeatPeriod {
		return
	}
	if since >= beatGap {
		p.steady = now
	}
	p.beaten = now
	p.table.Beat(p.queue, now)
}

// beatGap is how late a beat may be until the VM must have stood still.
const beatGap = 3 * cache.BeatPeriod

// dead tells whether the VM of another queue has died. A VM that stood still itself does
// not judge the others by their silence before they had time to beat: the whole proxy
// may have stood still.
func (p *Plugin) dead(queue uint32, now int64) bool {
	return queue != p.queue && now-p.beaten < beatGap && now-p.steady >= 2*cache.BeatPeriod && !p.table.Alive(queue, now)
}

// enter begins a callback of the plugin context.
func (p *Plugin) enter() { p.inside, p.chosen, p.acts = true, 0, 0 }

// spent tells that the running callback may neither answer nor resume another stream;
// the next one goes on.
func (p *Plugin) spent() bool { return p.acts >= maxActs }

// choose makes a stream, or with 0 the plugin, the one that host calls are about.
// Only callbacks of the plugin context do so.
func (p *Plugin) choose(stream uint32) bool {
	if p.chosen == stream {
		return true
	}
	if !p.host.Select(stream) {
		return false
	}
	p.chosen = stream
	return true
}

// drain takes the messages out of our queue.
func (p *Plugin) drain() {
	p.kicked = false
	for range drainMessages {
		message, ok := p.host.Dequeue(p.queue)
		if !ok {
			return
		}
		switch {
		case len(message) == len(cache.Hash{}):
			p.woken = append(p.woken, cache.Hash(message))
		case len(message) == 1 && message[0] == messageAll:
			p.wokenAll = true
		}
	}
}

// pump does what is due in the plugin context: sends calls, wakes duplicates.
// Only here streams other than the one whose callback runs are answered: a local
// reply makes the host stop the running callback's stream, whichever it was for.
func (p *Plugin) pump() {
	p.refuseBodies()
	p.sendReplies()
	for range pumpRounds {
		sent := p.calls.send()
		carried := p.carrier.send()
		if woken := p.wakeWaiters(); !sent && !carried && !woken {
			break
		}
	}
	p.leave()
}

// leave ends a callback of the plugin context.
func (p *Plugin) leave() {
	p.inside = false
	if p.due() {
		p.kick()
	}
	if p.draining && p.idle() {
		p.draining = false
		p.host.Done()
	}
}

func (p *Plugin) due() bool {
	return p.overdue || p.wokenAll || len(p.woken) > 0 || p.calls.due() || p.carrier.due() || p.bodies.refusing || p.endings.due()
}

// kick asks for a queue callback, in which the plugin context is active. If it
// cannot be had, the tick does the work.
func (p *Plugin) kick() {
	if !p.inside && !p.kicked {
		p.kicked = p.host.Enqueue(p.queue, []byte{messageKick})
	}
}

// wake tells the waiters of an entry that it ended. queues are the VMs that the
// cache knows to wait.
func (p *Plugin) wake(hash *cache.Hash, queues []uint32) {
	for _, queue := range queues {
		if queue != p.queue {
			p.host.Enqueue(queue, hash[:])
		}
	}
	if p.waiting.size > 0 {
		p.woken = append(p.woken, *hash)
		p.kick()
	}
}

// wakeAll tells VMs that some entry ended.
func (p *Plugin) wakeAll(queues []uint32) {
	for _, queue := range queues {
		if queue == p.queue {
			p.wokenAll = true
			p.kick()
		} else {
			p.host.Enqueue(queue, []byte{messageAll})
		}
	}
}

// report brings the metrics up to date with the table's counts.
func (p *Plugin) report() {
	stats := p.table.Stats()
	m := &p.metrics
	m.add(m.evicted, int64(stats.Evictions-p.swept.Evictions))
	m.add(m.full, int64(stats.Refused-p.swept.Refused))
	m.add(m.unkept, int64(stats.Unkept-p.swept.Unkept))
	m.add(m.casRetry, int64(stats.Retries-p.swept.Retries))
	if stats.Entries != p.swept.Entries {
		m.set(m.entries, stats.Entries)
	}
	if stats.Bytes != p.swept.Bytes {
		m.set(m.bytes, stats.Bytes)
	}
	p.swept = stats
}

func hexString(b []byte) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}
