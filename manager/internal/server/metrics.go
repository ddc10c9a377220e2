package server

import "github.com/oncegate/oncegate/manager/internal/ledger"

// NewLedgerCollector returns a collector of a ledger's Stats.
func NewLedgerCollector(l *ledger.Ledger) *Scrape {
	return NewScrape(func(m Sample) error {
		s, err := l.Stats(m.Context)
		if err != nil {
			return err
		}
		s.Each(func(op, outcome string, n uint64) { Set(m, "oncegate_ledger_calls_total", n, op, outcome) })
		for state, n := range s.ByState() {
			Set(m, "oncegate_ledger_entries", *n, state.String())
		}
		if s.Bytes >= 0 {
			Set(m, "oncegate_ledger_bytes", s.Bytes)
			Set(m, "oncegate_ledger_max_bytes", s.MaxBytes)
		}
		Set(m, "oncegate_ledger_max_entries", s.MaxEntries)
		Set(m, "oncegate_ledger_answers_dropped_total", s.WithoutAnswer)
		Set(m, "oncegate_ledger_waiters", s.Waiters)
		s.EachFenced(func(op string, n uint64) { Set(m, "oncegate_ledger_fenced_total", n, op) })
		Set(m, "oncegate_ledger_lapsed_total", s.Lapsed)
		Set(m, "oncegate_ledger_removed_total", s.Expired, "expired")
		Set(m, "oncegate_ledger_removed_total", s.Deleted, "deleted")
		Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsRefused, "refused")
		Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsTimedOut, "timed_out")
		Set(m, "oncegate_ledger_sweep_errors_total", s.SweepErrors)
		Set(m, "oncegate_ledger_batches_total", s.Batches)
		Set(m, "oncegate_ledger_batch_items_total", s.BatchItems)
		return nil
	},
		Describe("oncegate_ledger_entries", "Entries by state.", "state"),
		Describe("oncegate_ledger_calls_total", "Ledger calls by operation and outcome.", "op", "outcome"),
		Describe("oncegate_ledger_bytes", "What the entries take of oncegate_ledger_max_bytes."),
		Describe("oncegate_ledger_max_entries", "Entries that the window holds."),
		Describe("oncegate_ledger_max_bytes", "Bytes that the window holds."),
		Describe("oncegate_ledger_answers_dropped_total", "Outcomes recorded without their answer, for want of room."),
		Describe("oncegate_ledger_waiters", "Reserves that wait now."),
		Describe("oncegate_ledger_fenced_total", "Calls refused because another attempt has the key, by operation.", "op"),
		Describe("oncegate_ledger_lapsed_total", "Reservations that ran out without an outcome and were stored as unknown."),
		Describe("oncegate_ledger_removed_total", "Entries removed, by reason.", "reason"),
		Describe("oncegate_ledger_waits_unanswered_total", "Reserves that waited without a result or could not wait, by reason.", "reason"),
		Describe("oncegate_ledger_sweep_errors_total", "Sweeps that the store cut short."),
		Describe("oncegate_ledger_batches_total", "Groups of calls that came together on a stream."),
		Describe("oncegate_ledger_batch_items_total", "Calls in these groups."))
}
