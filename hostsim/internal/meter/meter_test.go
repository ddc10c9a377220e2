package meter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// instance instruments and instantiates a module.
func instance(t *testing.T, module []byte, units uint64) (api.Module, api.MutableGlobal) {
	t.Helper()
	out, err := Instrument(module, units)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	r := wazero.NewRuntime(ctx)
	t.Cleanup(func() { _ = r.Close(ctx) })
	m, err := r.Instantiate(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	return m, m.ExportedGlobal(Global).(api.MutableGlobal)
}

// code wraps function bodies of type (i32) -> i32 into a module that exports them as
// f0, f1, ...
func code(bodies ...string) []byte {
	vec := func(items ...string) string {
		return string(appendU32(nil, uint32(len(items)))) + strings.Join(items, "")
	}
	sized := func(s string) string { return string(appendU32(nil, uint32(len(s)))) + s }
	sec := func(id byte, s string) string { return string(id) + sized(s) }
	var funcs, exports, codes []string
	for i, b := range bodies {
		funcs = append(funcs, "\x00")
		exports = append(exports, sized("f"+string(rune('0'+i)))+"\x00"+string(rune(i)))
		codes = append(codes, sized(b+"\x0b"))
	}
	return []byte(string(header) + sec(1, vec("\x60\x01\x7f\x01\x7f")) + sec(3, vec(funcs...)) + sec(5, vec("\x00\x01")) + sec(7, vec(exports...)) + sec(10, vec(codes...)))
}

const (
	sum  = "\x01\x01\x7f" + "\x03\x40" + "\x20\x01\x20\x00\x6a\x21\x01" + "\x20\x00\x41\x01\x6b\x22\x00" + "\x0d\x00\x0b" + "\x20\x01"
	fill = "\x00" + "\x41\x00\x41\x01\x20\x00\xfc\x0b\x00" + "\x20\x00"
	self = "\x00" + "\x20\x00\x04\x7f" + "\x20\x00\x41\x01\x6b\x10\x02" + "\x05\x41\x00\x0b" // if n: f2(n-1) else 0
)

func TestWorkCostsUnits(t *testing.T) {
	m, units := instance(t, code(sum, fill, self), 1000)
	for _, c := range []struct {
		f      string
		arg    uint64
		result uint64
		cost   uint64
	}{
		{"f0", 1, 1, 2},    // the entry and one round
		{"f0", 10, 55, 11}, // ten rounds
		{"f1", 0, 0, 1},    // nothing to fill
		{"f1", 63, 63, 1},  // less than a unit
		{"f1", 6400, 6400, 101},
		{"f2", 0, 0, 1},
		{"f2", 9, 0, 10}, // ten entries
	} {
		units.Set(1000)
		got, err := m.ExportedFunction(c.f).Call(context.Background(), c.arg)
		if err != nil {
			t.Fatalf("%s(%d): %v", c.f, c.arg, err)
		}
		if got[0] != c.result || 1000-units.Get() != c.cost {
			t.Errorf("%s(%d) = %d for %d units, want %d for %d", c.f, c.arg, got[0], 1000-units.Get(), c.result, c.cost)
		}
	}
}

func TestModuleStopsAtItsLimit(t *testing.T) {
	m, units := instance(t, code(sum, fill, self), 1000)
	call := func(f string, arg uint64) error {
		_, err := m.ExportedFunction(f).Call(context.Background(), arg)
		return err
	}
	if err := call("f0", 999); err != nil { // exactly 1000 units
		t.Errorf("at the initial limit: %v", err)
	}
	if err := call("f0", 1); err == nil || !strings.Contains(err.Error(), "unreachable") || int64(units.Get()) >= 0 {
		t.Errorf("beyond it: error %v, %d units left", err, int64(units.Get()))
	}
	for f, most := range map[string]uint64{"f0": 9, "f1": 9*64 + 63, "f2": 9} {
		units.Set(10)
		if err := call(f, most); err != nil {
			t.Errorf("%s(%d) with 10 units: %v", f, most, err)
		}
		units.Set(10)
		if err := call(f, most+1); err == nil {
			t.Errorf("%s(%d) with 10 units ended well", f, most+1)
		}
	}
}

// Indexes, names and custom sections survive; debug sections go.
func TestIndexesAndNamesSurvive(t *testing.T) {
	custom := func(name string) string {
		return "\x00" + string(rune(len(name)+2)) + string(rune(len(name))) + name + "!"
	}
	in := append(code(sum), custom(".debug_line")+custom("producers")...)
	out, err := Instrument(in, 5)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), ".debug_") || !strings.Contains(string(out), "producers!") {
		t.Error("custom sections were not treated as they should be")
	}
	// A module without anything gets a counter, too.
	m, units := instance(t, header, 7)
	if units.Get() != 7 || m == nil {
		t.Errorf("an empty module has %d units", units.Get())
	}
}

func TestMalformedModulesAreRefused(t *testing.T) {
	good := code(sum, fill)
	for name, c := range map[string]struct {
		in   string
		want string
	}{
		"empty":              {"", "not a WebAssembly"},
		"version 2":          {"\x00asm\x02\x00\x00\x00", "not a WebAssembly"},
		"section too long":   {string(header) + "\x01\x7f\x00", "unexpected end"},
		"endless integer":    {string(header) + "\x01\xff\xff\xff\xff\xff\xff", "integer too large"},
		"twice":              {string(header) + "\x01\x01\x00\x01\x01\x00", "stands twice"},
		"bodies missing":     {string(header) + "\x03\x02\x01\x00\x0a\x01\x00", "0 bodies for 1 functions"},
		"no end":             {string(header) + "\x03\x02\x01\x00\x0a\x04\x01\x02\x00\x01", "unexpected end"},
		"after the end":      {string(header) + "\x03\x02\x01\x00\x0a\x05\x01\x03\x00\x0b\x0b", "after a function's end"},
		"unknown":            {string(header) + "\x03\x02\x01\x00\x0a\x05\x01\x03\x00\xff\x0b", "unknown instruction 0xff"},
		"exceptions":         {string(header) + "\x03\x02\x01\x00\x0a\x06\x01\x04\x00\x08\x00\x0b", "unknown instruction 0x08"},
		"threads":            {string(header) + "\x03\x02\x01\x00\x0a\x07\x01\x05\x00\xfe\x00\x00\x0b", "unknown instruction 0xfe"},
		"unknown misc":       {string(header) + "\x03\x02\x01\x00\x0a\x06\x01\x04\x00\xfc\x12\x0b", "unknown instruction 0xfc 18"},
		"unknown vector":     {string(header) + "\x03\x02\x01\x00\x0a\x07\x01\x05\x00\xfd\xff\x03\x0b", "unknown instruction 0xfd 511"},
		"bytes after bodies": {string(header) + "\x0a\x02\x00\x00", "1 bytes too many"},
		"import kind":        {string(header) + "\x02\x04\x01\x00\x00\x09", "import of unknown kind 9"},
		"reserved name":      {string(header) + "\x07\x19\x01\x15oncegate_hostsim_work\x02\x00", "is reserved"},
		"many tables":        {string(header) + "\x04\x01\x11", "17 tables, at most 16"},
		"large table":        {string(header) + "\x04\x06\x01\x70\x00\x81\x80\x40", "table of 1048577 elements"},
		"odd table":          {string(header) + "\x04\x04\x01\x70\x04\x00", "unknown limits 0x04"},
		"after the tables":   {string(header) + "\x04\x05\x01\x70\x00\x01\x00", "1 bytes too many"},
		"truncated":          {string(good[:len(good)-3]), "unexpected end"},
	} {
		if _, err := Instrument([]byte(c.in), 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q in it", name, err, c.want)
		}
	}
}

// Tables keep their own maximum, if it is a small one.
func TestTablesGetAMaximum(t *testing.T) {
	for in, want := range map[string]string{
		"\x00\x05":                 "\x01\x05\x80\x80\x40",
		"\x01\x05\x06":             "\x01\x05\x06",
		"\x01\x05\xff\xff\xff\x7f": "\x01\x05\x80\x80\x40",
	} {
		out, err := Instrument([]byte(string(header)+"\x04"+string(rune(len(in)+2))+"\x01\x70"+in), 1)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), "\x01\x70"+want) {
			t.Errorf("table %q became %q", in, out)
		}
	}
}

// FuzzInstrument: whatever comes, the rewriter answers; what the engine accepts before,
// it accepts after.
func FuzzInstrument(f *testing.F) {
	f.Add(code(sum, fill, self))
	f.Add(header)
	for _, name := range []string{"script", "sdk"} {
		if b, err := os.ReadFile(filepath.Join("..", "..", "..", "build", "guests", name+".wasm")); err == nil && len(b) < 60_000 {
			f.Add(b)
		}
	}
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithMemoryLimitPages(16))
	f.Cleanup(func() { _ = r.Close(ctx) })
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := Instrument(b, 1000)
		before, errBefore := r.CompileModule(ctx, b)
		if errBefore == nil {
			defer before.Close(ctx)
		}
		if err != nil {
			return
		}
		after, errAfter := r.CompileModule(ctx, out)
		if errAfter == nil {
			after.Close(ctx)
		}
		if errBefore == nil && errAfter != nil {
			t.Fatalf("the engine accepts the module but not the rewritten one: %v", errAfter)
		}
	})
}
