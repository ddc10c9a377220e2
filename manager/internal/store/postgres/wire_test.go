package postgres

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// The server reads the arrays as it reads those that the driver encodes.
func TestWires(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, c := range []struct {
		name   string
		values any
		wire   wire
	}{
		{"bytea[]", [][]byte{}, wireBytes([][]byte{}, same)},
		{"bytea[]", [][]byte{{}, nil, {0, 255}, bytes.Repeat([]byte{7}, 300)}, wireBytes([][]byte{{}, nil, {0, 255}, bytes.Repeat([]byte{7}, 300)}, same)},
		{"text[]", []string{"", "ä,{}", `"`}, wireStrings(pgtype.TextOID, []string{"", "ä,{}", `"`}, same)},
		{`"char"[]`, []string{"u", "d"}, wireStrings(pgtype.QCharOID, []string{"u", "d"}, same)},
		{"xid[]", []uint32{0, 1 << 31}, wireFixed(pgtype.XIDOID, []uint32{0, 1 << 31}, same)},
		{"integer[]", []int32{-1, 0, 1 << 30}, wireFixed(pgtype.Int4OID, []int32{-1, 0, 1 << 30}, same)},
		{"bytea[]", [][]byte{{}, {0, 255}}, wireStrings(pgtype.ByteaOID, []string{"", "\x00\xff"}, same)},
		{"bigint[]", []int64{-1, 0, 1 << 40}, wireFixed(pgtype.Int8OID, []int64{-1, 0, 1 << 40}, same)},
		{"boolean[]", []bool{true, false}, wireFixed(pgtype.BoolOID, []bool{true, false}, same)},
		{"boolean[]", []bool{}, wireFixed(pgtype.BoolOID, []bool{}, same)},
	} {
		var same bool
		if err := conn.QueryRow(t.Context(), `SELECT $1::`+c.name+` = $2::`+c.name, c.wire, c.values).Scan(&same); err != nil || !same {
			t.Errorf("%s %v: the server compares %v, %v", c.name, c.values, same, err)
		}
	}
}
