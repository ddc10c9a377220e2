package wal

import (
	"bytes"
)

// WithFormatVersion is a segment or snapshot with another version in an
// otherwise correct header.
func WithFormatVersion(file []byte, version uint32) []byte {
	out := bytes.Clone(file)
	le.PutUint32(out[8:], version)
	le.PutUint32(out[12:], headerCRC(out))
	return out
}
