package ledger

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Leases are the reservations: what package downtime extends when the manager
// was away. One that had run out before that stays as it is.
func Leases() store.Leases {
	return store.Leases{
		Name: "reservations", Collection: collection, Index: indexOf(api.StatePending), Extend: extendReservation,
	}
}

func extendReservation(stx store.Tx, key string, value []byte, away store.Away) (bool, error) {
	var e record
	if decodeRecord(key, value, &e) != nil || e.state != api.StatePending {
		return false, nil
	}
	// Touched is when it was made or last renewed.
	whole := time.Duration(e.expires-e.touched) * time.Millisecond
	end, later := away.Extend(time.UnixMilli(e.touched), time.UnixMilli(e.expires), whole)
	if !later {
		return false, nil
	}
	e.expires = deadline(end, 0)
	tx := Tx{Tx: stx}
	return true, tx.put(key, &e)
}
