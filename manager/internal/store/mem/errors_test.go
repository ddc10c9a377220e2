package mem

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// A function may use a log of its own. An error of that is not one of the
// store's: the function is not run again, and the caller gets what it returned.
func TestErrorsOfFunctionsAreNotTheLogs(t *testing.T) {
	for _, theirs := range []error{wal.ErrBusy, wal.ErrNoSpace, wal.ErrTooLarge, wal.ErrFailed, wal.ErrClosed} {
		mine := fmt.Errorf("my own log: %w", theirs)
		t.Run(fmt.Sprint(theirs), func(t *testing.T) {
			s := mustOpen(t, options(&faultfs.FS{}))
			runs := 0
			err := s.Update(t.Context(), func(store.Tx) error {
				if runs++; runs > 1 {
					return nil
				}
				return mine
			})
			if err != mine || runs != 1 {
				t.Errorf("got %v after %d runs, want %v after one", err, runs, mine)
			}
			mustClose(t, s)
		})
	}
}
