package server

import (
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

func (h *ledgerHandlers) stats(r *httpd.Request, w *httpd.Response) error {
	s, err := h.ledger.Stats(r.Context())
	if err != nil {
		return err
	}
	all := statsOf(&s)
	all.LedgerIdentity, all.CommittedTTL, all.Durabilities = identity(h.me), h.ledger.OutcomeTTL(api.StateCommitted, 0), h.home.Durabilities()
	return answer(w, all)
}

// identity is who the ledger is; it is empty if the ledger has no identity.
func identity(me *shard.Keeper) schema.LedgerIdentity {
	if me == nil {
		return schema.LedgerIdentity{}
	}
	id := me.Identity()
	return schema.LedgerIdentity{LedgerID: id.ID, Name: id.Name, Shards: id.Shards, Version: id.Version}
}

func statsOf(s *ledger.Stats) schema.LedgerStats {
	all := schema.LedgerStats{
		Entries:    schema.EntryCounts(s.Counts),
		MaxEntries: s.MaxEntries, MaxResultBytes: s.MaxResultBytes, QuarantineFor: s.Quarantine, Waiters: s.Waiters, Calls: map[string]map[string]uint64{},
		FencedOutcomes: s.FencedOutcomes(), Expired: s.Expired, Lapsed: s.Lapsed, Deleted: s.Deleted, AnswersDropped: s.WithoutAnswer,
		WaitsRefused: s.WaitsRefused, WaitsTimedOut: s.WaitsTimedOut, SweepErrors: s.SweepErrors, Batches: s.Batches, BatchItems: s.BatchItems,
	}
	if r := s.Replication; r != nil {
		all.SyncStandbys = &schema.SyncStandbys{Connected: r.Connected, Required: r.Required}
	}
	if s.Bytes >= 0 {
		all.Bytes, all.MaxBytes = &s.Bytes, &s.MaxBytes
	}
	s.Each(func(op, outcome string, n uint64) {
		if all.Calls[op] == nil {
			all.Calls[op] = map[string]uint64{}
		}
		all.Calls[op][outcome] = n
	})
	return all
}
