package logs

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// BenchmarkRestore reads the snapshot of a window of a million ids.
func BenchmarkRestore(b *testing.B) {
	s := NewState("log", HashKey{1}, DefaultConfig())
	var key [8]byte
	for i := range uint64(1_000_000) {
		binary.LittleEndian.PutUint64(key[:], i)
		s.Replay(&Entry{Number: i + 1, ID: fmt.Sprintf("order-%d", i), Payload: key[:]}, int64(i))
	}
	var recs [][]byte
	_ = s.Snapshot().Write(func(rec []byte) error {
		recs = append(recs, append([]byte(nil), rec...))
		return nil
	})
	for b.Loop() {
		var r *State
		for _, rec := range recs {
			var err error
			if r, _, err = RestoreState(r, rec); err != nil {
				b.Fatal(err)
			}
		}
	}
}
