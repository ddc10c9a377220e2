package postgres

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// wire is an array of the server's in its binary form. The driver encodes arrays element by element through interfaces,
// which took most of the manager's time for a commit.
type wire []byte

// arrayOf encodes an array of one dimension. An element is encoded by put, which returns false for NULL.
func arrayOf[T any](element uint32, values []T, size int, put func(b []byte, v T) ([]byte, bool)) wire {
	b := make(wire, 0, 20+size+4*len(values))
	if len(values) == 0 {
		b = binary.BigEndian.AppendUint32(b, 0) // dimensions
		b = binary.BigEndian.AppendUint32(b, 0)
		return binary.BigEndian.AppendUint32(b, element)
	}
	for _, n := range []uint32{1, 0, element, uint32(len(values)), 1} { // dimensions, NULLs, type, length, first index
		b = binary.BigEndian.AppendUint32(b, n)
	}
	for _, v := range values {
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		var given bool
		if b, given = put(b, v); given {
			binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
			continue
		}
		binary.BigEndian.PutUint32(b[at:], ^uint32(0))
		binary.BigEndian.PutUint32(b[4:], 1)
	}
	return b
}

func wireBytes(values [][]byte) wire {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	return arrayOf(pgtype.ByteaOID, values, size, func(b, v []byte) ([]byte, bool) { return append(b, v...), v != nil })
}

func wireStrings(element uint32, values []string) wire {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	return arrayOf(element, values, size, func(b []byte, v string) ([]byte, bool) { return append(b, v...), true })
}

func wireVersions(values []uint32) wire {
	return arrayOf(pgtype.XIDOID, values, 4*len(values), func(b []byte, v uint32) ([]byte, bool) {
		return binary.BigEndian.AppendUint32(b, v), true
	})
}

func wireNumbers(values []int64) wire {
	return arrayOf(pgtype.Int8OID, values, 8*len(values), func(b []byte, v int64) ([]byte, bool) {
		return binary.BigEndian.AppendUint64(b, uint64(v)), true
	})
}

func wireIndexes(values []int32) wire {
	return arrayOf(pgtype.Int4OID, values, 4*len(values), func(b []byte, v int32) ([]byte, bool) {
		return binary.BigEndian.AppendUint32(b, uint32(v)), true
	})
}

func wireBools(values []bool) wire {
	return arrayOf(pgtype.BoolOID, values, len(values), func(b []byte, v bool) ([]byte, bool) {
		if v {
			return append(b, 1), true
		}
		return append(b, 0), true
	})
}

// wireCodec lets the driver send a wire as it is.
type wireCodec struct{ pgtype.Codec }

func (c wireCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(wire); ok {
		return wirePlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

// PreferredFormat implements pgtype.Codec: a wire is binary.
func (c wireCodec) PreferredFormat() int16 { return pgx.BinaryFormatCode }

type wirePlan struct{}

func (wirePlan) Encode(value any, buf []byte) ([]byte, error) {
	return append(buf, value.(wire)...), nil
}

// takeWires prepares a new connection for arrays of the type wire.
func takeWires(conn *pgx.Conn) {
	m := conn.TypeMap()
	for _, oid := range []uint32{pgtype.ByteaArrayOID, pgtype.TextArrayOID, pgtype.QCharArrayOID, pgtype.XIDArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID, pgtype.BoolArrayOID} {
		if t, ok := m.TypeForOID(oid); ok {
			m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: wireCodec{t.Codec}})
		}
	}
}
