package state

import (
	"errors"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// The disk is full when the list of files must be written, after a table that still found room. The state continues, and
// refuses further tables until there is space for the next change of the list as well.
func TestDiskIsFullAtTheListOfFiles(t *testing.T) {
	fs := &faultfs.FS{}
	s := mustOpen(t, fs)
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Write && strings.Contains(op.Path, "MANIFEST-") {
			fs.SetHook(nil)
			fs.SetCapacity(fs.Used() - spareBytes + spareLeast/2) // for the list, once the spare file is gone
		}
		return nil
	})
	var m model
	m.add(t, s, 10, 100)
	if n := s.spare.bytes; n == 0 || n >= spareLeast {
		t.Fatalf("the spare file has %d bytes", n)
	}
	refused := Batch{Sequence: m.seq + 1, Changes: func(func(Change) bool) {}}
	if err := s.Write(t.Context(), refused); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a write without space for the list: %v", err)
	}
	m.check(t, s, "order")
	fs.SetCapacity(0)
	m.add(t, s, 10, 100)
	mustClose(t, s)
	s = mustOpen(t, fs.Crash())
	m.check(t, s, "order")
	mustClose(t, s)
}
