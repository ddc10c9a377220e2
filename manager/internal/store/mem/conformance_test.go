package mem_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func TestConformanceMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Opener {
		return func(*testing.T) store.Store { return mem.New(mem.Options{}) }
	})
}

func TestConformanceWAL(t *testing.T) {
	settings := map[string]mem.Options{
		"defaults": {},
		// A flush after every few records, and after every few batches.
		"small layers": {LayerBytes: 2 << 10, Log: wal.Options{SegmentBytes: 12 << 20}},
		"short log":    {FlushBytes: 4 << 10, Log: wal.Options{SegmentBytes: 12 << 20}},
	}
	all := slices.Sorted(maps.Keys(settings))
	for name, opts := range settings {
		t.Run(name, func(t *testing.T) {
			storetest.RunCell(t, name, all, func(t *testing.T) storetest.Opener {
				dir := t.TempDir()
				return func(t *testing.T) store.Store {
					s, err := mem.Open(t.Context(), dir, opts)
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
			})
		})
	}
}

func TestCrashConformance(t *testing.T) {
	for name, opts := range map[string]mem.Options{
		"log only": {},
		"flushes":  {LayerBytes: 2 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			storetest.RunCrash(t, func(t *testing.T) (storetest.Opener, func(*testing.T) storetest.Opener) {
				opener := func(fs *faultfs.FS) storetest.Opener {
					return func(t *testing.T) store.Store {
						opts := opts
						opts.State = fs.Pebble()
						opts.Log = wal.Options{FS: fs, SegmentBytes: 32 << 10}
						s, err := mem.Open(t.Context(), "data", opts)
						if err != nil {
							t.Fatal(err)
						}
						return s
					}
				}
				fs := &faultfs.FS{}
				return opener(fs), func(*testing.T) storetest.Opener { return opener(fs.Crash()) }
			})
		})
	}
}
