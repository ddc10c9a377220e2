package window

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

func TestCheck(t *testing.T) {
	block := "\x01" + strings.Repeat("\x00", 2*blockCells)
	for _, c := range []struct {
		key, value string
		ok         bool
	}{
		{seedKey, "\x0112345678", true}, {seedKey, "\x011234567", false}, {seedKey, "\x0212345678", false},
		{"0", block, true}, {"63", block, true}, {"64", block, false}, {"-1", block, false}, {"01", block, false}, {"x", block, false},
		{"0", block[:len(block)-1], false}, {"0", block + "\x00", false}, {"0", "\x02" + block[1:], false}, {"0", "", false},
		{"0", string(binary.AppendUvarint([]byte{1}, 1<<63)) + block[2:], false},
	} {
		if err := Check(c.key, []byte(c.value)); (err == nil) != c.ok || err != nil && !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("%q, %d bytes: %v", c.key, len(c.value), err)
		}
	}
}

// TestStep: how far a cell may be away from its record.
func TestStep(t *testing.T) {
	st := mem.New(mem.Options{})
	defer st.Close()
	for _, c := range []struct{ size, want Level }{
		{Level{1, 1}, Level{1, 1}},
		{Level{2000, 1 << 20}, Level{7, 4096}},
		{Level{1 << 40, 1 << 40}, Level{StepEntries, StepBytes}},
	} {
		if s, err := Open(t.Context(), st, c.size, true); err != nil || s.step != c.want {
			t.Errorf("a window of %+v: a step of %+v, %v; want %+v", c.size, s.step, err, c.want)
		}
	}
}
