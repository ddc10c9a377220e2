package gate

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

const (
	// tickPeriod is the time between two ticks. The tick does what no other callback triggers: waits that are over,
	// outcomes to repeat, answers that got lost, the sweep.
	tickPeriod = 200 * time.Millisecond
	// recheckPeriod is how often waiting duplicates look into the cache when nothing wakes them.
	recheckPeriod = time.Second
	// lostGrace is how long the gate waits for a callout's answer after the timeout. The host reports timeouts itself, so
	// only an answer that got lost takes longer.
	lostGrace = 5 * time.Second
	// sweepSets bounds the buckets that one tick sweeps. It is large enough for one VM to sweep a table of the default size
	// within the default interval.
	sweepSets = 320
	// maxQueueMessages bounds the messages that one queue callback takes.
	maxQueueMessages = 256
	// pendingRounds bounds how often one callback does the work that its own work has caused.
	pendingRounds = 8
	// maxHandled bounds the replies and resumes of one callback of the plugin context. The host carries them out after the
	// callback, each within the one before, and each calls back into the VM. About 300 of them overflow its stack, and the
	// VM is lost with all its streams.
	maxHandled = 32
)

// Messages between VMs. A message of sixteen bytes is the hash of an entry that ended.
const (
	messageCallback = 'k' // from a VM to itself: there is work for the plugin context
	messageAll      = 'a' // entries of unknown hashes ended: all waiters must look
)

// Plugin is the gate in one VM. Its methods are the host's callbacks; they never overlap.
type Plugin struct {
	host     Host
	config   *config.Config
	table    *cache.Table
	digester *request.Digester
	metrics  metrics
	queue    uint32

	calls   ledger
	carrier carrier

	renewing  []*reservation // those that upstream works under: the tick renews them
	renewNext int            // the position in renewing at which the last tick stopped

	waiting         list           // duplicates that wait for an entry to end
	delayed         delayedReplies // replies that wait for their requests' ends
	reroutes        list           // streams in phaseReroute
	noAnswerRoute   limitedLog
	bodies          bodyWatch
	awaitingBody    list  // streams with a body that the host holds until more of it comes
	uploadBytes     int   // bytes of request bodies that the VM holds
	hostBufferBytes int64 // an answer of more bytes fills the host's buffer; 0: not seen yet
	stallLogged     bool  // the log already says that a request body stands still
	ticks           int64
	lastTick        int64         // time of the last tick, except those that only look at delayed replies
	changes         []entryChange // cache changes that must be tried again

	wokenKeys         []cache.Hash // entries whose local waiters must look again
	wokenAll          bool         // all local waiters must look again
	callbackRequested bool         // a message for it is in this VM's queue
	inPluginContext   bool         // the plugin context is active and will call runPending
	handled           int          // replies and resumes of the running callback
	deadlinesDue      bool         // there may be waiters whose time is over
	current           uint32       // the selected stream; 0: none
	shuttingDown      bool         // the host waits for Host.Done

	reportedStats cache.Stats // the counts that the metrics already include
	lastRecheck   int64
	lastBeat      int64 // time of the last beat
	steadySince   int64 // since when this VM beats without a gap; 0: since its start
	sweepSize     int

	// Buffers that calls reuse.
	entry        cache.Entry
	scratch      []byte
	headers      [][2]string
	nameBuf      []byte            // see names
	change       entryChange       // argument of changeEntry
	asked        cache.Reservation // argument of Table.Reserve
	replayed     api.Result        // what replayRaw reads
	ambiguousLog limitedLog
}

// New returns a gate that is not started.
func New(host Host) *Plugin { return &Plugin{host: host} }

// Start reads the configuration and prepares the VM. An error names the field that is wrong and says why; the plugin must
// then not be used.
//
// Hosts also call it on VMs that never get a stream, so it does only what is harmless there: it writes a scratch key and a
// beat, registers a queue, and defines metrics.
func (p *Plugin) Start(configuration []byte) error {
	cfg, err := config.Parse(configuration)
	if err != nil {
		return err
	}
	token, err := cfg.Manager.Token(p.host.Env)
	if err != nil {
		return err
	}
	secret, err := cfg.Secret(p.host.Env)
	if err != nil {
		return err
	}
	p.config = cfg
	p.metrics.define(p.host)
	var name [16]byte
	if !p.host.Random(name[:]) {
		return errors.New("the host has no randomness to offer")
	}
	queue, ok := p.host.RegisterQueue("oncegate." + hex.EncodeToString(name[:]))
	if !ok {
		return errors.New("the host refused to register a shared queue")
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
		// A body comes with a status and headers.
		MaxResultBytes: cfg.LargestAnswer() + api.MaxResultHeaderBytes,
	})
	p.lastBeat = p.host.Now()
	p.table.Beat(p.queue, p.lastBeat)
	p.logShared()
	p.digester = request.NewDigester(secret)
	p.calls.init(p, token)
	p.carrier.p = p
	p.sweepSize = sweepSets
	if cfg.CleanupInterval > 0 {
		perTick := int64(p.table.Buckets()) * int64(tickPeriod) / int64(cfg.CleanupInterval)
		p.sweepSize = int(min(perTick+1, sweepSets))
	}
	if !p.host.SetTick(tickPeriod) {
		return errors.New("the host refused to set the tick period")
	}
	// Messages that are in the queue already raise no callback.
	p.readQueue()
	return nil
}

// cachePrefix is the prefix of all keys that gates use in shared data. An older and a newer gate share them; the version in
// each record identifies its format.
const cachePrefix = "oncegate"

// logShared names the routes where callers may share their keys.
func (p *Plugin) logShared() {
	if names := p.config.Shared(); len(names) > 0 {
		p.host.Log(LevelInfo, `oncegate: requests that lack what the scope names share their keys ("anonymous": "shared") in `+strings.Join(names, ", "))
	}
}

// Shutdown prepares for the plugin's removal. True: the host may remove it now. False: requests still run and need
// renewals, or outcomes are on their way to the ledger or the cache. The plugin calls Host.Done once all of them have
// arrived or run out.
func (p *Plugin) Shutdown() bool {
	if p.idle() {
		p.calls.close()
		p.calls.connect() // closes them
		return true
	}
	p.shuttingDown = true
	return false
}

func (p *Plugin) idle() bool {
	return p.calls.idle() && p.carrier.idle() && len(p.changes) == 0 && len(p.renewing) == 0
}

// beat records for the other VMs that this one is alive.
func (p *Plugin) beat(now int64) {
	since := now - p.lastBeat
	if since >= 0 && since < cache.BeatPeriod {
		return
	}
	if since >= beatGap {
		p.steadySince = now
	}
	p.lastBeat = now
	p.table.Beat(p.queue, now)
}

// beatGap is the time after which a late beat means that the VM stood still.
const beatGap = 3 * cache.BeatPeriod

// isDead reports whether the VM of another queue has died. After this VM stood still it judges no other VM until that one
// had time to beat, because the whole proxy may have stood still.
func (p *Plugin) isDead(queue uint32, now int64) bool {
	return queue != p.queue && now-p.lastBeat < beatGap && now-p.steadySince >= 2*cache.BeatPeriod && !p.table.Alive(queue, now)
}

// reportStats adds to the metrics what the table has counted since the last report.
func (p *Plugin) reportStats() {
	stats := p.table.Stats()
	m := &p.metrics
	m.add(m.evicted, int64(stats.Evictions-p.reportedStats.Evictions))
	m.add(m.full, int64(stats.Refused-p.reportedStats.Refused))
	m.add(m.answersDropped, int64(stats.AnswersDropped-p.reportedStats.AnswersDropped))
	m.add(m.casRetry, int64(stats.Retries-p.reportedStats.Retries))
	if stats.Entries != p.reportedStats.Entries {
		m.record(m.entries, stats.Entries)
	}
	if stats.Bytes != p.reportedStats.Bytes {
		m.record(m.bytes, stats.Bytes)
	}
	p.reportedStats = stats
}

// NewStream returns the state of a new stream.
func (p *Plugin) NewStream(id uint32) *Stream { return &Stream{plugin: p, id: id} }

// OnQueueReady runs in the plugin context when a message is in a queue.
func (p *Plugin) OnQueueReady(queue uint32) {
	if queue == p.queue && p.beginCallback() {
		p.calls.connect()
		p.readQueue()
		p.setTickPeriod()
		p.runPending()
	}
}

// OnTick runs in the plugin context about every tickPeriod.
func (p *Plugin) OnTick() {
	if !p.beginCallback() {
		return
	}
	p.calls.connect()
	now := p.host.Now()
	p.delayed.checkPolled = p.delayed.polled.size+p.delayed.withBody.size > 0
	if since := now - p.lastTick; p.delayed.fastTick && since >= 0 && since < int64(tickPeriod) {
		p.runPending()
		return
	}
	p.lastTick = now
	// A message that got lost must not suppress all later ones.
	p.callbackRequested = false
	p.readQueue()
	p.beat(now)
	p.calls.tick()
	p.renew(now)
	p.carrier.checkTimeouts = true
	p.retryChanges(now)
	p.checkStalls()
	p.checkBodies(now)
	p.deadlinesDue = true
	if now-p.lastRecheck >= int64(recheckPeriod) || now < p.lastRecheck {
		p.lastRecheck = now
		if p.waiting.size > 0 {
			p.wokenAll = true
		}
	}
	p.wakeAll(p.table.Sweep(p.sweepSize, now))
	p.runPending()
	p.reportStats()
}

// OnCallResponse runs in the plugin context when an upstream call has ended.
func (p *Plugin) OnCallResponse(id uint32, bodySize int) {
	if p.beginCallback() {
		p.carrier.onUpstreamAnswer(id, bodySize)
		p.runPending()
	}
}

// OnStreamMessage runs in the plugin context when a message of a manager has come.
func (p *Plugin) OnStreamMessage(id uint32, size int) {
	if p.beginCallback() {
		p.calls.onMessage(id, size)
		p.runPending()
	}
}

// OnStreamClose runs in the plugin context when a gRPC stream has ended.
func (p *Plugin) OnStreamClose(id uint32, status int) {
	if p.beginCallback() {
		p.calls.onClose(id, status)
		p.runPending()
	}
}

// beginCallback begins a callback of the plugin context; exit ends it. False: the plugin has not started.
func (p *Plugin) beginCallback() bool {
	p.inPluginContext, p.current, p.handled = p.table != nil, 0, 0
	return p.inPluginContext
}

// atLimit reports whether the running callback has answered or resumed as many streams as it may. The next callback
// continues.
func (p *Plugin) atLimit() bool { return p.handled >= maxHandled }

// makeCurrent makes a stream the one that host calls act on; 0 is the plugin itself. False: the host does not know the
// stream any more.
func (p *Plugin) makeCurrent(stream uint32) bool {
	if p.current == stream {
		return true
	}
	if !p.host.Select(stream) {
		return false
	}
	p.current = stream
	return true
}

// readQueue takes the messages out of this VM's queue.
func (p *Plugin) readQueue() {
	p.callbackRequested = false
	for range maxQueueMessages {
		message, ok := p.host.Dequeue(p.queue)
		if !ok {
			return
		}
		switch {
		case len(message) == len(cache.Hash{}):
			p.wokenKeys = append(p.wokenKeys, cache.Hash(message))
		case len(message) == 1 && message[0] == messageAll:
			p.wokenAll = true
		}
	}
}

// setTickPeriod changes the tick's period if replies begin or cease to wait for ticks. Only queue callbacks call it: a host
// may not expect a tick to change its own period.
func (p *Plugin) setTickPeriod() {
	n := &p.delayed
	if !n.changesTick() {
		return
	}
	n.fastTick = !n.fastTick
	period := tickPeriod
	if n.fastTick {
		period = endPeriod
	}
	if !p.host.SetTick(period) {
		p.host.Log(LevelError, "oncegate: the host refused to change the tick period")
	}
}

// runPending does the work of the plugin context: it sends calls and wakes duplicates. Only here may the gate answer a
// stream other than the one whose callback runs, because a local reply makes the host stop the running callback's stream,
// whichever stream the reply is for.
func (p *Plugin) runPending() {
	if p.bodies.refusing {
		p.refuseBodies()
	}
	if p.delayed.due() {
		p.sendReplies()
	}
	if p.reroutes.size > 0 {
		p.sendReroutes()
	}
	for range pendingRounds {
		sent := p.calls.sendReady()
		carried := p.carrier.hasWork() && p.carrier.send()
		woken := p.wakesDue() && p.wakeWaiters()
		if !sent && !carried && !woken {
			break
		}
	}
	p.endCallback()
}

// endCallback ends a callback of the plugin context.
func (p *Plugin) endCallback() {
	p.inPluginContext = false
	ended := p.shuttingDown && p.idle() && p.calls.close()
	if p.hasWork() {
		p.requestCallback()
	}
	if ended {
		p.makeCurrent(0)
		p.shuttingDown = false
		p.host.Done()
	}
}

func (p *Plugin) hasWork() bool {
	return p.wakesDue() || p.calls.hasWork() || p.carrier.hasWork() || p.bodies.refusing || p.delayed.due() || p.delayed.changesTick() || p.reroutes.size > 0
}

// wakesDue reports whether waiters must look again.
func (p *Plugin) wakesDue() bool { return p.deadlinesDue || p.wokenAll || len(p.wokenKeys) > 0 }

// hasWork reports whether the next callback has work.
func (r *carrier) hasWork() bool { return len(r.ready) > 0 || r.checkTimeouts }

// due reports whether replies may go out now.
func (n *delayedReplies) due() bool { return n.unchecked.size > 0 || n.checkPolled }

// changesTick reports whether the tick's period must change: it is endPeriod while replies wait for ticks.
func (n *delayedReplies) changesTick() bool { return n.fastTick != (n.polled.size > 0) }

// requestCallback asks for a queue callback, in which the plugin context is active. If the host refuses the message, the
// tick does the work.
func (p *Plugin) requestCallback() {
	if !p.inPluginContext && !p.callbackRequested {
		p.callbackRequested = p.host.Enqueue(p.queue, []byte{messageCallback})
	}
}

// wake wakes the waiters of an entry that ended. queues are those of the VMs in which, as far as the cache knows,
// duplicates wait.
func (p *Plugin) wake(hash *cache.Hash, queues []uint32) {
	for _, queue := range queues {
		if queue != p.queue {
			p.host.Enqueue(queue, hash[:])
		}
	}
	if p.waiting.size > 0 {
		p.wokenKeys = append(p.wokenKeys, *hash)
		p.requestCallback()
	}
}

// wakeAll wakes VMs because some entry ended: all their waiters look again.
func (p *Plugin) wakeAll(queues []uint32) {
	for _, queue := range queues {
		if queue == p.queue {
			p.wokenAll = true
			p.requestCallback()
		} else {
			p.host.Enqueue(queue, []byte{messageAll})
		}
	}
}

// totalSize returns how many bytes of the current stream's request the host has.
func (p *Plugin) totalSize() uint64 { return p.number("request", "total_size") }

// number reads an integer property; 0: it is not there.
func (p *Plugin) number(path ...string) uint64 {
	if b, ok := p.host.Property(path...); ok && len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}
