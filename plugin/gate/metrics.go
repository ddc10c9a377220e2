package gate

// metrics are the filter's numbers. All VMs of a process share them by name.
type metrics struct {
	host Host

	// One of these counts each request that has a key.
	hitCommitted  MetricID // replayed without waiting: committed
	hitRejected   MetricID // replayed without waiting: rejected
	waited        MetricID // replayed after waiting for the original
	miss          MetricID // forwarded under a reservation
	mismatch      MetricID // 422
	conflict      MetricID // 409
	notRecorded   MetricID // 410
	notAcceptable MetricID // 406
	unknown       MetricID // 409: the first request's outcome is unknown
	invalid       MetricID // 400
	unsupported   MetricID // 400: CONNECT, an upgrade or gRPC
	bypass        MetricID // forwarded without protection
	managerError  MetricID // 503
	noBody        MetricID // 500

	// What became of reservations.
	committed       MetricID // the answer was recorded
	rejected        MetricID // the refusal was recorded
	released        MetricID // nothing ran, the key is free again
	unknownOutcomes MetricID // the outcome is unknown
	oversize        MetricID // the answer was recorded without its body
	fenced          MetricID // the ledger refused the outcome: it knows another one, or another attempt has the key
	abandoned       MetricID // an outcome that never reached the ledger
	renewed         MetricID // renewals that the ledger granted
	lost            MetricID // reservations that another attempt took over while upstream worked

	// Upstream calls of the gate's own.
	carried  MetricID // calls made
	routed   MetricID // calls not made although the route asks for it: the router carried the request
	upstream MetricID // duration of the calls, microseconds

	callout        MetricID // duration of callouts, microseconds
	wait           MetricID // how long duplicates waited, milliseconds
	batches        MetricID // callouts that carry several calls
	batchItems     MetricID // calls in each of these callouts
	retries        MetricID // callouts that repeat an earlier one
	moved          MetricID // reserves that went on to the key's new owner
	wrongShard     MetricID // calls that a manager refused because it is another shard, or another one owns the key
	orphaned       MetricID // duplicates that found that the VM that worked on their key is dead
	waiters        MetricID // duplicates that wait now
	entries        MetricID // entries in the cache
	bytes          MetricID // bytes of recorded answers in the cache
	evicted        MetricID // entries that made room for others
	full           MetricID // keys refused because no entry could make room for them
	answersDropped MetricID // answers that found no room in the cache
	casRetry       MetricID // shared-data updates repeated because another VM was faster
}

func (m *metrics) define(host Host) {
	m.host = host
	for _, d := range [...]struct {
		id   *MetricID
		kind MetricKind
		name string
	}{
		{&m.hitCommitted, Counter, "oncegate_requests_hit_committed"},
		{&m.hitRejected, Counter, "oncegate_requests_hit_rejected"},
		{&m.waited, Counter, "oncegate_requests_waited"},
		{&m.miss, Counter, "oncegate_requests_miss"},
		{&m.mismatch, Counter, "oncegate_requests_mismatch"},
		{&m.conflict, Counter, "oncegate_requests_conflict"},
		{&m.notRecorded, Counter, "oncegate_requests_not_recorded"},
		{&m.notAcceptable, Counter, "oncegate_requests_not_acceptable"},
		{&m.unknown, Counter, "oncegate_requests_outcome_unknown"},
		{&m.invalid, Counter, "oncegate_requests_invalid"},
		{&m.unsupported, Counter, "oncegate_requests_unsupported"},
		{&m.bypass, Counter, "oncegate_requests_bypass"},
		{&m.managerError, Counter, "oncegate_requests_manager_error"},
		{&m.noBody, Counter, "oncegate_requests_body_unavailable"},
		{&m.fenced, Counter, "oncegate_requests_fenced"},
		{&m.committed, Counter, "oncegate_outcomes_committed"},
		{&m.rejected, Counter, "oncegate_outcomes_rejected"},
		{&m.released, Counter, "oncegate_outcomes_released"},
		{&m.unknownOutcomes, Counter, "oncegate_outcomes_unknown"},
		{&m.oversize, Counter, "oncegate_outcomes_oversize"},
		{&m.abandoned, Counter, "oncegate_outcomes_abandoned"},
		{&m.renewed, Counter, "oncegate_reservations_renewed"},
		{&m.lost, Counter, "oncegate_reservations_lost"},
		{&m.carried, Counter, "oncegate_upstream_calls"},
		{&m.routed, Counter, "oncegate_upstream_routed"},
		{&m.upstream, Histogram, "oncegate_upstream_microseconds"},
		{&m.callout, Histogram, "oncegate_callout_microseconds"},
		{&m.batches, Counter, "oncegate_callout_batches"},
		{&m.batchItems, Histogram, "oncegate_callout_batch_calls"},
		{&m.wait, Histogram, "oncegate_wait_milliseconds"},
		{&m.retries, Counter, "oncegate_callout_retries"},
		{&m.moved, Counter, "oncegate_callout_moved"},
		{&m.wrongShard, Counter, "oncegate_callout_wrong_shard"},
		{&m.orphaned, Counter, "oncegate_orphans"},
		{&m.waiters, Gauge, "oncegate_waiters"},
		{&m.entries, Gauge, "oncegate_cache_entries"},
		{&m.bytes, Gauge, "oncegate_cache_bytes"},
		{&m.evicted, Counter, "oncegate_cache_evictions"},
		{&m.full, Counter, "oncegate_cache_full"},
		{&m.answersDropped, Counter, "oncegate_cache_answers_dropped"},
		{&m.casRetry, Counter, "oncegate_cas_retries"},
	} {
		*d.id = host.DefineMetric(d.kind, d.name)
	}
}

// count adds one.
func (m *metrics) count(id MetricID) { m.add(id, 1) }

// add changes a counter or a gauge. It leaves out a change by 0, which a host refuses
// for counters.
func (m *metrics) add(id MetricID, delta int64) {
	if id != 0 && delta != 0 {
		m.host.AddMetric(id, delta)
	}
}

// set gives a gauge its value.
func (m *metrics) set(id MetricID, value int64) {
	if id != 0 {
		m.host.RecordMetric(id, uint64(max(value, 0)))
	}
}

// sample adds a sample to a histogram. A negative one, from a clock that was set back, counts as 0.
func (m *metrics) sample(id MetricID, value int64) {
	if id != 0 {
		m.host.RecordMetric(id, uint64(max(value, 0)))
	}
}
