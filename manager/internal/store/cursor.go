package store

import (
	"encoding/base64"
	"encoding/binary"
)

// Cursor is a position in a listing that goes through several indexes.
type Cursor struct {
	// Part is the number of the index among those of the listing: 0 to 255.
	Part int
	// Hit is the last one that was listed, zero at the beginning of the index.
	Hit Hit
}

// String returns base64url of: Part, the length of the sort key as a uvarint, sort key, key.
func (c Cursor) String() string {
	b := binary.AppendUvarint([]byte{byte(c.Part)}, uint64(len(c.Hit.SortKey)))
	return base64.RawURLEncoding.EncodeToString(append(append(b, c.Hit.SortKey...), c.Hit.Key...))
}

// ParseCursor is the inverse of String. The empty text is the beginning of the first index. ok is false for a malformed
// text.
func ParseCursor(text string) (c Cursor, ok bool) {
	if text == "" {
		return c, true
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 2 {
		return c, false
	}
	n, w := binary.Uvarint(b[1:])
	rest := b[1+max(w, 0):]
	if w <= 0 || n > uint64(len(rest)) || n > MaxKeyBytes || uint64(len(rest))-n > MaxKeyBytes {
		return c, false
	}
	c = Cursor{Part: int(b[0]), Hit: Hit{SortKey: string(rest[:n]), Key: string(rest[n:])}}
	return c, (c.Hit.Key == "") == (c.Hit.SortKey == "")
}

// After returns where the next scan of the index begins, see Range.
func (c Cursor) After() *Hit {
	if c.Hit == (Hit{}) {
		return nil
	}
	return &c.Hit
}
