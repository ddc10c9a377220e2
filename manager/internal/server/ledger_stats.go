package server

import (
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

func (h *ledgerHandlers) stats(r *httpd.Request, w *httpd.Response) {
	s, err := h.ledger.Stats(r.Context())
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	me := identify(h.me)
	w.Body = appendStats(appendIdentity(w.Body, &me), &s, h.ledger.OutcomeTTL(api.StateCommitted, 0), h.reach.names())
}

// appendIdentity begins an object with who the ledger is; appendStats continues it.
func appendIdentity(dst []byte, me *shard.Identity) []byte {
	dst = append(dst, `{"ledger_id":`...)
	dst = api.AppendJSONString(dst, me.ID)
	dst = append(dst, `,"shard":`...)
	dst = api.AppendJSONString(dst, me.Name)
	dst = append(dst, `,"shards":[`...)
	for i, name := range me.Shards {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = api.AppendJSONString(dst, name)
	}
	dst = append(dst, `],"shards_version":`...)
	return strconv.AppendUint(dst, me.Version, 10)
}

func appendStats(dst []byte, s *ledger.Stats, committedTTL time.Duration, durabilities string) []byte {
	number := func(name string, n int64) {
		dst = append(dst, '"')
		dst = append(dst, name...)
		dst = append(dst, '"', ':')
		dst = strconv.AppendInt(dst, n, 10)
	}
	if r := s.Replication; r != nil {
		dst = append(dst, `,"sync_standbys":{`...)
		number("connected", int64(r.Connected))
		dst = append(dst, ',')
		number("required", int64(r.Required))
		dst = append(dst, '}')
	}
	dst = append(dst, `,"entries":{`...)
	number("pending", int64(s.Pending))
	dst = append(dst, ',')
	number("committed", int64(s.Committed))
	dst = append(dst, ',')
	number("rejected", int64(s.Rejected))
	dst = append(dst, ',')
	number("unknown", int64(s.Unknown))
	dst = append(dst, `},`...)
	if s.Bytes >= 0 {
		number("bytes", s.Bytes)
		dst = append(dst, ',')
		number("max_bytes", s.MaxBytes)
		dst = append(dst, ',')
	}
	number("max_entries", int64(s.MaxEntries))
	dst = append(dst, ',')
	number("committed_ttl_ms", committedTTL.Milliseconds())
	dst = append(dst, ',')
	if s.Quarantine > 0 {
		number("quarantine_ms", max(s.Quarantine.Milliseconds(), 1))
		dst = append(dst, ',')
	}
	dst = append(dst, `"durabilities":[`...)
	dst = append(dst, durabilities...)
	dst = append(dst, `],`...)
	number("waiters", int64(s.Waiters))
	dst = append(dst, `,"calls":{`...)
	last := ""
	s.Each(func(op, outcome string, n uint64) {
		if op != last {
			if last != "" {
				dst = append(dst, `},`...)
			}
			dst = append(dst, '"')
			dst = append(dst, op...)
			dst = append(dst, `":{`...)
			last = op
		} else {
			dst = append(dst, ',')
		}
		number(outcome, int64(n))
	})
	dst = append(dst, `}},`...)
	for i, c := range []struct {
		name string
		n    uint64
	}{
		{"fenced_outcomes", s.FencedOutcomes()}, {"expired", s.Expired}, {"lapsed", s.Lapsed}, {"deleted", s.Deleted},
		{"answers_dropped", s.WithoutAnswer}, {"waits_refused", s.WaitsRefused}, {"waits_timed_out", s.WaitsTimedOut}, {"sweep_errors", s.SweepErrors},
		{"batches", s.Batches}, {"batch_items", s.BatchItems},
	} {
		if i > 0 {
			dst = append(dst, ',')
		}
		number(c.name, int64(c.n))
	}
	return append(dst, '}')
}
