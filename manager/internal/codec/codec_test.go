package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	b := binary.AppendVarint(binary.AppendUvarint([]byte{7}, 300), -300)
	b = AppendString(AppendString(append(b, 5), "text"), []byte(nil))
	r := NewReader(append(b, "rest"...))
	if v := r.Byte(); v != 7 {
		t.Errorf("byte %d", v)
	}
	if v := r.Uvarint(); v != 300 {
		t.Errorf("uvarint %d", v)
	}
	if v := r.Varint(); v != -300 {
		t.Errorf("varint %d", v)
	}
	if v := r.Count(5); v != 5 {
		t.Errorf("count %d", v)
	}
	if one, two := r.String(), r.Bytes(); one != "text" || two == nil || len(two) != 0 {
		t.Errorf("strings %q, %q", one, two)
	}
	if rest := r.Rest(); string(rest) != "rest" || r.Err() != nil {
		t.Errorf("rest %q, %v", rest, r.Err())
	}
}

func TestTheFirstErrorStays(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		b    []byte
		read func(r *Reader)
		want error
	}{
		"no byte":            {nil, func(r *Reader) { r.Byte() }, ErrShort},
		"no number":          {[]byte{0x80}, func(r *Reader) { r.Uvarint() }, ErrShort},
		"no signed number":   {[]byte{0x80}, func(r *Reader) { r.Varint() }, ErrShort},
		"number of 65 bits":  {bytes.Repeat([]byte{0xff}, 11), func(r *Reader) { r.Uvarint() }, ErrShort},
		"too large":          {[]byte{6}, func(r *Reader) { r.Count(5) }, ErrShort},
		"cut off":            {[]byte{6, 'a'}, func(r *Reader) { _ = r.String() }, ErrShort},
		"the caller's error": {[]byte{6, 'a'}, func(r *Reader) { r.Fail(own) }, own},
	} {
		r := NewReader(c.b)
		c.read(&r)
		r.Fail(errors.New("later"))
		if r.Byte() != 0 || r.Uvarint() != 0 || r.Varint() != 0 || r.Count(9) != 0 || r.Bytes() != nil || r.Take(0) != nil || r.Rest() != nil {
			t.Errorf("%s: there is something to read", name)
		}
		if !errors.Is(r.Err(), c.want) {
			t.Errorf("%s: %v, want %v", name, r.Err(), c.want)
		}
	}
}

// FuzzReader: whatever comes, nothing is read twice or from beyond the end.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4}, []byte{7, 0x80, 1, 3, 'a', 'b', 'c'})
	f.Fuzz(func(t *testing.T, reads, b []byte) {
		r := NewReader(b)
		for _, read := range reads {
			before := len(r.Rest())
			size := 0
			switch read % 5 {
			case 0:
				r.Byte()
			case 1:
				r.Uvarint()
			case 2:
				r.Varint()
			case 3:
				size = len(r.Bytes())
			case 4:
				size = len(r.Take(int(read)))
			}
			if after := len(r.Rest()); size > before || after > before || r.Err() != nil && after != 0 {
				t.Fatalf("%d bytes were read, %d were left before and %d after, %v", size, before, after, r.Err())
			}
		}
	})
}
