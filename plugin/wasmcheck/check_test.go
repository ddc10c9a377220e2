package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The parts of the binary format that these modules need.
const (
	kindFunc   = 0x00
	kindMemory = 0x02
	kindGlobal = 0x03
)

type imp struct {
	module, name string
	kind         byte
	sig          string // for functions: parameters, '>' and results; i is an i32, I an i64
}

type testModule struct {
	imports  []imp
	exports  []string // functions: allocators return what they get, others are an empty () -> ()
	noMemory bool
	pad      int // bytes of a custom section
}

// uleb encodes n as an unsigned LEB128 number.
func uleb(n int) []byte {
	var b []byte
	for {
		c := byte(n & 0x7f)
		n >>= 7
		if n == 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func name(s string) []byte { return append(uleb(len(s)), s...) }

func section(id byte, count int, items []byte) []byte {
	body := append(uleb(count), items...)
	return append(append([]byte{id}, uleb(len(body))...), body...)
}

func types(letters string) []byte {
	codes := map[rune]byte{'i': 0x7f, 'I': 0x7e, 'f': 0x7d, 'F': 0x7c}
	b := uleb(len(letters))
	for _, l := range letters {
		b = append(b, codes[l])
	}
	return b
}

// encode writes the module: type 0 is () -> (), type 1 that of an allocator, then one type an imported function.
func (m testModule) encode() []byte {
	typeItems := append(append([]byte{0x60, 0, 0, 0x60}, types("i")...), types("i")...)
	typeCount, funcImports := 2, 0
	var importItems []byte
	for _, im := range m.imports {
		importItems = append(importItems, name(im.module)...)
		importItems = append(importItems, name(im.name)...)
		importItems = append(importItems, im.kind)
		switch im.kind {
		case kindFunc:
			params, results, _ := strings.Cut(im.sig, ">")
			typeItems = append(typeItems, 0x60)
			typeItems = append(typeItems, types(params)...)
			typeItems = append(typeItems, types(results)...)
			importItems = append(importItems, uleb(typeCount)...)
			typeCount++
			funcImports++
		case kindMemory:
			importItems = append(importItems, 0x00, 1) // at least one page
		case kindGlobal:
			importItems = append(importItems, 0x7f, 0x00) // an immutable i32
		}
	}
	var funcs, exports, bodies []byte
	exportCount := 0
	for i, e := range m.exports {
		exports = append(exports, name(e)...)
		exports = append(exports, kindFunc)
		exports = append(exports, uleb(funcImports+i)...)
		if e == "malloc" || e == "proxy_on_memory_allocate" {
			funcs = append(funcs, 1)
			bodies = append(bodies, 4, 0, 0x20, 0, 0x0b) // no locals, the parameter, end
		} else {
			funcs = append(funcs, 0)
			bodies = append(bodies, 2, 0, 0x0b) // no locals, end
		}
		exportCount++
	}
	if !m.noMemory {
		exports = append(exports, name("memory")...)
		exports = append(exports, kindMemory, 0)
		exportCount++
	}

	out := []byte{0x00, 'a', 's', 'm', 1, 0, 0, 0}
	out = append(out, section(1, typeCount, typeItems)...)
	out = append(out, section(2, len(m.imports), importItems)...)
	out = append(out, section(3, len(m.exports), funcs)...)
	if !m.noMemory {
		out = append(out, section(5, 1, []byte{0x00, 1})...)
	}
	out = append(out, section(7, exportCount, exports)...)
	out = append(out, section(10, len(m.exports), bodies)...)
	if m.pad > 0 {
		custom := append(name("pad"), make([]byte, m.pad)...)
		out = append(append(append(out, 0), uleb(len(custom))...), custom...)
	}
	return out
}

var goodExports = []string{"_initialize", "proxy_abi_version_0_2_0", "proxy_on_memory_allocate"}

func withExports(more ...string) []string { return append(append([]string{}, goodExports...), more...) }

func TestBadModulesAreNamed(t *testing.T) {
	tests := []struct {
		name   string
		module testModule
		rules  Rules
		want   []string // parts of the error; none: it passes
	}{
		{name: "nothing imported", module: testModule{exports: goodExports}},
		{
			name: "allowed imports",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "proxy_log", sig: "iii>i"},
				{module: "env", name: "proxy_increment_metric", sig: "iI>i"},
				{module: "wasi_snapshot_preview1", name: "fd_write", sig: "iiii>i"},
				{module: "wasi_snapshot_preview1", name: "proc_exit", sig: "i>"},
			}},
		},
		{
			name: "call of a later ABI",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "proxy_get_log_level", sig: "i>i"},
			}},
			want: []string{"imports env.proxy_get_log_level, which came with ABI 0.2.1"},
		},
		{
			name: "call of an earlier ABI",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "proxy_continue_request", sig: ">i"},
			}},
			want: []string{"imports env.proxy_continue_request"},
		},
		{
			name: "WASI functions Envoy lacks",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "wasi_snapshot_preview1", name: "sock_accept", sig: "iii>i"},
				{module: "wasi_snapshot_preview1", name: "fd_readdir", sig: "iiiIi>i"},
			}},
			want: []string{"imports wasi_snapshot_preview1.fd_readdir", "imports wasi_snapshot_preview1.sock_accept"},
		},
		{
			name: "right name in the wrong module",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "fd_write", sig: "iiii>i"},
				{module: "gojs", name: "proxy_log", sig: "iii>i"},
			}},
			want: []string{"imports gojs.proxy_log", "imports env.fd_write"},
		},
		{
			name: "wrong types",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "proxy_record_metric", sig: "ii>i"},
			}},
			want: []string{"imports env.proxy_record_metric with a wrong type"},
		},
		{
			name: "imported memory",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "memory", kind: kindMemory},
			}, noMemory: true},
			want: []string{"imports the memory env.memory", "exports no memory"},
		},
		{
			name: "imported global",
			module: testModule{exports: goodExports, imports: []imp{
				{module: "env", name: "__stack_pointer", kind: kindGlobal},
			}},
			want: []string{`"__stack_pointer" is not exported`},
		},
		{
			name:   "malloc exported",
			module: testModule{exports: withExports("malloc", "free")},
			want:   []string{"exports malloc and free"},
		},
		{
			name:   "a malloc of the module's own",
			module: testModule{exports: withExports("malloc")},
		},
		{
			name:   "malloc exported where that is wanted",
			module: testModule{exports: withExports("malloc", "free")},
			rules:  Rules{AllowMalloc: true},
		},
		{
			name:   "a command, not a reactor",
			module: testModule{exports: []string{"_start", "proxy_abi_version_0_2_0", "proxy_on_memory_allocate"}},
			want:   []string{"does not export _initialize", "exports _start"},
		},
		{
			name:   "not a Proxy-Wasm module",
			module: testModule{exports: []string{"_initialize"}, noMemory: true},
			want: []string{
				"does not export proxy_abi_version_0_2_0", "does not export proxy_on_memory_allocate", "exports no memory",
			},
		},
		{
			name:   "too large",
			module: testModule{exports: goodExports, pad: 600001},
			rules:  Rules{MaxBytes: 600000},
			want:   []string{"bytes, at most 600000 are allowed"},
		},
		{
			name:   "large where any size will do",
			module: testModule{exports: goodExports, pad: 600001},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(t.Context(), tt.module.encode(), tt.rules)
			if len(tt.want) == 0 {
				if err != nil {
					t.Fatalf("Check = %v, want nil", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("Check = nil, want %q", tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Check = %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestCheckSizeLimitIsInclusive(t *testing.T) {
	module := testModule{exports: goodExports}.encode()
	if err := Check(t.Context(), module, Rules{MaxBytes: len(module)}); err != nil {
		t.Errorf("a module of exactly the limit: %v", err)
	}
	if err := Check(t.Context(), module, Rules{MaxBytes: len(module) - 1}); err == nil {
		t.Error("a module one byte over the limit passed")
	}
}

func TestCheckRefusesWhatIsNoModule(t *testing.T) {
	whole := testModule{exports: goodExports}.encode()
	for what, b := range map[string][]byte{
		"empty":     nil,
		"text":      []byte("#!/bin/sh\n"),
		"truncated": whole[:len(whole)-3],
	} {
		if err := Check(t.Context(), b, Rules{}); err == nil || !strings.Contains(err.Error(), "is not a valid module") {
			t.Errorf("%s: Check = %v, want it refused as no module", what, err)
		}
	}
}

func TestCommandChecksAFile(t *testing.T) {
	dir := t.TempDir()
	write := func(file string, m testModule) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, m.encode(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.wasm", testModule{exports: goodExports})
	bad := write("bad.wasm", testModule{exports: withExports("malloc", "free", "_start")})

	tests := []struct {
		name   string
		args   []string
		code   int
		stderr []string
	}{
		{"good", []string{good}, 0, nil},
		{"bad after good", []string{good, bad}, 1, []string{bad + ": exports _start", bad + ": exports malloc"}},
		{"malloc allowed, the rest is not", []string{"--allow-malloc", bad}, 1, []string{"exports _start"}},
		{"too large", []string{"--max-bytes", "10", good}, 1, []string{"at most 10 are allowed"}},
		{"no file", nil, 2, []string{"no file given"}},
		{"no such file", []string{filepath.Join(dir, "none.wasm")}, 2, []string{"none.wasm"}},
		{"bad flag", []string{"--max-bytes", "many", good}, 2, []string{`"many"`, "max-bytes"}},
		{"negative size", []string{"--max-bytes", "-1", good}, 2, []string{"--max-bytes is -1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(t.Context(), tt.args, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if len(tt.stderr) == 0 && stderr.Len() > 0 {
				t.Errorf("stderr is %q, want nothing", stderr.String())
			}
			for _, want := range tt.stderr {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr is %q, want it to contain %q", stderr.String(), want)
				}
			}
		})
	}
}
