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
	ambiguous     MetricID // 400: the request lacks what its scope names
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
	direct   MetricID // those of them that went to the cluster of the request's route
	routed   MetricID // calls not made although the route asks for it: the router carried the request
	upstream MetricID // duration of the calls, microseconds

	call           MetricID // time from a call to its reply, microseconds
	wait           MetricID // how long duplicates waited, milliseconds
	connects       MetricID // connections to managers that were opened
	retries        MetricID // calls that repeat an earlier one
	moved          MetricID // reserves that were sent to the key's new owner next
	wrongShard     MetricID // calls that a manager refused because it is another shard, or another one owns the key
	ledgerChanged  MetricID // times that a shard's ledger was another one than before
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
		{&m.hitCommitted, Counter, "oncegate_gate_requests_hit_committed_total"},
		{&m.hitRejected, Counter, "oncegate_gate_requests_hit_rejected_total"},
		{&m.waited, Counter, "oncegate_gate_requests_waited_total"},
		{&m.miss, Counter, "oncegate_gate_requests_miss_total"},
		{&m.mismatch, Counter, "oncegate_gate_requests_mismatch_total"},
		{&m.conflict, Counter, "oncegate_gate_requests_conflict_total"},
		{&m.notRecorded, Counter, "oncegate_gate_requests_not_recorded_total"},
		{&m.notAcceptable, Counter, "oncegate_gate_requests_not_acceptable_total"},
		{&m.unknown, Counter, "oncegate_gate_requests_outcome_unknown_total"},
		{&m.invalid, Counter, "oncegate_gate_requests_invalid_total"},
		{&m.ambiguous, Counter, "oncegate_gate_requests_scope_ambiguous_total"},
		{&m.unsupported, Counter, "oncegate_gate_requests_unsupported_total"},
		{&m.bypass, Counter, "oncegate_gate_requests_bypass_total"},
		{&m.managerError, Counter, "oncegate_gate_requests_manager_error_total"},
		{&m.noBody, Counter, "oncegate_gate_requests_body_unavailable_total"},
		{&m.fenced, Counter, "oncegate_gate_requests_fenced_total"},
		{&m.committed, Counter, "oncegate_gate_outcomes_committed_total"},
		{&m.rejected, Counter, "oncegate_gate_outcomes_rejected_total"},
		{&m.released, Counter, "oncegate_gate_outcomes_released_total"},
		{&m.unknownOutcomes, Counter, "oncegate_gate_outcomes_unknown_total"},
		{&m.oversize, Counter, "oncegate_gate_outcomes_oversize_total"},
		{&m.abandoned, Counter, "oncegate_gate_outcomes_abandoned_total"},
		{&m.renewed, Counter, "oncegate_gate_reservations_renewed_total"},
		{&m.lost, Counter, "oncegate_gate_reservations_lost_total"},
		{&m.carried, Counter, "oncegate_gate_upstream_calls_total"},
		{&m.direct, Counter, "oncegate_gate_upstream_direct_total"},
		{&m.routed, Counter, "oncegate_gate_upstream_routed_total"},
		{&m.upstream, Histogram, "oncegate_gate_upstream_microseconds"},
		{&m.call, Histogram, "oncegate_gate_call_microseconds"},
		{&m.connects, Counter, "oncegate_gate_connections_total"},
		{&m.wait, Histogram, "oncegate_gate_wait_milliseconds"},
		{&m.retries, Counter, "oncegate_gate_call_retries_total"},
		{&m.moved, Counter, "oncegate_gate_call_moved_total"},
		{&m.wrongShard, Counter, "oncegate_gate_call_wrong_shard_total"},
		{&m.ledgerChanged, Counter, "oncegate_gate_ledger_changed_total"},
		{&m.orphaned, Counter, "oncegate_gate_orphans_total"},
		{&m.waiters, Gauge, "oncegate_gate_waiters"},
		{&m.entries, Gauge, "oncegate_gate_cache_entries"},
		{&m.bytes, Gauge, "oncegate_gate_cache_bytes"},
		{&m.evicted, Counter, "oncegate_gate_cache_evictions_total"},
		{&m.full, Counter, "oncegate_gate_cache_full_total"},
		{&m.answersDropped, Counter, "oncegate_gate_cache_answers_dropped_total"},
		{&m.casRetry, Counter, "oncegate_gate_cas_retries_total"},
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
