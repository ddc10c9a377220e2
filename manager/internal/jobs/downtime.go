package jobs

import (
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Leases describes the leased jobs to package downtime, which extends their leases after the manager was away. A lease
// that had already run out stays so.
func Leases() store.Leases {
	return store.Leases{Name: "jobs", Collection: colJobs, Index: idxActive, Extend: extendLease}
}

func extendLease(tx store.Tx, id string, value []byte, away store.Away) (bool, error) {
	r, err := decodeRecord(id, value)
	if err != nil || r.State != Active {
		return false, nil
	}
	end, later := away.Extend(r.Lease.Begun, r.Lease.Until, r.Lease.Duration)
	if !later {
		return false, nil
	}
	if r.Timeout > 0 {
		deadline, _ := away.Extend(r.Lease.Begun, r.Lease.Deadline, r.Timeout)
		r.Lease.Deadline = roundUp(deadline)
	}
	r.Lease.Until = roundUp(end)
	if d := r.Lease.Deadline; !d.IsZero() && d.Before(r.Lease.Until) {
		r.Lease.Until = d
	}
	return true, r.save(tx)
}

// roundUp returns the first whole microsecond that is not before t.
func roundUp(t time.Time) time.Time { return t.Add(time.Microsecond - 1).Truncate(time.Microsecond) }
