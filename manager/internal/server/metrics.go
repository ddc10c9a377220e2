package server

import (
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// NewLedgerCollector returns a collector of a ledger's Stats.
func NewLedgerCollector(l *ledger.Ledger) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		s, err := l.Stats(m.Context)
		if err != nil {
			return err
		}
		s.Each(func(op, outcome string, n uint64) { scrape.Set(m, "oncegate_ledger_calls_total", n, op, outcome) })
		for state, n := range s.ByState() {
			scrape.Set(m, "oncegate_ledger_entries", *n, state.String())
		}
		if s.Bytes >= 0 {
			scrape.Set(m, "oncegate_ledger_bytes", s.Bytes)
			scrape.Set(m, "oncegate_ledger_max_bytes", s.MaxBytes)
		}
		scrape.Set(m, "oncegate_ledger_max_entries", s.MaxEntries)
		scrape.Set(m, "oncegate_ledger_answers_dropped_total", s.WithoutAnswer)
		scrape.Set(m, "oncegate_ledger_waiters", s.Waiters)
		s.EachFenced(func(op string, n uint64) { scrape.Set(m, "oncegate_ledger_fenced_total", n, op) })
		scrape.Set(m, "oncegate_ledger_lapsed_total", s.Lapsed)
		scrape.Set(m, "oncegate_ledger_removed_total", s.Expired, "expired")
		scrape.Set(m, "oncegate_ledger_removed_total", s.Deleted, "deleted")
		scrape.Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsRefused, "refused")
		scrape.Set(m, "oncegate_ledger_waits_unanswered_total", s.WaitsTimedOut, "timed_out")
		scrape.Set(m, "oncegate_ledger_sweep_errors_total", s.SweepErrors)
		scrape.Set(m, "oncegate_ledger_batches_total", s.Batches)
		scrape.Set(m, "oncegate_ledger_batch_items_total", s.BatchItems)
		return nil
	},
		scrape.Describe("oncegate_ledger_entries", "Entries by state.", "state"),
		scrape.Describe("oncegate_ledger_calls_total", "Ledger calls by operation and outcome.", "op", "outcome"),
		scrape.Describe("oncegate_ledger_bytes", "What the entries take of oncegate_ledger_max_bytes."),
		scrape.Describe("oncegate_ledger_max_entries", "Entries that the window holds."),
		scrape.Describe("oncegate_ledger_max_bytes", "Bytes that the window holds."),
		scrape.Describe("oncegate_ledger_answers_dropped_total", "Outcomes recorded without their answer, for want of room."),
		scrape.Describe("oncegate_ledger_waiters", "Reserves that wait now."),
		scrape.Describe("oncegate_ledger_fenced_total", "Calls refused because another attempt has the key, by operation.", "op"),
		scrape.Describe("oncegate_ledger_lapsed_total", "Reservations that ran out without an outcome and were stored as unknown."),
		scrape.Describe("oncegate_ledger_removed_total", "Entries removed, by reason.", "reason"),
		scrape.Describe("oncegate_ledger_waits_unanswered_total", "Reserves that waited without a result or could not wait, by reason.", "reason"),
		scrape.Describe("oncegate_ledger_sweep_errors_total", "Sweeps that the store cut short."),
		scrape.Describe("oncegate_ledger_batches_total", "Groups of calls that came together on a stream."),
		scrape.Describe("oncegate_ledger_batch_items_total", "Calls in these groups."))
}
