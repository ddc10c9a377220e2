package gate

import (
	"encoding/binary"
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

// metrics are the filter's numbers. All VMs of a process share them by name.
type metrics struct {
	host Host

	hitCommitted, hitRejected, waited, miss, mismatch, conflict, notRecorded, notAcceptable     MetricID
	unknown, invalid, ambiguous, unsupported, bypass, managerError, noBody, fenced              MetricID
	committed, rejected, released, unknownOutcomes, oversize, abandoned, renewed, lost          MetricID
	carried, direct, routed, upstream                                                           MetricID
	call, connects, wait, retries, moved, wrongShard, ledgerChanged, orphaned, waiters, entries MetricID
	bytes, evicted, full, answersDropped, casRetry                                              MetricID
}

func (m *metrics) define(host Host) {
	m.host = host
	for _, d := range [...]struct {
		id   *MetricID
		kind MetricKind
		name string
	}{
		// One of these counts each request that has a key.
		{&m.hitCommitted, Counter, "oncegate_gate_requests_hit_committed_total"},   // replayed without waiting: committed
		{&m.hitRejected, Counter, "oncegate_gate_requests_hit_rejected_total"},     // replayed without waiting: rejected
		{&m.waited, Counter, "oncegate_gate_requests_waited_total"},                // replayed after waiting for the original
		{&m.miss, Counter, "oncegate_gate_requests_miss_total"},                    // forwarded under a reservation
		{&m.mismatch, Counter, "oncegate_gate_requests_mismatch_total"},            // 422
		{&m.conflict, Counter, "oncegate_gate_requests_conflict_total"},            // 409
		{&m.notRecorded, Counter, "oncegate_gate_requests_not_recorded_total"},     // 410
		{&m.notAcceptable, Counter, "oncegate_gate_requests_not_acceptable_total"}, // 406
		{&m.unknown, Counter, "oncegate_gate_requests_outcome_unknown_total"},      // 409: the first request's outcome is unknown
		{&m.invalid, Counter, "oncegate_gate_requests_invalid_total"},              // 400
		{&m.ambiguous, Counter, "oncegate_gate_requests_scope_ambiguous_total"},    // 400: the request lacks what its scope names
		{&m.unsupported, Counter, "oncegate_gate_requests_unsupported_total"},      // 400: CONNECT, an upgrade or gRPC
		{&m.bypass, Counter, "oncegate_gate_requests_bypass_total"},                // forwarded without protection
		{&m.managerError, Counter, "oncegate_gate_requests_manager_error_total"},   // 503
		{&m.noBody, Counter, "oncegate_gate_requests_body_unavailable_total"},      // 500
		{&m.fenced, Counter, "oncegate_gate_requests_fenced_total"},                // the ledger refused the outcome: it knows another one, or another attempt has the key
		// What became of reservations.
		{&m.committed, Counter, "oncegate_gate_outcomes_committed_total"},     // the answer was recorded
		{&m.rejected, Counter, "oncegate_gate_outcomes_rejected_total"},       // the refusal was recorded
		{&m.released, Counter, "oncegate_gate_outcomes_released_total"},       // nothing ran, the key is free again
		{&m.unknownOutcomes, Counter, "oncegate_gate_outcomes_unknown_total"}, // the outcome is unknown
		{&m.oversize, Counter, "oncegate_gate_outcomes_oversize_total"},       // the answer was recorded without its body
		{&m.abandoned, Counter, "oncegate_gate_outcomes_abandoned_total"},     // an outcome that never reached the ledger
		{&m.renewed, Counter, "oncegate_gate_reservations_renewed_total"},     // renewals that the ledger granted
		{&m.lost, Counter, "oncegate_gate_reservations_lost_total"},           // reservations that another attempt took over while upstream worked
		// Upstream calls of the gate's own.
		{&m.carried, Counter, "oncegate_gate_upstream_calls_total"},     // calls made
		{&m.direct, Counter, "oncegate_gate_upstream_direct_total"},     // those of them that went to the cluster of the request's route
		{&m.routed, Counter, "oncegate_gate_upstream_routed_total"},     // calls not made although the route asks for it: the router carried the request
		{&m.upstream, Histogram, "oncegate_gate_upstream_microseconds"}, // duration of the calls, microseconds
		// Calls to managers, waiting duplicates, and the cache.
		{&m.call, Histogram, "oncegate_gate_call_microseconds"},                   // time from a call to its reply, microseconds
		{&m.connects, Counter, "oncegate_gate_connections_total"},                 // connections to managers that were opened
		{&m.wait, Histogram, "oncegate_gate_wait_milliseconds"},                   // how long duplicates waited, milliseconds
		{&m.retries, Counter, "oncegate_gate_call_retries_total"},                 // calls that repeat an earlier one
		{&m.moved, Counter, "oncegate_gate_call_moved_total"},                     // reserves that were sent to the key's new owner next
		{&m.wrongShard, Counter, "oncegate_gate_call_wrong_shard_total"},          // calls that a manager refused because it is another shard, or another one owns the key
		{&m.ledgerChanged, Counter, "oncegate_gate_ledger_changed_total"},         // times that a shard's ledger was another one than before
		{&m.orphaned, Counter, "oncegate_gate_orphans_total"},                     // duplicates that found that the VM that worked on their key is dead
		{&m.waiters, Gauge, "oncegate_gate_waiters"},                              // duplicates that wait now
		{&m.entries, Gauge, "oncegate_gate_cache_entries"},                        // entries in the cache
		{&m.bytes, Gauge, "oncegate_gate_cache_bytes"},                            // bytes of recorded answers in the cache
		{&m.evicted, Counter, "oncegate_gate_cache_evictions_total"},              // entries that made room for others
		{&m.full, Counter, "oncegate_gate_cache_full_total"},                      // keys refused because no entry could make room for them
		{&m.answersDropped, Counter, "oncegate_gate_cache_answers_dropped_total"}, // answers that found no room in the cache
		{&m.casRetry, Counter, "oncegate_gate_cas_retries_total"},                 // shared-data updates repeated because another VM was faster
	} {
		*d.id = host.DefineMetric(d.kind, d.name)
	}
}

// count adds one.
func (m *metrics) count(id MetricID) { m.add(id, 1) }

// add changes a counter or a gauge. It leaves out a change by 0, which a host refuses for counters.
func (m *metrics) add(id MetricID, delta int64) {
	if id != 0 && delta != 0 {
		m.host.AddMetric(id, delta)
	}
}

// record sets a gauge, or adds a sample to a histogram. A negative value, from a clock that was set back, counts as 0.
func (m *metrics) record(id MetricID, value int64) {
	if id != 0 {
		m.host.RecordMetric(id, uint64(max(value, 0)))
	}
}
