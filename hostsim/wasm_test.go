package hostsim_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

const callback = "proxy_on_request_headers"

// onRequest is a module whose request callback runs code and continues.
func onRequest(code func(fn func(string) []byte) []byte, imports ...string) *wasmModule {
	m := &wasmModule{funcs: []wasmFunc{{name: callback, params: tI32 + tI32 + tI32, results: tI32, locals: 4,
		code: func(fn func(string) []byte) []byte { return cat(code(fn), i32const(0)) }}}}
	for _, name := range imports {
		m.imports = append(m.imports, offered(name))
	}
	return m
}

// What Envoy would not load is refused, with everything that is wrong named.
func TestUnloadableModuleIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		module []byte
		want   []string
	}{
		"nothing":     {nil, []string{"hostsim: wasm: invalid magic number"}},
		"garbage":     {[]byte("\x00asm\x01\x00\x00\x00\x01\x7f"), []string{"hostsim: wasm: section type: get size of vector: EOF"}},
		"no ABI":      {(&wasmModule{funcs: []wasmFunc{{name: "malloc", params: tI32, results: tI32, code: body(i32const(0)...)}}}).bytes(), []string{"exports no proxy_abi_version_0_2_0"}},
		"old ABI":     {(&wasmModule{funcs: []wasmFunc{{name: "proxy_abi_version_0_1_0", code: body()}}}).ready().bytes(), []string{"made for ABI 0.1.0"}},
		"no memory":   {(&wasmModule{noMemory: true}).ready().bytes(), []string{"exports no memory"}},
		"no malloc":   {(&wasmModule{funcs: []wasmFunc{{name: "proxy_abi_version_0_2_0", code: body()}}}).bytes(), []string{"exports neither malloc nor proxy_on_memory_allocate"}},
		"its memory":  {(&wasmModule{importMemory: true}).ready().bytes(), []string{"imports the memory env.memory"}},
		"wrong types": {(&wasmModule{imports: []wasmImport{{"env.proxy_log", tI32, tI32}}, funcs: []wasmFunc{{name: "proxy_on_tick", code: body()}}}).ready().bytes(), []string{"imports env.proxy_log with a wrong type", "exports proxy_on_tick with a wrong type"}},
		"unknown imports": {(&wasmModule{imports: []wasmImport{{"env.proxy_magic", "", ""}, {"wasi_snapshot_preview1.sock_accept", tI32 + tI32 + tI32, tI32}, {"gojs.x", "", ""}}}).ready().bytes(),
			[]string{"imports env.proxy_magic, which is not offered", "imports wasi_snapshot_preview1.sock_accept, which is not offered", "imports gojs.x, which is not offered"}},
		"a function of ABI 0.2.1": {(&wasmModule{imports: []wasmImport{{"env.proxy_get_log_level", tI32, tI32}}}).ready().bytes(), []string{"which came with ABI 0.2.1"}},
		"too much memory":         {(&wasmModule{pages: 65536}).ready().bytes(), []string{"memory"}},
	} {
		msg := newRig(t, hostsim.Wasm(c.module)).startError(hostsim.Config{})
		if err := hostsim.CheckWasm(t.Context(), c.module); err == nil || err.Error() != msg {
			t.Errorf("%s: CheckWasm says %v, Start %s", name, err, msg)
		}
		for _, w := range c.want {
			if !strings.Contains(msg, w) {
				t.Errorf("%s: error is %q, want %q in it", name, msg, w)
			}
		}
	}
	ok := &wasmModule{imports: []wasmImport{{"env.proxy_get_log_level", tI32, tI32}}, funcs: []wasmFunc{{name: "proxy_abi_version_0_2_1", code: body()}}}
	newRig(t, ok.source()).start(hostsim.Config{})
	if err := hostsim.CheckWasm(t.Context(), ok.bytes()); err != nil {
		t.Errorf("CheckWasm of a module that loads: %v", err)
	}
}

// A directory keeps machine code for later processes, and is made where it is missing.
func TestCodeCacheServesLaterProcesses(t *testing.T) {
	module := (&wasmModule{funcs: []wasmFunc{{name: "proxy_abi_version_0_2_0", code: body()}}}).ready().bytes()
	dir := filepath.Join(t.TempDir(), "new")
	for range 2 {
		source, err := hostsim.CachedWasm(module, dir)
		if err != nil {
			t.Fatal(err)
		}
		newRig(t, source).start(hostsim.Config{})
	}
	kept := 0
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			kept++
		}
		return err
	})
	if err != nil || kept != 1 {
		t.Errorf("the directory keeps %d files: %v", kept, err)
	}
	if _, err := hostsim.CachedWasm(module, os.Args[0]); err == nil {
		t.Error("a file is taken for a directory")
	}
}

// _initialize is called when it is there, _start only when it is not.
func TestInitializeBeforeStart(t *testing.T) {
	say := func(name string, from, size uint32) wasmFunc {
		return wasmFunc{name: name, code: func(fn func(string) []byte) []byte { return logText(fn, from, size) }}
	}
	for _, c := range []struct {
		funcs []wasmFunc
		want  string
	}{
		{[]wasmFunc{say("_initialize", 0, 10), say("_start", 10, 5)}, "initialize"},
		{[]wasmFunc{say("_start", 10, 5)}, "start"},
		{nil, ""},
	} {
		m := &wasmModule{imports: []wasmImport{offered("env.proxy_log")}, funcs: c.funcs, data: "initializestart"}
		r := newRig(t, m.source())
		r.start(hostsim.Config{})
		want(t, "log", strings.Join(r.logs.take("worker-0"), " "), c.want)
	}
}

// Any host call but logging traps during initialisation: from _initialize, from _start,
// from a start section.
func TestInitialisationIsRestricted(t *testing.T) {
	for _, name := range []string{"_initialize", "_start", ".section"} {
		for _, call := range []string{"env.proxy_get_current_time_nanoseconds", "env.proxy_done", "env.proxy_set_tick_period_milliseconds"} {
			f := offered(call)
			m := &wasmModule{imports: []wasmImport{f}, funcs: []wasmFunc{{name: name, code: func(fn func(string) []byte) []byte {
				return cat(i32const(0)[:2*len(f.params)], fn(call), []byte{0x1a})
			}}}}
			if name[0] == '.' {
				m.start = name
			}
			msg := newRig(t, m.source()).startError(hostsim.Config{})
			if !strings.Contains(msg, "canary: initialisation") || !strings.Contains(msg, call+" called while only logging is allowed") {
				t.Errorf("%s from %s: error is %q", call, name, msg)
			}
		}
	}
}

// A command module exits when its main returns, and is dead then.
func TestCommandModuleDies(t *testing.T) {
	m := &wasmModule{imports: []wasmImport{offered("wasi_snapshot_preview1.proc_exit")}, funcs: []wasmFunc{{name: "_start",
		code: func(fn func(string) []byte) []byte {
			return cat(i32const(0), fn("wasi_snapshot_preview1.proc_exit"), []byte{0})
		}}}}
	msg := newRig(t, m.source()).startError(hostsim.Config{})
	if !strings.Contains(msg, "canary: initialisation") {
		t.Errorf("error is %q", msg)
	}
}

// readHeader is code that reads the header named by so many bytes at address 0.
func readHeader(fn func(string) []byte, size uint32) []byte {
	return cat(i32const(0), i32const(0), i32const(size), i32const(1024), i32const(1028), fn("env.proxy_get_header_map_value"))
}

// Values are handed over through malloc when it is exported, else through
// proxy_on_memory_allocate; an empty value needs no memory.
func TestExportedMallocIsPreferred(t *testing.T) {
	alloc := func(name string, from, size uint32) wasmFunc {
		return wasmFunc{name: name, params: tI32, results: tI32, code: func(fn func(string) []byte) []byte {
			return cat(logText(fn, from, size), i32const(32768))
		}}
	}
	for _, c := range []struct {
		funcs      []wasmFunc
		full, none string
	}{
		{[]wasmFunc{alloc("malloc", 64, 6), alloc("proxy_on_memory_allocate", 70, 3)}, "malloc", ""},
		{[]wasmFunc{alloc("proxy_on_memory_allocate", 70, 3)}, "abi", ""},
	} {
		m := onRequest(func(fn func(string) []byte) []byte { return append(readHeader(fn, 1), 0x1a) }, "env.proxy_get_header_map_value", "env.proxy_log")
		m.funcs = append(m.funcs, c.funcs...)
		m.data = "x" + strings.Repeat("\x00", 63) + "mallocabi"
		r := newRig(t, m.source())
		r.start(hostsim.Config{})
		for value, logged := range map[string]string{"some": c.full, "": c.none} {
			s := hostsimtest.Open(t, r.h, 0)
			s.Request(hostsimtest.Get("/", "x", value))
			s.Settle()
			want(t, "allocator used for "+value, strings.Join(r.logs.take("worker-0"), " "), logged)
		}
	}
}

// The allocator may only log; a failing or lying one fails the call, not the host.
func TestAllocatorIsRestricted(t *testing.T) {
	probe := func(allocator func(fn func(string) []byte) []byte, timeout time.Duration) (*rig, *hostsimtest.Stream) {
		m := onRequest(func(fn func(string) []byte) []byte {
			// The status becomes a byte of text: 'a' + status.
			return cat(i32const(2048), readHeader(fn, 1), i32const('a'), []byte{0x6a, 0x3a, 0, 0}, logText(fn, 2048, 1))
		}, "env.proxy_get_header_map_value", "env.proxy_log", "env.proxy_get_current_time_nanoseconds")
		m.funcs = append(m.funcs, wasmFunc{name: "proxy_on_memory_allocate", params: tI32, results: tI32, code: allocator})
		m.data = "x"
		r := newRig(t, m.source())
		r.start(hostsim.Config{CallbackTimeout: timeout})
		s := hostsimtest.Open(t, r.h, 0)
		s.Request(hostsimtest.Get("/", "x", "value"))
		s.Settle()
		return r, s
	}
	for name, c := range map[string]struct {
		allocator []byte
		want      string
	}{
		"answers null":          {i32const(0), "g"}, // InvalidMemoryAccess is 6
		"answers out of bounds": {i32const(0x7fffffff), "g"},
		"answers its last byte": {i32const(65535), "g"},
		"works":                 {i32const(4096), "a"},
	} {
		r, s := probe(body(c.allocator...), 0)
		want(t, name, strings.Join(r.logs.take("worker-0"), " "), c.want)
		want(t, name+": upstream", s.Up.Log(), "headers GET / end")
	}
	r, s := probe(func(fn func(string) []byte) []byte {
		return cat(i32const(0), fn("env.proxy_get_current_time_nanoseconds"), []byte{0x1a}, i32const(4096))
	}, 0)
	want(t, "host call from the allocator", s.Down.Log(), "headers 503 end")
	if traps := r.h.Traps(); len(traps) != 1 || !strings.Contains(traps[0].Err.Error(), "called while only logging is allowed") {
		t.Errorf("traps are %v", traps)
	}
	r, s = probe(body(cat(loopForever, i32const(0))...), 20*time.Millisecond)
	want(t, "allocator that loops", s.Down.Log(), "headers 503 end")
	if traps := r.h.Traps(); len(traps) != 1 || !strings.Contains(traps[0].Err.Error(), "the callback took longer than 20ms") {
		t.Errorf("traps are %v", traps)
	}
}

// A guest that loops is stopped, whatever it does in the loop. So is one that fails. The host continues.
func TestGuestThatLoopsIsStopped(t *testing.T) {
	// local 3 counts; $big is a loop with a body.
	forever := func(inner []byte) []byte { return cat([]byte{0x03, 0x40}, inner, []byte{0x0c, 0, 0x0b}) }
	for name, m := range map[string]*wasmModule{
		"loop": onRequest(func(func(string) []byte) []byte { return loopForever }),
		"recursion without end": func() *wasmModule {
			m := onRequest(func(fn func(string) []byte) []byte { return fn(".f") })
			m.funcs = append(m.funcs, wasmFunc{name: ".f", code: func(fn func(string) []byte) []byte { return fn(".f") }})
			return m
		}(),
		"filling memory": onRequest(func(func(string) []byte) []byte {
			return forever(cat(i32const(0), i32const(1), i32const(65536), []byte{0xfc, 11, 0}))
		}),
		"copying memory": onRequest(func(func(string) []byte) []byte {
			return forever(cat(i32const(0), i32const(1), i32const(65535), []byte{0xfc, 10, 0, 0}))
		}),
		"host calls": onRequest(func(fn func(string) []byte) []byte {
			return forever(cat(i32const(0), i32const(0), i32const(65536), fn("env.proxy_log"), []byte{0x1a}))
		}, "env.proxy_log"),
		"a long list of vectors": onRequest(func(fn func(string) []byte) []byte {
			return forever(cat(i32const(1), i32const(0), i32const(8192), i32const(0), fn("wasi_snapshot_preview1.fd_write"), []byte{0x1a}))
		}, "wasi_snapshot_preview1.fd_write"),
		"growing memory": onRequest(func(func(string) []byte) []byte { return forever(cat(i32const(1), []byte{0x40, 0, 0x1a})) }),
		"unreachable":    onRequest(func(func(string) []byte) []byte { return []byte{0} }),
		"out of bounds":  onRequest(func(func(string) []byte) []byte { return cat(i32const(0xfffffff0), []byte{0x28, 2, 0, 0x1a}) }),
		"division":       onRequest(func(func(string) []byte) []byte { return cat(i32const(1), i32const(0), []byte{0x6d, 0x1a}) }),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, m.source())
			r.start(hostsim.Config{Workers: 2, CallbackTimeout: 20 * time.Millisecond, MemoryLimit: 4 << 20})
			s := hostsimtest.Open(t, r.h, 0)
			s.Request(hostsimtest.Get("/"))
			s.Settle()
			want(t, "downstream", s.Down.Log(), "headers 503 end")
			want(t, "traps", len(r.h.Traps()), 1)
			want(t, "memory of the dead VM", r.h.GuestMemory(0), 0)
		})
	}
	m := &wasmModule{funcs: []wasmFunc{{name: ".forever", code: body(loopForever...)}}, start: ".forever"}
	if msg := newRig(t, m.source()).startError(hostsim.Config{CallbackTimeout: 20 * time.Millisecond}); !strings.Contains(msg, "initialisation") {
		t.Errorf("start section: error is %q", msg)
	}
}

// Memory grows up to the limit and not beyond, and never shrinks.
func TestMemoryGrowsUpToItsLimit(t *testing.T) {
	m := onRequest(func(fn func(string) []byte) []byte {
		grow := func(pages uint32) []byte { return cat(i32const(pages), []byte{0x40, 0}) }
		// Two bytes of text tell whether growing failed: '0' + (result == -1).
		failed := func(at, pages uint32) []byte {
			return cat(i32const(at), grow(pages), i32const(0xffffffff), []byte{0x46}, i32const('0'), []byte{0x6a, 0x3a, 0, 0})
		}
		return cat(failed(100, 15), failed(101, 1), logText(fn, 100, 2))
	}, "env.proxy_log")
	r := newRig(t, m.source())
	r.start(hostsim.Config{MemoryLimit: 1 << 20})
	s := hostsimtest.Open(t, r.h, 0)
	s.Request(hostsimtest.Get("/"))
	r.wantLog("worker-0", "01")
	want(t, "memory", r.h.GuestMemory(0), 1<<20)
}

// Every host function survives every kind of bad pointer and length, and answers what
// the ABI says.
func TestHostFunctionsWithBadArguments(t *testing.T) {
	names := make([]string, 0, 64)
	for name := range hostsim.HostFunctionTypes() {
		if name != "env.proxy_get_log_level" && !strings.HasPrefix(name, "wasi_unstable.") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, value := range []uint32{0xffffffff, 0x80000000, 0x7fffffff, 65536, 65535, 65528, 8, 1, 0} {
		var got []string
		m := onRequest(func(fn func(string) []byte) []byte {
			var code []byte
			for i, name := range names {
				f := offered(name)
				if f.results != "" {
					code = append(code, i32const(uint32(40000+i))...) // where the answer is kept
				}
				for _, p := range f.params {
					if string(p) == tI64 {
						code = append(code, i64const(value)...)
					} else {
						code = append(code, i32const(value)...)
					}
				}
				code = append(code, fn(name)...)
				if f.results != "" {
					code = append(code, i32const('A')...)
					code = append(code, 0x6a, 0x3a, 0, 0) // add; i32.store8
				}
			}
			return cat(code, logText(fn, 40000, uint32(len(names))))
		}, names...)
		r := newRig(t, m.source())
		r.start(hostsim.Config{Clusters: map[string]hostsim.Cluster{"": &hostsimtest.Cluster{}}})
		s := hostsimtest.Open(t, r.h, 0)
		s.Request(hostsimtest.Get("/"))
		s.Settle()
		lines := r.logs.take("worker-0")
		statuses := lines[len(lines)-1]
		for i, name := range names {
			if c := statuses[i]; c >= 'A' {
				got = append(got, fmt.Sprintf("%s %d", strings.TrimPrefix(name[strings.IndexByte(name, '.')+1:], "proxy_"), c-'A'))
			}
		}
		want(t, "traps", len(r.h.Traps()), 0)
		hostsimtest.Golden(t, fmt.Sprintf("bad-arguments-%#x", value), strings.Join(got, "\n")+"\n")
	}
}

// WASI, as far as it goes: output is logged, clocks show the host's clock, randomness
// follows the seed.
func TestWASI(t *testing.T) {
	const write, clock, random = "wasi_snapshot_preview1.fd_write", "wasi_unstable.clock_time_get", "wasi_snapshot_preview1.random_get"
	m := onRequest(func(fn func(string) []byte) []byte {
		vector := func(at, ptr, size uint32) []byte {
			return cat(i32const(at), i32const(ptr), []byte{0x36, 2, 0}, i32const(at+4), i32const(size), []byte{0x36, 2, 0})
		}
		return cat(
			vector(1024, 0, 3), vector(1032, 3, 4),
			i32const(1), i32const(1024), i32const(2), i32const(1100), fn(write), []byte{0x1a}, // stdout
			i32const(2), i32const(1024), i32const(1), i32const(1100), fn(write), []byte{0x1a}, // stderr
			i32const(0), i64const(0), i32const(1200), fn(clock), []byte{0x1a}, logText(fn, 1200, 8),
			i32const(1), i64const(0), i32const(1200), fn(clock), []byte{0x1a}, logText(fn, 1200, 8),
			i32const(1300), i32const(8), fn(random), []byte{0x1a}, logText(fn, 1300, 8),
		)
	}, write, clock, random, "env.proxy_log")
	m.data = "abcdef\n"
	src := m.source()
	var random1 string
	for range 2 {
		r := newRig(t, src)
		r.start(hostsim.Config{Seed: 7})
		r.clock.Advance(5)
		s := hostsimtest.Open(t, r.h, 0)
		s.Request(hostsimtest.Get("/"))
		s.Settle()
		lines := r.logs.take("worker-0")
		want(t, "stdout", lines[0], "abcdef")
		want(t, "wall clock", lines[1], string(le64(uint64(hostsimtest.Epoch.UnixNano()+5))))
		want(t, "monotonic clock", lines[2], string(le64(5)))
		want(t, "stderr", r.h.Warnings()[0].Message, "abc")
		if random1 == "" {
			random1 = lines[3]
		}
		want(t, "randomness of one seed", lines[3], random1)
	}
}

func le64(v uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return b
}
