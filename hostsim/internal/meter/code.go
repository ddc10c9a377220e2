package meter

import (
	"errors"
	"fmt"
)

// Opcodes that the rewriting has to know.
const (
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opEnd          = 0x0b
	opBrTable      = 0x0e
	opCall         = 0x10
	opCallIndirect = 0x11
	opSelectT      = 0x1c
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opRefNull      = 0xd0
	opRefFunc      = 0xd2
	opMisc         = 0xfc
	opVector       = 0xfd
)

// rewriteBody appends a function body with checks at its entry and at the head of
// each loop, and with the price before each bulk instruction.
func (m *module) rewriteBody(out, code []byte) ([]byte, error) {
	r := &reader{b: code}
	rest := func() int { return len(code) - len(r.b) }
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.u32()
		r.byte()
	}
	if r.err != nil {
		return nil, r.err
	}
	out = append(out, code[:rest()]...)
	out = m.appendCheck(out)
	for depth := 1; depth > 0; {
		start := rest()
		op := r.byte()
		bulk := false
		switch op {
		case opBlock, opLoop, opIf:
			depth++
			r.skipLEB()
		case opEnd:
			depth--
		default:
			bulk = r.immediates(op)
		}
		if r.err != nil {
			return nil, r.err
		}
		if bulk {
			out = append(out, opCall)
			out = appendU32(out, m.charge())
		}
		out = append(out, code[start:rest()]...)
		if op == opLoop {
			out = m.appendCheck(out)
		}
	}
	if len(r.b) > 0 {
		return nil, fmt.Errorf("%d bytes after a function's end", len(r.b))
	}
	return out, nil
}

// immediates skips the operands that follow an opcode. It reports whether it is a bulk instruction: one whose work
// depends on a length, the topmost value of the stack.
func (r *reader) immediates(op byte) (bulk bool) {
	switch {
	case op <= 0x01, op == 0x05, op == 0x0f, op == 0x1a, op == 0x1b, op >= 0x45 && op <= 0xc4, op == 0xd1:
	case op == 0x0c, op == 0x0d, op == opCall, op == 0x12, op >= 0x20 && op <= 0x26, op == 0x3f, op == 0x40, op == opRefFunc:
		r.skipLEB()
	case op == opCallIndirect, op == 0x13:
		r.skipLEB()
		r.skipLEB()
	case op == opBrTable:
		for n := r.u32(); n > 0 && r.err == nil; n-- {
			r.skipLEB()
		}
		r.skipLEB()
	case op == opSelectT:
		r.take(int(r.u32()))
	case op >= 0x28 && op <= 0x3e:
		r.memarg()
	case op == opI32Const, op == opI64Const, op == opRefNull:
		r.skipLEB()
	case op == opF32Const:
		r.take(4)
	case op == opF64Const:
		r.take(8)
	case op == opMisc:
		return r.misc()
	case op == opVector:
		r.vector()
	default:
		r.fail("unknown instruction 0x%02x", op)
	}
	return false
}

func (r *reader) memarg() {
	if align := r.u32(); align&0x40 != 0 {
		r.skipLEB() // a memory index
	}
	r.skipLEB()
}

func (r *reader) misc() (bulk bool) {
	switch sub := r.u32(); {
	case sub <= 7: // saturating conversions
	case sub == 8, sub == 10, sub == 12, sub == 14: // memory.init, memory.copy, table.init, table.copy
		r.skipLEB()
		r.skipLEB()
		return true
	case sub == 11, sub == 15, sub == 17: // memory.fill, table.grow, table.fill
		r.skipLEB()
		return true
	case sub == 9, sub == 13, sub == 16: // data.drop, elem.drop, table.size
		r.skipLEB()
	default:
		r.fail("unknown instruction 0xfc %d", sub)
	}
	return false
}

func (r *reader) vector() {
	switch sub := r.u32(); {
	case sub <= 11, sub == 92, sub == 93:
		r.memarg()
	case sub == 12, sub == 13: // v128.const, i8x16.shuffle
		r.take(16)
	case sub >= 21 && sub <= 34: // lanes
		r.take(1)
	case sub >= 84 && sub <= 91:
		r.memarg()
		r.take(1)
	case sub <= 275:
	default:
		r.fail("unknown instruction 0xfd %d", sub)
	}
}

// reader reads a module. After the first error every read returns zero.
type reader struct {
	b   []byte
	err error
}

var errShort = errors.New("unexpected end")

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.b = nil
	}
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		if r.err == nil {
			r.err = errShort
		}
		r.b = nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uleb(bits int) uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if left := bits - shift; left < 7 && (left <= 0 || c>>left != 0) {
			r.fail("integer too large")
			return 0
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
}

func (r *reader) u32() uint32 { return uint32(r.uleb(32)) }
func (r *reader) u64() uint64 { return r.uleb(64) }

// skipLEB skips an integer of at most 64 bits, signed or not.
func (r *reader) skipLEB() {
	for i := 0; ; i++ {
		if c := r.byte(); c < 0x80 || r.err != nil {
			return
		}
		if i == 9 {
			r.fail("integer too long")
			return
		}
	}
}

func (r *reader) name() string { return string(r.take(int(r.u32()))) }

func appendU32(out []byte, v uint32) []byte {
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

func appendS64(out []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(out, c)
		}
		out = append(out, c|0x80)
	}
}
