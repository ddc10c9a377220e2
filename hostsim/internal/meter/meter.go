// Package meter bounds the work of a WebAssembly module by rewriting it. The module gets a counter, an exported mutable
// i64 global. Every function entry and every iteration of a loop subtracts one unit from it, and every bulk memory or
// table instruction one unit per 64 bytes or entries. When the counter is below zero the module executes unreachable.
// Code between two checks has no loops, so every call ends.
//
// The same call uses the same number of units on every machine.
//
// Tables get a maximum, because engines limit memory but not them.
//
// Function, type and global indexes of the module do not change, because all additions are at the end. Debug sections
// are dropped, because code moves.
package meter

import (
	"errors"
	"fmt"
	"strings"
)

// Global is the export name of the counter.
const Global = "oncegate_hostsim_work"

// bulkUnit is how many bytes (or table entries) of a bulk instruction cost a unit,
// as a shift.
const bulkShift = 6

var header = []byte{0, 'a', 's', 'm', 1, 0, 0, 0}

// Section ids, in the order of the sections in a module.
const (
	secCustom    = 0
	secType      = 1
	secImport    = 2
	secFunction  = 3
	secTable     = 4
	secGlobal    = 6
	secExport    = 7
	secCode      = 10
	secDataCount = 12
)

// rank orders section ids: the data count section comes before the code section, the tag section before the globals.
func rank(id byte) int {
	switch id {
	case secDataCount:
		return 2*secCode - 1
	case 13: // tags
		return 2*secGlobal - 1
	}
	return 2 * int(id)
}

type section struct {
	id   byte
	body []byte
}

// Instrument returns the rewritten module, whose counter starts with the given units (at most 1<<62). It returns an
// error for a module that is not well-formed and for unknown instructions (exceptions, threads). The result may still
// be invalid; the engine checks that.
func Instrument(module []byte, units uint64) ([]byte, error) {
	r := &reader{b: module}
	if string(r.take(len(header))) != string(header) || r.err != nil {
		return nil, errors.New("not a WebAssembly 1.0 module")
	}
	var sections []section
	for r.err == nil && len(r.b) > 0 {
		id := r.byte()
		body := r.take(int(r.u32()))
		if r.err != nil {
			break
		}
		if id == secCustom {
			cr := &reader{b: body}
			if name := cr.name(); cr.err != nil || strings.HasPrefix(name, ".debug_") {
				continue
			}
		}
		sections = append(sections, section{id, body})
	}
	if r.err != nil {
		return nil, fmt.Errorf("malformed module: %w", r.err)
	}
	m, err := scan(sections)
	if err != nil {
		return nil, fmt.Errorf("malformed module: %w", err)
	}
	m.units = int64(units)
	sections = m.ensure(sections)
	out := append([]byte{}, header...)
	for _, s := range sections {
		body, err := m.rewrite(s)
		if err != nil {
			return nil, fmt.Errorf("malformed module: section %d: %w", s.id, err)
		}
		out = append(out, s.id)
		out = appendU32(out, uint32(len(body)))
		out = append(out, body...)
	}
	return out, nil
}

// module is what the rewriting needs to know.
type module struct {
	types, importedFuncs, funcs     uint32
	importedGlobals, definedGlobals uint32
	units                           int64
}

func (m *module) counter() uint32 { return m.importedGlobals + m.definedGlobals }
func (m *module) charge() uint32  { return m.importedFuncs + m.funcs }

func scan(sections []section) (*module, error) {
	m := &module{}
	seen := map[byte]bool{}
	for _, s := range sections {
		if s.id != secCustom && seen[s.id] {
			return nil, fmt.Errorf("section %d stands twice", s.id)
		}
		seen[s.id] = true
		r := &reader{b: s.body}
		switch s.id {
		case secType:
			m.types = r.u32()
		case secImport:
			m.scanImports(r)
		case secFunction:
			m.funcs = r.u32()
		case secGlobal:
			m.definedGlobals = r.u32()
		case secExport:
			for n := r.u32(); n > 0 && r.err == nil; n-- {
				if r.name() == Global {
					return nil, fmt.Errorf("the export name %q is reserved", Global)
				}
				r.byte()
				r.u32()
			}
		}
		if r.err != nil {
			return nil, fmt.Errorf("section %d: %w", s.id, r.err)
		}
	}
	return m, nil
}

func (m *module) scanImports(r *reader) {
	limits := func() {
		flags := r.u32()
		r.u64()
		if flags&1 != 0 {
			r.u64()
		}
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.name()
		r.name()
		switch kind := r.byte(); kind {
		case 0:
			m.importedFuncs++
			r.u32()
		case 1:
			r.byte()
			limits()
		case 2:
			limits()
		case 3:
			m.importedGlobals++
			r.byte()
			r.byte()
		case 4:
			r.byte()
			r.u32()
		default:
			r.fail("import of unknown kind %d", kind)
		}
	}
}

// ensure adds the sections that rewriting appends to, where they are missing.
func (m *module) ensure(sections []section) []section {
	for _, id := range []byte{secType, secFunction, secGlobal, secExport, secCode} {
		at, have := len(sections), false
		for i, s := range sections {
			if s.id == secCustom {
				continue
			}
			if s.id == id {
				have = true
				break
			}
			if rank(s.id) > rank(id) {
				at = i
				break
			}
		}
		if !have {
			sections = append(sections[:at:at], append([]section{{id, []byte{0}}}, sections[at:]...)...)
		}
	}
	return sections
}

// rewrite returns a section's new body.
func (m *module) rewrite(s section) ([]byte, error) {
	r := &reader{b: s.body}
	// addOne copies a vector with one more element at its end.
	addOne := func(element []byte) ([]byte, error) {
		n := r.u32()
		if n == 1<<32-1 {
			r.fail("too many elements")
		}
		out := appendU32(nil, n+1)
		out = append(out, r.b...)
		return append(out, element...), r.err
	}
	switch s.id {
	case secType:
		return addOne([]byte{0x60, 1, 0x7f, 1, 0x7f}) // (i32) -> i32
	case secFunction:
		return addOne(appendU32(nil, m.types))
	case secGlobal:
		return addOne(append(appendS64([]byte{0x7e, 1, opI64Const}, m.units), opEnd)) // mut i64
	case secTable:
		return limitTables(r)
	case secExport:
		e := appendU32(nil, uint32(len(Global)))
		e = append(e, Global...)
		return addOne(appendU32(append(e, 3), m.counter()))
	case secCode:
		return m.rewriteCode(r)
	}
	return s.body, nil
}

// Tables are host memory that the engine does not limit.
const (
	maxTables     = 16
	maxTableElems = 1 << 20
)

// limitTables gives every table a maximum; table.grow fails beyond it.
func limitTables(r *reader) ([]byte, error) {
	n := r.u32()
	if n > maxTables {
		r.fail("%d tables, at most %d are allowed", n, maxTables)
	}
	out := appendU32(nil, n)
	for range n {
		kind, flags, low, high := r.byte(), r.byte(), r.u32(), uint32(maxTableElems)
		if flags > 1 {
			r.fail("table with unknown limits 0x%02x", flags)
		}
		if flags == 1 {
			high = min(high, r.u32())
		}
		if low > maxTableElems {
			r.fail("table of %d elements, at most %d are allowed", low, maxTableElems)
		}
		if r.err != nil {
			return nil, r.err
		}
		out = appendU32(appendU32(append(out, kind, 1), low), high)
	}
	if len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return out, r.err
}

func (m *module) rewriteCode(r *reader) ([]byte, error) {
	n := r.u32()
	if n != m.funcs {
		r.fail("%d bodies for %d functions", n, m.funcs)
	}
	out := appendU32(nil, n+1)
	var body []byte
	for range n {
		code := r.take(int(r.u32()))
		if r.err != nil {
			return nil, r.err
		}
		var err error
		if body, err = m.rewriteBody(body[:0], code); err != nil {
			return nil, err
		}
		out = appendU32(out, uint32(len(body)))
		out = append(out, body...)
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	charge := m.chargeBody()
	out = appendU32(out, uint32(len(charge)))
	return append(out, charge...), r.err
}

// appendCheck subtracts one unit and checks the counter.
func (m *module) appendCheck(out []byte) []byte {
	out = append(out, 0x23) // global.get
	out = appendU32(out, m.counter())
	out = append(out, 0x42, 1, 0x7d, 0x24) // i64.const 1, i64.sub, global.set
	out = appendU32(out, m.counter())
	return m.appendTrapBelowZero(out)
}

func (m *module) appendTrapBelowZero(out []byte) []byte {
	out = append(out, 0x23) // global.get
	out = appendU32(out, m.counter())
	return append(out, 0x42, 0, 0x53, 0x04, 0x40, 0x00, 0x0b) // i64.const 0, i64.lt_s, if, unreachable, end
}

// chargeBody is the function that subtracts the units for a bulk instruction of n bytes and returns n.
func (m *module) chargeBody() []byte {
	out := []byte{0, 0x23} // no locals; global.get
	out = appendU32(out, m.counter())
	out = append(out, 0x20, 0, 0xad, 0x42, bulkShift, 0x88, 0x7d, 0x24) // local.get 0, extend_u, const, shr_u, sub, global.set
	out = appendU32(out, m.counter())
	out = m.appendTrapBelowZero(out)
	return append(out, 0x20, 0, 0x0b)
}
