// Package codec reads and writes the parts that binary records are made of: varints, and strings after their length.
package codec

import (
	"encoding/binary"
	"errors"
)

// ErrShort is the error of a Reader whose bytes end too early, or have a number that is too large.
var ErrShort = errors.New("the record ends too early")

// AppendString appends the length of s as a varint, and s.
func AppendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Reader reads a record from its start. After the first error every read returns zero.
type Reader struct {
	rest []byte
	err  error
}

// NewReader returns a Reader of b. What it returns aliases b, except strings.
func NewReader(b []byte) Reader { return Reader{rest: b} }

// Err is the first error.
func (r *Reader) Err() error { return r.err }

// Rest is what was not read yet, nil after an error.
func (r *Reader) Rest() []byte { return r.rest }

// Fail makes err the error unless there was one before.
func (r *Reader) Fail(err error) {
	if r.rest = nil; r.err == nil {
		r.err = err
	}
}

// Uvarint reads an unsigned varint.
func (r *Reader) Uvarint() uint64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 { // most are small
		v := r.rest[0]
		r.rest = r.rest[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.Fail(ErrShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// Varint reads a signed varint.
func (r *Reader) Varint() int64 {
	v := r.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Count reads an unsigned varint that is at most most.
func (r *Reader) Count(most uint64) int {
	n := r.Uvarint()
	if n > most {
		r.Fail(ErrShort)
		return 0
	}
	return int(n)
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if b := r.Take(1); b != nil {
		return b[0]
	}
	return 0
}

// Take reads n bytes. n must not be negative.
func (r *Reader) Take(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.Fail(ErrShort)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// Bytes reads what AppendString wrote.
func (r *Reader) Bytes() []byte { return r.Take(r.Count(uint64(len(r.rest)))) }

// String reads what AppendString wrote.
func (r *Reader) String() string { return string(r.Bytes()) }
