package jobs

import "github.com/oncegate/oncegate/manager/internal/store"

// LiveTx reports whether there is a job with this id that is not terminal.
func LiveTx(tx store.Tx, id string) (bool, error) {
	r, err := load(tx, id)
	return err == nil && r != nil && !r.State.Terminal(), err
}
