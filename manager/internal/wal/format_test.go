package wal

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
)

const testSeed = 0x12345678

// segmentOf is a segment file with records of the given bodies from sequence
// number first on, all in one batch.
func segmentOf(first uint64, bodies ...[]byte) []byte {
	b := segmentHeader{number: 1, first: first, capacity: minSegmentBytes}.append(nil)
	for i, body := range bodies {
		b = appendRecord(b, bodyChecksum(testSeed, body), first+uint64(i), uint32(i), body)
	}
	return append(b, make([]byte, max(0, minSegmentBytes-len(b)))...)
}

func TestScanStopsAtStaleRecords(t *testing.T) {
	a, b, c := []byte("first"), []byte("second"), []byte("third")
	for name, s := range map[string]struct {
		file []byte
		want uint64 // sequence number at which the walk ends
		torn bool
	}{
		"two":                {segmentOf(5, a, b), 7, false},
		"none":               {segmentOf(5), 5, false},
		"other first":        {segmentOf(4, a, b), 5, true},
		"a gap":              {append(bytes.TrimRight(segmentOf(5, a, b), "\x00"), appendRecord(nil, bodyChecksum(testSeed, c), 9, 0, c)...), 7, true},
		"the same again":     {append(bytes.TrimRight(segmentOf(5, a), "\x00"), appendRecord(nil, bodyChecksum(testSeed, a), 5, 0, a)...), 6, true},
		"another log's seed": {append(bytes.TrimRight(segmentOf(5, a), "\x00"), appendRecord(nil, bodyChecksum(testSeed+1, b), 6, 0, b)...), 6, true},
		"a mark":             {append(bytes.TrimRight(segmentOf(5, a), "\x00"), appendRecord(nil, testSeed, 6, 0, nil)...), 6, false},
		"an old mark":        {append(bytes.TrimRight(segmentOf(5, a), "\x00"), appendRecord(nil, testSeed, 4, 0, nil)...), 6, true},
	} {
		end, err := scanRecords(s.file, segmentHeaderSize, 5, testSeed, func(int64, record) error { return nil })
		if err != nil || end.next != s.want || (end.why != nil) != s.torn {
			t.Errorf("%s: the walk ends with %+v, %v", name, end, err)
		}
	}
}

// A body that looks like a record proves nothing: the seed is not known to
// the caller that chose it.
func TestBodyThatLooksLikeARecordProvesNothing(t *testing.T) {
	forged := appendRecord(nil, bodyChecksum(0, []byte("x")), 100, 0, []byte("x"))
	b := segmentOf(1, []byte("a"), forged)
	if _, _, ok := findProof(b, segmentHeaderSize, 1, testSeed); ok {
		t.Error("a forged record passes for a proof")
	}
	genuine := appendRecord(nil, bodyChecksum(testSeed, []byte("x")), 100, 0, []byte("x"))
	b = segmentOf(1, []byte("a"), genuine)
	if off, r, ok := findProof(b, segmentHeaderSize, 1, testSeed); !ok || r.seq != 100 || off == 0 {
		t.Error("the same with the right seed is not found, so the test shows nothing")
	}
}

func TestNamesOfOtherFilesAreIgnored(t *testing.T) {
	for _, n := range []uint64{1, 42, 1<<64 - 1} {
		if got, ok := parseName(segmentName(n), segmentSuffix); !ok || got != n {
			t.Errorf("%s is %d, %v", segmentName(n), got, ok)
		}
	}
	for _, name := range []string{"", "1.wal", "00000000000000000001.snap", "0000000000000000000x.wal", "99999999999999999999.wal", "-0000000000000000001.wal"} {
		if n, ok := parseName(name, segmentSuffix); ok {
			t.Errorf("%q passes for segment %d", name, n)
		}
	}
}

// FuzzScan feeds the record decoder with any bytes. It must not panic, stay
// inside its input, and accept only what encodes to the same bytes again.
func FuzzScan(f *testing.F) {
	f.Add(segmentOf(1, []byte("a"), []byte("second record"))[:200], uint64(1))
	f.Add(append(segmentOf(1)[:64], appendRecord(nil, testSeed, 1, 0, nil)...), uint64(1))
	f.Add(segmentOf(1<<63, make([]byte, 100))[:150], uint64(1<<63))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, first uint64) {
		if h, err := parseSegmentHeader(b); err == nil {
			if again := h.append(nil); !bytes.Equal(again[:56], b[:56]) {
				t.Errorf("header %+v encodes as %x", h, again)
			}
		}
		next, off := first, int64(segmentHeaderSize)
		end, err := scanRecords(b, segmentHeaderSize, first, testSeed, func(at int64, r record) error {
			if r.seq != next || at != off || len(r.body) == 0 {
				t.Errorf("record %+v at %d, expected %d at %d", r, at, next, off)
			}
			again := appendRecord(nil, bodyChecksum(testSeed, r.body), r.seq, r.ahead, r.body)
			if !bytes.Equal(again, b[at:at+int64(r.size())]) {
				t.Errorf("record at %d encodes as other bytes", at)
			}
			next++
			off += int64(r.size())
			return nil
		})
		if err != nil || end.next != next || end.off != off && len(b) >= segmentHeaderSize {
			t.Errorf("the walk ended with %+v, %v", end, err)
		}
		if len(b) >= segmentHeaderSize {
			checkTail("f", b, end, []follower{{path: "g", why: errShortWrite, buf: trim(b)}}, testSeed)
		}
	})
}

// FuzzSnapshot feeds the snapshot decoder with any bytes.
func FuzzSnapshot(f *testing.F) {
	whole := snapshotHeader{seq: 7}.append(nil)
	seed := logID{}.snapshotSeed()
	for i, body := range [][]byte{[]byte("a"), make([]byte, 300)} {
		whole = appendRecord(whole, bodyChecksum(seed, body), uint64(i)+1, 0, body)
	}
	f.Add(appendRecord(whole, seed, 3, 0, nil))
	f.Add(whole)
	f.Add(whole[:70])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		fs := &faultfs.FS{}
		fs.SetContent("s", b)
		r, err := openSnapshot(fs, "s")
		var corrupt *CorruptionError
		if err != nil {
			if !errors.As(err, &corrupt) && !errors.Is(err, errVersion) {
				t.Errorf("openSnapshot: %v", err)
			}
			return
		}
		defer r.close()
		again := bytes.Clone(b[:min(len(b), segmentHeaderSize)])
		for {
			body, ok, err := r.next()
			if err != nil {
				if !errors.As(err, &corrupt) || corrupt.Offset > int64(len(b)) {
					t.Errorf("next: %v", err)
				}
				return
			}
			if !ok {
				break
			}
			again = appendRecord(again, bodyChecksum(r.seed, body), uint64(r.records), 0, body)
		}
		again = appendRecord(again, r.seed, uint64(r.records)+1, 0, nil)
		if len(again) != len(b) {
			t.Errorf("a snapshot of %d bytes was accepted, its records make %d", len(b), len(again))
		}
	})
}

// FuzzOpen opens a directory with any bytes as its only segment or snapshot:
// an error or a log, never a panic, and a log that opened opens again.
func FuzzOpen(f *testing.F) {
	f.Add(segmentOf(1, []byte("a")), true)
	f.Add(snapshotHeader{seq: 1}.append(nil), false)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, isSegment bool) {
		fs := &faultfs.FS{}
		name := "d/" + segmentName(1)
		if !isSegment {
			name = "d/" + snapshotName(1)
		}
		fs.SetContent(name, b)
		opts := Options{FS: fs, SegmentBytes: minSegmentBytes, FillAhead: -1}
		report, verifyErr := Verify(context.Background(), "d", InspectOptions{FS: fs})
		if verifyErr != nil && !errors.Is(verifyErr, errVersion) {
			t.Errorf("Verify: %v", verifyErr)
		}
		l, err := Open(context.Background(), "d", opts)
		if errors.Is(err, errVersion) != (verifyErr != nil) || verifyErr == nil && (err != nil) != report.Damaged() {
			t.Errorf("Open: %v; Verify: %v, %v", err, verifyErr, report)
		}
		if err != nil {
			return
		}
		last := l.Last()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l, err = Open(context.Background(), "d", opts); err != nil || l.Last() != last {
			t.Fatalf("the second Open: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
