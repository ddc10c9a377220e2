package gate

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
