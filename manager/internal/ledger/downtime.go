package ledger

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Leases describes the reservations to package downtime, which extends them after the manager was away. A reservation
// that had already run out stays so.
func Leases() store.Leases {
	return store.Leases{
		Name: "reservations", Collection: Collection, Index: indexOf(api.StatePending), Extend: extendReservation,
	}
}

func extendReservation(stx store.Tx, key string, value []byte, away store.Away) (bool, error) {
	var e record
	if decodeRecord(key, value, &e) != nil || e.state != api.StatePending {
		return false, nil
	}
	// touched is when the reservation was made or last renewed.
	whole := time.Duration(e.expires-e.touched) * time.Millisecond
	end, later := away.Extend(time.UnixMilli(e.touched), time.UnixMilli(e.expires), whole)
	if !later {
		return false, nil
	}
	e.expires = deadline(end, 0)
	tx := Tx{Tx: stx}
	return true, tx.put(key, &e)
}
