package hostsim_test

import (
	"strings"

	"github.com/oncegate/oncegate/hostsim"
)

// wasmModule is a module made by hand, for what no compiler would produce.
type wasmModule struct {
	imports  []wasmImport
	funcs    []wasmFunc
	noMemory bool
	pages    uint32
	data     string // at address 0
	start    string // the function of the start section
	// importMemory imports memory instead of defining it.
	importMemory bool
}

type wasmImport struct{ name, params, results string }

// wasmFunc is a function; its code gets the indexes of all functions by name. A name
// that begins with a dot is not exported.
type wasmFunc struct {
	name, params, results string
	locals                int // i32
	code                  func(fn func(string) []byte) []byte
}

const tI32, tI64 = "\x7f", "\x7e"

// body makes code that ignores the functions around it.
func body(b ...byte) func(func(string) []byte) []byte {
	return func(func(string) []byte) []byte { return b }
}

func leb(v uint32) []byte {
	var out []byte
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

// i32const pushes a constant (signed LEB128).
func i32const(v uint32) []byte {
	out := []byte{0x41}
	for n := int32(v); ; n >>= 7 {
		c := byte(n & 0x7f)
		if n>>7 == 0 && c&0x40 == 0 || n>>7 == -1 && c&0x40 != 0 {
			return append(out, c)
		}
		out = append(out, c|0x80)
	}
}

func i64const(v uint32) []byte { return append([]byte{0x42}, i32const(v)[1:]...) }

func cat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func section(id byte, body []byte) []byte { return cat([]byte{id}, leb(uint32(len(body))), body) }

func vec(items [][]byte) []byte { return cat(leb(uint32(len(items))), cat(items...)) }

func str(s string) []byte { return cat(leb(uint32(len(s))), []byte(s)) }

// ready adds what every Proxy-Wasm module exports, where it is not there.
func (m *wasmModule) ready() *wasmModule {
	have := map[string]bool{}
	abi := false
	for _, f := range m.funcs {
		have[f.name] = true
		abi = abi || strings.HasPrefix(f.name, "proxy_abi_version")
	}
	if !abi {
		m.funcs = append(m.funcs, wasmFunc{name: "proxy_abi_version_0_2_0", code: body()})
	}
	if !have["proxy_on_memory_allocate"] && !have["malloc"] {
		// Everything is put at the same place: the tests look at one value at a time.
		m.funcs = append(m.funcs, wasmFunc{name: "proxy_on_memory_allocate", params: tI32, results: tI32, code: body(i32const(32768)...)})
	}
	return m
}

func (m *wasmModule) bytes() []byte {
	var types, imports, funcs, exports, codes [][]byte
	addType := func(params, results string) []byte {
		types = append(types, cat([]byte{0x60}, str(params), str(results)))
		return leb(uint32(len(types) - 1))
	}
	index := map[string]uint32{}
	for _, i := range m.imports {
		module, name, _ := strings.Cut(i.name, ".")
		index[i.name] = uint32(len(index))
		imports = append(imports, cat(str(module), str(name), []byte{0}, addType(i.params, i.results)))
	}
	if m.importMemory {
		imports = append(imports, cat(str("env"), str("memory"), []byte{2, 0, 1}))
	}
	for _, f := range m.funcs {
		index[f.name] = uint32(len(index))
	}
	call := func(name string) []byte {
		i, ok := index[name]
		if !ok {
			panic("no function " + name)
		}
		return append([]byte{0x10}, leb(i)...)
	}
	for _, f := range m.funcs {
		funcs = append(funcs, addType(f.params, f.results))
		if f.name[0] != '.' {
			exports = append(exports, cat(str(f.name), []byte{0}, leb(index[f.name])))
		}
		locals := []byte{0}
		if f.locals > 0 {
			locals = cat([]byte{1}, leb(uint32(f.locals)), []byte(tI32))
		}
		code := cat(locals, f.code(call), []byte{0x0b})
		codes = append(codes, cat(leb(uint32(len(code))), code))
	}
	out := append([]byte{}, "\x00asm\x01\x00\x00\x00"...)
	out = append(out, section(1, vec(types))...)
	if len(imports) > 0 {
		out = append(out, section(2, vec(imports))...)
	}
	out = append(out, section(3, vec(funcs))...)
	if !m.noMemory && !m.importMemory {
		out = append(out, section(5, cat([]byte{1, 0}, leb(max(m.pages, 1))))...)
	}
	if !m.noMemory {
		exports = append(exports, cat(str("memory"), []byte{2, 0}))
	}
	out = append(out, section(7, vec(exports))...)
	if m.start != "" {
		out = append(out, section(8, leb(index[m.start]))...)
	}
	out = append(out, section(10, vec(codes))...)
	if m.data != "" {
		out = append(out, section(11, cat([]byte{1, 0}, i32const(0), []byte{0x0b}, str(m.data)))...)
	}
	return out
}

func (m *wasmModule) source() hostsim.Source { return hostsim.Wasm(m.ready().bytes()) }

// offered is an import of a host function with its right type.
func offered(name string) wasmImport {
	t, ok := hostsim.HostFunctionTypes()[name]
	if !ok {
		panic("not offered: " + name)
	}
	return wasmImport{name, t[0], t[1]}
}

// logText is code that logs so many bytes from address 0 on.
func logText(fn func(string) []byte, address, size uint32) []byte {
	return cat(i32const(2), i32const(address), i32const(size), fn("env.proxy_log"), []byte{0x1a})
}

var loopForever = []byte{0x03, 0x40, 0x0c, 0, 0x0b} // loop; br 0; end
