package mem

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// A store starts on a full disk, also after a crash, and answers what it has. With space again, it takes changes.
func TestStartOnAFullDisk(t *testing.T) {
	for name, crash := range map[string]func(*faultfs.FS) *faultfs.FS{"after a stop": (*faultfs.FS).Clone, "after a crash": (*faultfs.FS).Crash} {
		t.Run(name, func(t *testing.T) {
			fs := &faultfs.FS{}
			opts := options(fs)
			opts.LayerBytes, opts.FlushRetry = 2<<10, time.Millisecond
			s := mustOpen(t, opts)
			for i := range 100 {
				mustUpdate(t, s, put(fmt.Sprint(i), fmt.Sprintf("%0100d", i), store.Entry{Index: byName, SortKey: "a"}))
			}
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustUpdate(t, s, put("last", "1"))
			mustClose(t, s)
			fs = crash(fs)
			for range 3 {
				fs.SetCapacity(fs.Used())
				opts.Log.FS, opts.State = fs, fs.Pebble()
				s = mustOpen(t, opts)
				if mustGet(t, s, "last") != "1" || mustGet(t, s, "99") != fmt.Sprintf("%0100d", 99) {
					t.Error("a record is missing")
				}
				mustClose(t, s)
				fs = crash(fs)
			}
			opts.Log.FS, opts.State = fs, fs.Pebble()
			s = mustOpen(t, opts)
			var err error
			for i := 0; err == nil && i < 10_000; i++ {
				err = s.Update(t.Context(), put(fmt.Sprint(i), fmt.Sprintf("%0100d", i)))
			}
			if !errors.Is(err, store.ErrNoSpace) {
				t.Errorf("changes on a full disk: %v", err)
			}
			fs.SetCapacity(0)
			for err = store.ErrNoSpace; errors.Is(err, store.ErrNoSpace); time.Sleep(time.Millisecond) { // until the log and the flusher have tried again
				err = s.Update(t.Context(), put("new", "1"))
			}
			if err != nil {
				t.Errorf("with space again: %v", err)
			}
			mustClose(t, s)
		})
	}
}
