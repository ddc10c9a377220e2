package wal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

func verify(t *testing.T, fs *faultfs.FS) *wal.Report {
	t.Helper()
	contents := make(map[string][]byte)
	for _, name := range fs.Names() {
		contents[name] = fs.Content(name)
	}
	report, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range contents {
		if !bytes.Equal(fs.Content(name), b) {
			t.Errorf("Verify changed %s", name)
		}
	}
	if len(fs.Names()) != len(contents) {
		t.Errorf("Verify left %v", fs.Names())
	}
	return report
}

func TestVerifyHasNoComplaintsOfAHealthyLog(t *testing.T) {
	fs, last := damaged(t)
	r := verify(t, fs)
	if len(r.Complaints) != 0 || r.Damaged() {
		t.Errorf("complaints about a healthy log: %v", r.Complaints)
	}
	if r.LastSequence != last || r.FirstSequence == 1 || r.Records != int(last-r.FirstSequence)+1 || r.SnapshotRecords != 5 || r.SnapshotSequence != 100 {
		t.Errorf("stats are %+v", r.DirStats)
	}
	if r.Batches < 2 || r.Batches > r.Records || r.LargestRecord < 90 || r.TailBytes == 0 || r.TailBytes > 20 {
		t.Errorf("stats are %+v", r.DirStats)
	}
}

// A directory that holds no log is not one with a healthy log.
func TestVerifyWithoutALog(t *testing.T) {
	fs := &faultfs.FS{}
	fs.SetContent(dir+"/notes.txt", []byte("nothing here"))
	if _, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: fs}); !errors.Is(err, wal.ErrNoLog) {
		t.Errorf("Verify: %v, want ErrNoLog", err)
	}
	// A start that was interrupted before the first record left a log.
	fs.SetContent(segment(1), make([]byte, 4096))
	if r := verify(t, fs); len(r.Complaints) != 0 || r.Prepared != 1 {
		t.Errorf("a prepared segment alone: %+v", r)
	}
}

// agree checks that Verify reports damage exactly where Open fails.
func agree(t *testing.T, what string, image *faultfs.FS) {
	t.Helper()
	report, err := wal.Verify(t.Context(), dir, wal.InspectOptions{FS: image})
	if errors.Is(err, wal.ErrNoLog) {
		return
	}
	if err != nil {
		t.Fatalf("%s: Verify: %v", what, err)
	}
	l, err := wal.Open(t.Context(), dir, options(image.Clone()))
	if err == nil {
		mustClose(t, l)
	}
	if (err != nil) != report.Damaged() {
		t.Errorf("%s: Open: %v; Verify: %v", what, err, report.Complaints)
	}
}

// What a crash leaves of segments that a snapshot replaced is not damage: any of them may be deleted already.
func TestVerifyReplacedSegments(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 300))
	var before *faultfs.FS
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Remove && op.Path == segment(1) {
			before = fs.Clone()
		}
		return nil
	})
	if err := l.Snapshot(t.Context(), 300, 300+1, snapshotOf(300)...); err != nil {
		t.Fatal(err)
	}
	fs.SetHook(nil)
	mustClose(t, l)
	agree(t, "all of them", before)
	for _, gone := range [][]int{{1}, {2}, {3}, {1, 3}, {2, 3}} {
		image := before.Clone()
		for _, n := range gone {
			if image.Content(segment(n)) == nil {
				t.Fatalf("the log has only %v", image.Names())
			}
			image.Delete(segment(n))
		}
		agree(t, fmt.Sprint("without ", gone), image)
		b := image.Content(segment(4))
		b[100] ^= 1
		image.SetContent(segment(4), b)
		agree(t, fmt.Sprint("damaged, without ", gone), image)
		if r := verify(t, image); r.Damaged() || len(r.Complaints) == 0 {
			t.Errorf("without %v: %v", gone, r.Complaints)
		}
	}
}

// Verify continues after damage and finds the next one.
func TestVerifyFindsEveryDamage(t *testing.T) {
	fs, _ := damaged(t)
	all := entries(t, fs)
	var hit []wal.Entry
	for i, e := range all {
		if e.Segment != 0 && i%17 == 3 {
			hit = append(hit, e)
			b := fs.Content(e.File)
			b[e.Offset+22] ^= 0x40
			fs.SetContent(e.File, b)
		}
	}
	r := verify(t, fs)
	if len(hit) < 5 || len(r.Complaints) != len(hit) {
		t.Errorf("%d entries are damaged, %d complaints: %v", len(hit), len(r.Complaints), r.Complaints)
	}
	for _, e := range hit {
		i := slices.IndexFunc(r.Complaints, func(c wal.Complaint) bool { return c.File == e.File && c.Offset == e.Offset })
		if i < 0 {
			t.Errorf("no complaint about %s offset %d", e.File, e.Offset)
			continue
		}
		c := r.Complaints[i]
		if c.Severity != wal.Damage || c.Segment != e.Segment || c.Sequence != e.Sequence {
			t.Errorf("complaint %+v about record %d of segment %d", c, e.Sequence, e.Segment)
		}
		if want := fmt.Sprintf("damage: %s: offset %d, sequence %d: record checksum is", e.File, e.Offset, e.Sequence); !strings.HasPrefix(c.String(), want) {
			t.Errorf("complaint %q, want %q", c, want)
		}
	}
}

func TestVerifyTornTail(t *testing.T) {
	fs := &faultfs.FS{}
	l, _ := mustOpen(t, options(fs))
	mustWait(t, l, appendAll(t, l, 1, 10))
	g := newGate(fs, isSync)
	mustAppend(t, l, body(11))
	<-g.entered
	image := fs.CrashTorn(15)
	g.release()
	mustClose(t, l)
	r := verify(t, image)
	if r.Damaged() || len(r.Complaints) != 1 || r.Complaints[0].Severity != wal.Note || !strings.Contains(r.Complaints[0].Reason, "torn tail of ") {
		t.Errorf("complaints about a torn tail: %v", r.Complaints)
	}
	if r.LastSequence != 10 || r.TailBytes < 4 || r.TailBytes > 15 {
		t.Errorf("stats are %+v", r.DirStats)
	}
}

func TestVerifyChecksBodies(t *testing.T) {
	fs, _ := damaged(t)
	opts := wal.InspectOptions{FS: fs, Check: func(e wal.Entry) error {
		b := e.Body
		if bytes.Equal(b, body(200)) || string(b) == "snapshot record 3" {
			return errors.New("makes no sense")
		}
		return nil
	}}
	r, err := wal.Verify(t.Context(), dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Complaints) != 2 || r.Complaints[0].Segment != 0 || r.Complaints[1].Sequence != 200 || !strings.Contains(r.Complaints[1].Reason, "makes no sense") {
		t.Errorf("complaints: %v", r.Complaints)
	}
}

func TestVerifyEndedContext(t *testing.T) {
	fs, _ := damaged(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := wal.Verify(ctx, dir, wal.InspectOptions{FS: fs}); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify: %v", err)
	}
}

func TestVerifyPassesEveryRecord(t *testing.T) {
	fs, last := damaged(t)
	all := entries(t, fs)
	next := uint64(0)
	for i, e := range all {
		if i < 5 {
			if e.Segment != 0 || e.Sequence != uint64(i)+1 || string(e.Body) != fmt.Sprintf("snapshot record %d", i) {
				t.Errorf("entry %d is %+v", i, e)
			}
			continue
		}
		if next == 0 {
			next = e.Sequence
		}
		if e.Sequence != next || e.Segment == 0 || e.Batch == 0 || e.Batch > e.Sequence || !bytes.Equal(e.Body, body(e.Sequence)) {
			t.Errorf("entry %d is %+v", i, e)
		}
		next++
	}
	if next != last+1 {
		t.Errorf("the records end before %d, want %d", next, last+1)
	}
	e := all[len(all)-30]
	b := fs.Content(e.File)
	b[e.Offset+8] ^= 1
	fs.SetContent(e.File, b)
	if seen, complaints := passed(t, fs); len(complaints) != 1 || complaints[0].File != e.File || complaints[0].Offset != e.Offset || len(seen) != len(all)-1 {
		t.Errorf("a damaged log: %v, %d of %d records", complaints, len(seen), len(all))
	}
}
