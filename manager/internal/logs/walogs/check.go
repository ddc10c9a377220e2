package walogs

import (
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// NewCheck returns what wal.Verify asks about the records of the log with this name: it reads them
// as a start does, and so takes the memory of the log's window. ring has the keys of entries that are sealed. Without it such
// entries are not read.
func NewCheck(name string, ring *crypt.Keyring) func(wal.Entry) error {
	l := &walLog{name: name, first: 1, engine: &Engine{opts: Options{Ring: ring}}}
	named, blind := false, false
	return func(e wal.Entry) (err error) {
		switch {
		case len(e.Body) == 0:
			return errors.New("it is empty")
		case e.Replaced: // it is kept for readers
			if ring == nil && e.Body[0] == kindSealed {
				return nil
			}
			return eachEntry(ring, name, e.Body, func(*logs.Entry, int64) error { return nil })
		case ring == nil && e.Body[0] == kindSealed:
			blind = true
		case blind && e.Body[0] == kindEntries: // their numbers follow what cannot be read
			err = eachEntry(nil, name, e.Body, func(*logs.Entry, int64) error { return nil })
		case e.Segment == 0:
			err = l.restore(e.Body)
		default:
			err = l.apply(e.Sequence, e.Body)
		}
		if err == nil && !named && l.state != nil {
			if named = true; l.state.Settings().Name != name {
				err = fmt.Errorf("the directory of the log %q holds the log %q", name, l.state.Settings().Name)
			}
		}
		return err
	}
}

// IsRecord reports whether a record is of a named log, not of the manager's own.
func IsRecord(e wal.Entry) bool { return len(e.Body) > 0 && e.Body[0] >= 'a' && e.Body[0] <= 'z' }
