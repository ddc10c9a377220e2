package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

// damaged is a log with a snapshot, several segments and a clean end.
func damaged(t *testing.T) (fs *faultfs.FS, last uint64) {
	t.Helper()
	fs = &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 150))
	var records [][]byte
	for i := range 5 {
		records = append(records, []byte(fmt.Sprintf("snapshot record %d", i)))
	}
	if err := l.Snapshot(t.Context(), 100, 100+1, records...); err != nil {
		t.Fatal(err)
	}
	last = appendAll(t, l, 151, 230)
	mustWait(t, l, last)
	last = appendAll(t, l, last+1, last+3)
	mustClose(t, l)
	return fs, last
}

// entries lists the records of a log without damage.
func entries(t *testing.T, fs *faultfs.FS) []wal.Entry {
	t.Helper()
	all, complaints := passed(t, fs)
	if len(complaints) > 0 {
		t.Fatal(complaints)
	}
	return all
}

// passed is what Verify passes and complains about.
func passed(t *testing.T, fs *faultfs.FS) (all []wal.Entry, complaints []wal.Complaint) {
	t.Helper()
	r, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: fs, Check: func(e wal.Entry) error {
		e.Body = bytes.Clone(e.Body)
		all = append(all, e)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return all, r.Complaints
}

// recordAt finds the record that a byte belongs to.
func recordAt(all []wal.Entry, file string, off int64) (wal.Entry, bool) {
	for _, e := range all {
		if e.File == file && off >= e.Offset && off < e.Offset+20+int64(len(e.Body)) {
			return e, true
		}
	}
	return wal.Entry{}, false
}

// A flipped bit anywhere in synced data is found, located and refused. It never changes or drops a record, and never
// passes for a torn tail.
func TestBitFlipsAreFound(t *testing.T) {
	fs, last := damaged(t)
	all := entries(t, fs)
	clean, f := mustOpen(t, options(fs.Clone()))
	mustClose(t, clean)
	if f.last() != last || len(f.restored) != 5 {
		t.Fatalf("%d records and %d restored, want %d and 5", f.last(), len(f.restored), last)
	}
	flips, inRecords := 0, 0
	for _, name := range fs.Names() {
		content := fs.Content(name)
		used := len(bytes.TrimRight(content, "\x00"))
		for off := range used {
			image := fs.Clone()
			b := bytes.Clone(content)
			b[off] ^= 1 << (off % 8)
			image.SetContent(name, b)
			flips++

			e, isRecord := recordAt(all, name, int64(off))
			if !isRecord {
				agree(t, fmt.Sprintf("%s: byte %d flipped", name, off), image)
			}
			l, got, err := openWith(t, options(image))
			if isRecord {
				inRecords++
				c := wantCorruption(t, err, name)
				if c.Offset != e.Offset {
					t.Errorf("%s: byte %d flipped: damage reported at %d, want %d", name, off, c.Offset, e.Offset)
				}
				if !bytes.Equal(image.Content(name), b) {
					t.Errorf("%s: Open changed a damaged log", name)
				}
				if off%5 != 0 {
					continue
				}
				report, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: image})
				if err != nil {
					t.Fatal(err)
				}
				if !report.Damaged() || !slices.ContainsFunc(report.Complaints, func(c wal.Complaint) bool {
					return c.Severity == wal.Damage && c.File == name && c.Offset == e.Offset && c.Segment == e.Segment
				}) {
					t.Errorf("%s: byte %d flipped: Verify reports %v", name, off, report.Complaints)
				}
				continue
			}
			if err == nil { // a header's or a mark's bit that nothing depends on
				mustClose(t, l)
				if err := got.checkBodies(f.first, last); err != nil || len(got.restored) != 5 {
					t.Errorf("%s: byte %d flipped: %v", name, off, err)
				}
				continue
			}
			wantCorruption(t, err, name)
		}
	}
	if inRecords < 8000 || flips-inRecords > 500 {
		t.Errorf("%d flips, %d in records", flips, inRecords)
	}
}

// Missing sectors and files are found as well.
func TestMissingSectorsAndFilesAreFound(t *testing.T) {
	fs, _ := damaged(t)
	var segments []string
	var snapshot string
	for _, name := range fs.Names() {
		if strings.HasSuffix(name, ".wal") {
			segments = append(segments, name)
		} else if strings.HasSuffix(name, ".snap") {
			snapshot = name
		}
	}
	if len(segments) < 4 || snapshot == "" {
		t.Fatalf("the log has %v", fs.Names())
	}
	cut := func(name string, n int) func(*faultfs.FS) {
		return func(fs *faultfs.FS) { fs.SetContent(name, fs.Content(name)[:n]) }
	}
	remove := func(names ...string) func(*faultfs.FS) {
		return func(fs *faultfs.FS) {
			for _, name := range names {
				fs.Delete(name)
			}
		}
	}
	blank := func(name string, from, to int) func(*faultfs.FS) {
		return func(fs *faultfs.FS) {
			b := fs.Content(name)
			clear(b[from:to])
			fs.SetContent(name, b)
		}
	}
	for name, c := range map[string]struct {
		file string
		do   func(*faultfs.FS)
	}{
		"first segment removed":       {segments[1], remove(segments[0])},
		"middle segment removed":      {segments[1], remove(segments[1])},
		"all segments removed":        {snapshot, remove(segments...)},
		"snapshot removed":            {segments[0], remove(snapshot)},
		"snapshot cut":                {snapshot, cut(snapshot, 100)},
		"snapshot empty":              {snapshot, cut(snapshot, 0)},
		"snapshot without its end":    {snapshot, cut(snapshot, len(fs.Content(snapshot))-20)},
		"snapshot longer":             {snapshot, func(fs *faultfs.FS) { fs.SetContent(snapshot, append(fs.Content(snapshot), 0)) }},
		"first segment cut":           {segments[0], cut(segments[0], 2000)},
		"first segment empty":         {segments[0], cut(segments[0], 0)},
		"records blank in the first":  {segments[0], blank(segments[0], 3000, 4096)},
		"all records of the first":    {segments[0], blank(segments[0], 64, 4096)},
		"header of the first blank":   {segments[0], blank(segments[0], 0, 64)},
		"second segment is the first": {segments[1], func(fs *faultfs.FS) { fs.SetContent(segments[1], fs.Content(segments[0])) }},
		"snapshot of another sequence": {dir + "/00000000000000000099.snap", func(fs *faultfs.FS) {
			fs.SetContent(dir+"/00000000000000000099.snap", fs.Content(snapshot))
			fs.Delete(snapshot)
		}},
	} {
		image := fs.Clone()
		c.do(image)
		names := image.Names()
		_, _, err := openWith(t, options(image))
		var corrupt *wal.CorruptionError
		if !errors.As(err, &corrupt) {
			t.Errorf("%s: %v, want a CorruptionError", name, err)
			continue
		}
		if corrupt.File != c.file {
			t.Errorf("%s: reported in %s, want %s: %v", name, corrupt.File, c.file, err)
		}
		if !slices.Equal(image.Names(), names) {
			t.Errorf("%s: Open removed files of a damaged log", name)
		}
		agree(t, name, image)
	}
}

func TestFilesOfAnotherLog(t *testing.T) {
	fs, _ := damaged(t)
	other, _ := damaged(t)
	names := fs.Names()
	for _, name := range names {
		image := fs.Clone()
		image.SetContent(name, other.Content(name))
		_, _, err := openWith(t, options(image))
		if c := wantCorruption(t, err, ""); !strings.Contains(c.Reason, "another log") {
			t.Errorf("%s replaced: %v", name, err)
		}
	}
}

// A newer format is refused as such, not taken for damage or a torn write.
func TestNewerFormatIsRefused(t *testing.T) {
	fs, _ := damaged(t)
	for _, name := range fs.Names() {
		image := fs.Clone()
		image.SetContent(name, wal.WithFormatVersion(fs.Content(name), 2))
		before := image.Names()
		_, _, err := openWith(t, options(image))
		if err == nil || !strings.Contains(err.Error(), "format version 1, the file has version 2") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s of version 2: %v", name, err)
		}
		var corrupt *wal.CorruptionError
		if errors.As(err, &corrupt) {
			t.Errorf("%s of version 2 passes for damage: %v", name, err)
		}
		if !slices.Equal(image.Names(), before) {
			t.Errorf("%s of version 2: files were removed", name)
		}
		if _, verifyErr := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: image}); verifyErr == nil || verifyErr.Error() != err.Error() {
			t.Errorf("%s of version 2: Verify: %v", name, verifyErr)
		}
	}
}

func TestForeignFilesStay(t *testing.T) {
	fs := &faultfs.FS{}
	foreign := []string{"README", "1.wal", "x.snap", "00000000000000000001.wal.bak", "0000000000000000000x.wal", "keep.tmp"}
	for _, name := range foreign {
		fs.SetContent(dir+"/"+name, []byte("mine"))
	}
	l, _ := mustOpen(t, options(fs))
	appendAll(t, l, 1, 200)
	mustClose(t, l)
	l, f := mustOpen(t, options(fs))
	f.wantBodies(t, 1, 200)
	mustClose(t, l)
	for _, name := range foreign {
		if string(fs.Content(dir+"/"+name)) != "mine" {
			t.Errorf("%s was touched", name)
		}
	}
}
