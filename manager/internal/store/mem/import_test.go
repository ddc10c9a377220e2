package mem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

const imported = 200

func importOptions(fs *faultfs.FS) Options {
	opts := options(fs)
	opts.LayerBytes = 10 << 10 // for about 40 records, of 4 in each record of the snapshot
	return opts
}

// newImport is a directory with a copied log: a snapshot with the records k0000 and so on, and a log with one more.
func newImport(t *testing.T, fs *faultfs.FS) (want []string) {
	t.Helper()
	if err := fs.MkdirAll(at); err != nil {
		t.Fatal(err)
	}
	im, err := wal.NewImporter(fs, at)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(im.Snapshot(7, time.Now()))
	body := func(from, n int) []byte {
		b := appendHeader(nil, time.Now())
		for i := from; i < from+n; i++ {
			entries := []store.Entry{{Index: byName, SortKey: fmt.Sprintf("%04d", i)}}
			b = appendPutOf(b, things, fmt.Sprintf("k%04d", i), []byte("value"), entries)
			want = append(want, fmt.Sprintf("things %q=%q %s:%q", fmt.Sprintf("k%04d", i), "value", byName, entries[0].SortKey))
		}
		return b
	}
	for i := 0; i < imported; i += 4 {
		must(im.Append(body(i, 4)))
	}
	must(im.Segment(1, 8, 64<<10))
	must(im.Append(body(imported, 1)))
	must(im.Finish())
	return want
}

// checkImported compares records and counts with those of the copy.
func checkImported(t *testing.T, what string, s *Store, want []string) {
	t.Helper()
	if got := dumped(t, s); !slices.Equal(got, want) {
		t.Errorf("%s there are %d records, want %d", what, len(got), len(want))
	}
	for _, index := range []string{"", byName} {
		if n, err := s.Len(t.Context(), things, index); n != len(want) || err != nil {
			t.Errorf("%s Len of %q is %d, %v, want %d", what, index, n, err, len(want))
		}
	}
}

// An import that was cut off at any operation of the state begins again, and has all records once.
func TestImportIsCutOffAnywhere(t *testing.T) {
	first := &faultfs.FS{}
	want := newImport(t, first)
	lost := rand.New(rand.NewPCG(1, 41))
	var mu sync.Mutex
	var images []*faultfs.FS
	changes := 0
	first.SetHook(func(op faultfs.Op) error {
		if !ofState(op) || !op.Changes() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if changes++; changes%4 == 0 {
			images = append(images, first.CrashRandomly(lost))
		}
		return nil
	})
	s := mustOpen(t, importOptions(first))
	first.SetHook(nil)
	checkImported(t, "after the import", s, want)
	mustClose(t, s)
	if len(images) < 15 {
		t.Errorf("there are %d images", len(images))
	}
	for i, fs := range images {
		opts := importOptions(fs)
		s := mustOpen(t, opts)
		checkImported(t, fmt.Sprint("after image ", i), s, want)
		mustClose(t, s)
	}
}

// An import replaces what an older, cut off one has left, and the counts are those of the new one.
func TestImportOverARest(t *testing.T) {
	fs := &faultfs.FS{}
	want := newImport(t, fs)
	tables, errOff := 0, errors.New("the machine is off")
	fs.SetHook(func(op faultfs.Op) error {
		if isTable(op) {
			if tables++; tables > 2 {
				return errOff
			}
		}
		return nil
	})
	if _, err := Open(t.Context(), at, importOptions(fs)); !errors.Is(err, errOff) {
		t.Fatalf("Open: %v", err)
	}
	fs = fs.Crash()
	s := mustOpen(t, importOptions(fs))
	checkImported(t, "after another import", s, want)
	s.mu.Lock()
	c := s.state.Counts()[things]
	s.mu.Unlock()
	if c.Records != imported || c.Entries[byName] != imported {
		t.Errorf("the state counts %+v, want %d", c, imported)
	}
	mustClose(t, s)
}

// Replay has at most LayerBytes of changes in memory, and those of one more record.
func TestReplayIsBounded(t *testing.T) {
	fs := &faultfs.FS{}
	newImport(t, fs)
	opts := importOptions(fs)
	s := newStore(opts.withDefaults())
	r := recovery{s: s, ctx: context.Background(), dir: at + "/" + StateDir}
	most := int64(0)
	logOpts := s.opts.Log
	logOpts.Begin, logOpts.Synced, logOpts.Replay = r.begin, r.synced, r.replay
	logOpts.Restore = func(body []byte) error {
		err := r.restore(body)
		most = max(most, s.hotBytes)
		return err
	}
	log, err := wal.Open(t.Context(), at, logOpts)
	if err != nil {
		t.Fatal(err)
	}
	const record = 4 * (overhead + 200)
	if most < opts.LayerBytes || most > opts.LayerBytes+record {
		t.Errorf("at most %d bytes were in memory, with layers of %d", most, opts.LayerBytes)
	}
	if err := errors.Join(log.Close(), s.state.Close()); err != nil {
		t.Error(err)
	}
}
