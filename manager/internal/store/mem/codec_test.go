package mem

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// writeSet encodes a transaction of the given changes.
func writeSet(t testing.TB, fn func(store.Tx) error) []byte {
	t.Helper()
	s := New(Options{Clock: func() time.Time { return time.Unix(7, 9) }})
	var body []byte
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		body = s.tx.encode(nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func sample(t testing.TB) []byte {
	return writeSet(t, func(tx store.Tx) error {
		return errors.Join(
			tx.Put(things, "a", []byte("value"), store.Entry{Index: byName, SortKey: "s\x00"}, store.Entry{Index: "i2", SortKey: ""}),
			tx.Delete(things, "b"),
			tx.Put("others", strings.Repeat("k", 300), nil))
	})
}

func TestDecodeWriteSet(t *testing.T) {
	var got []string
	when, err := DecodeWriteSet(sample(t), func(c *Change) error {
		line := string(c.Collection) + " " + string(c.Key[:1])
		if c.Delete {
			line += " deleted"
		} else {
			line += "=" + string(c.Value)
		}
		for _, e := range c.Entries {
			line += " " + string(e.Index) + ":" + string(e.SortKey)
		}
		got = append(got, line)
		return nil
	})
	want := []string{"things a=value by_name:s\x00 i2:", "things b deleted", "others k="}
	if err != nil || strings.Join(got, "|") != strings.Join(want, "|") || !when.Equal(time.Unix(7, 9)) {
		t.Errorf("decoded %q at %v, %v", got, when, err)
	}
	stop := errors.New("enough")
	if _, err := DecodeWriteSet(sample(t), func(*Change) error { return stop }); err != stop {
		t.Errorf("error %v, want the function's own", err)
	}
}

func TestDecodeRefusesEveryCut(t *testing.T) {
	body := sample(t)
	ends := 0
	for n := range len(body) {
		_, err := DecodeWriteSet(body[:n], func(*Change) error { return nil })
		if err == nil {
			ends++ // between two changes
		} else if !errors.Is(err, errWriteSet) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	if ends > 3 {
		t.Errorf("%d of the cuts are accepted", ends)
	}
}

func TestMalformedRecordsAreRefused(t *testing.T) {
	head := appendHeader(nil, time.Unix(0, 0))
	str := func(s string) []byte { return codec.AppendString(nil, s) }
	join := func(parts ...[]byte) []byte { return bytes.Join(append([][]byte{head}, parts...), nil) }
	for name, body := range map[string][]byte{
		"another version":    append([]byte{2}, head[1:]...),
		"another operation":  join([]byte{3}, str("c"), str("k")),
		"a bad collection":   join([]byte{opDelete}, str("C"), str("k")),
		"an empty key":       join([]byte{opDelete}, str("c"), str("")),
		"a long key":         join([]byte{opDelete}, str("c"), str(strings.Repeat("k", store.MaxKeyBytes+1))),
		"a bad index":        join([]byte{opPut}, str("c"), str("k"), []byte{1}, str(""), str("s"), str("v")),
		"a long sort key":    join([]byte{opPut}, str("c"), str("k"), []byte{1}, str("i"), str(strings.Repeat("s", store.MaxKeyBytes+1)), str("v")),
		"an index twice":     join([]byte{opPut}, str("c"), str("k"), []byte{2}, str("i"), str("s"), str("i"), str("s"), str("v")),
		"too many entries":   join([]byte{opPut}, str("c"), str("k"), []byte{0xff, 0xff, 0x03}),
		"an endless length":  join([]byte{opDelete}, bytes.Repeat([]byte{0xff}, 11)),
		"a length past it":   join([]byte{opDelete}, []byte{0xff, 0xff, 0xff, 0x7f}),
		"nothing":            nil,
		"a header cut short": head[:8],
	} {
		if _, err := DecodeWriteSet(body, func(*Change) error { return nil }); !errors.Is(err, errWriteSet) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeWriteSet feeds the decoder, and the replay after it, with any
// bytes: whatever it accepts can be applied, and encodes to the same again.
func FuzzDecodeWriteSet(f *testing.F) {
	f.Add(sample(f))
	f.Add(sample(f)[:30])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		s := New(Options{})
		_, err := DecodeWriteSet(body, func(c *Change) error {
			col, err := s.collection(store.Collection(c.Collection))
			if err != nil || c.Delete {
				s.replace(col, string(c.Key), nil, nil, 1)
				return err
			}
			rec, err := col.decoded(c, 1)
			if err == nil {
				s.replace(col, rec.key(), rec, nil, 1)
			}
			return err
		})
		if err != nil {
			return
		}
		again := append([]byte(nil), body[:9]...)
		_, err = DecodeWriteSet(body, func(c *Change) error {
			col := s.collections[store.Collection(c.Collection)]
			if c.Delete {
				again = appendDelete(again, col, string(c.Key))
				return nil
			}
			rec, err := col.decoded(c, 1)
			if err != nil {
				return err
			}
			again = appendPut(again, col.name, col.indexes, rec)
			return nil
		})
		if err != nil {
			t.Fatalf("the second decoding fails: %v", err)
		}
		if _, err := DecodeWriteSet(again, func(*Change) error { return nil }); err != nil || len(again) > len(body) {
			t.Errorf("%x encodes again as %x, %v", body, again, err)
		}
		dumped(t, s)
	})
}
