package postgres

import (
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// wire appends an array of the server's in its binary form. The driver encodes arrays element by element through
// interfaces, which took most of the manager's time for a commit.
type wire func(b []byte) []byte

// arrayOf encodes an array of one dimension, a column of rows. An element has a size, which is negative for NULL, and is
// encoded by put.
func arrayOf[R any](element uint32, rows []R, size func(*R) int, put func(b []byte, r *R) []byte) wire {
	return func(b []byte) []byte {
		total, dimensions, nulls := 20, uint32(0), uint32(0)
		for i := range rows {
			n := size(&rows[i])
			if n < 0 {
				nulls = 1
			}
			total += 4 + max(n, 0)
			dimensions = 1
		}
		b = slices.Grow(b, total)
		for _, n := range []uint32{dimensions, nulls, element} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		if dimensions == 0 {
			return b
		}
		b = binary.BigEndian.AppendUint32(b, uint32(len(rows)))
		b = binary.BigEndian.AppendUint32(b, 1) // the first index
		for i := range rows {
			n := size(&rows[i])
			if b = binary.BigEndian.AppendUint32(b, uint32(n)); n >= 0 {
				b = put(b, &rows[i])
			}
		}
		return b
	}
}

func wireBytes[R any](rows []R, of func(*R) []byte) wire {
	size := func(r *R) int {
		if v := of(r); v != nil {
			return len(v)
		}
		return -1
	}
	return arrayOf(pgtype.ByteaOID, rows, size, func(b []byte, r *R) []byte { return append(b, of(r)...) })
}

func wireStrings[R any](element uint32, rows []R, of func(*R) string) wire {
	return arrayOf(element, rows, func(r *R) int { return len(of(r)) }, func(b []byte, r *R) []byte { return append(b, of(r)...) })
}

// wireFixed is for elements of a fixed size.
func wireFixed[R any, N int64 | int32 | uint32 | bool](element uint32, rows []R, of func(*R) N) wire {
	var n N
	size := binary.Size(n)
	return arrayOf(element, rows, func(*R) int { return size }, func(b []byte, r *R) []byte {
		switch v := any(of(r)).(type) {
		case int64:
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		case int32:
			b = binary.BigEndian.AppendUint32(b, uint32(v))
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case bool:
			b = append(b, 0)
			if v {
				b[len(b)-1] = 1
			}
		}
		return b
	})
}

// same is the column of rows that are the elements themselves.
func same[R any](r *R) R { return *r }

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
	return value.(wire)(buf), nil
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
