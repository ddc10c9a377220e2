package hostsim

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// WASI error numbers.
const (
	wasiOK     = 0
	wasiBadf   = 8
	wasiFault  = 21
	wasiInval  = 28
	wasiNoent  = 44
	wasiNosys  = 52
	wasiNotsup = 58
)

// randomLimit is the most bytes one random_get may ask for.
const randomLimit = 64 << 10

func wasi(params []api.ValueType, allowed restriction, run func(g *wasmGuest, a args) uint32) hostFunction {
	return hostFunction{params: params, results: []api.ValueType{i32}, allowed: allowed, run: run}
}

func wasiConst(errno uint32) func(*wasmGuest, args) uint32 {
	return func(*wasmGuest, args) uint32 { return errno }
}

// wasiFunctions behave as in Envoy: output goes to the log, clocks, randomness and the environment work, and there are no
// arguments or files.
var wasiFunctions = map[string]hostFunction{
	"fd_write": wasi([]api.ValueType{i32, i32, i32, i32}, alwaysAllowed, func(g *wasmGuest, a args) uint32 {
		level := LogInfo
		switch a.u32(0) {
		case 1:
		case 2:
			level = LogError
		default:
			return wasiBadf
		}
		var out strings.Builder
		size := 0
		for i := range a.u32(2) {
			at := uint64(a.u32(1)) + 8*uint64(i)
			if at > 1<<32-8 {
				return wasiFault
			}
			vec, ok := g.bytes(uint32(at), 8)
			if !ok {
				return wasiFault
			}
			b, ok := g.bytes(binary.LittleEndian.Uint32(vec), binary.LittleEndian.Uint32(vec[4:]))
			if !ok {
				return wasiFault
			}
			size += len(b)
			out.Write(b[:min(len(b), logLineLimit+1-out.Len())]) // Log cuts what is longer
		}
		if size > 0 {
			g.calls.Log(level, strings.TrimSuffix(out.String(), "\n"))
		}
		if !g.put32(a.u32(3), uint32(size)) {
			return wasiFault
		}
		return wasiOK
	}),
	"clock_time_get": wasi([]api.ValueType{i32, i64, i32}, alwaysAllowed, func(g *wasmGuest, a args) uint32 {
		var now uint64
		switch a.u32(0) {
		case 0:
			now = uint64(g.env.clock.Now().UnixNano())
		case 1:
			now = uint64(g.env.clock.Now().Sub(g.env.epoch))
		default:
			return wasiNotsup
		}
		if !g.put64(a.u32(2), now) {
			return wasiFault
		}
		return wasiOK
	}),
	"random_get": wasi([]api.ValueType{i32, i32}, duringStart, func(g *wasmGuest, a args) uint32 {
		if a.u32(1) > randomLimit {
			return wasiInval
		}
		b, ok := g.bytes(a.u32(0), a.u32(1))
		if !ok {
			return wasiFault
		}
		_, _ = g.rng.Read(b)
		return wasiOK
	}),
	"args_get": wasi([]api.ValueType{i32, i32}, duringStart, wasiConst(wasiOK)),
	"args_sizes_get": wasi([]api.ValueType{i32, i32}, duringStart, func(g *wasmGuest, a args) uint32 {
		if !g.put32(a.u32(0), 0) || !g.put32(a.u32(1), 0) {
			return wasiFault
		}
		return wasiOK
	}),
	"environ_get": wasi([]api.ValueType{i32, i32}, duringStart, func(g *wasmGuest, a args) uint32 {
		pointer, at := a.u32(0), a.u32(1)
		for _, variable := range g.env.environ {
			if !g.put32(pointer, at) {
				return wasiFault
			}
			size := uint32(len(variable)) + 1
			b, ok := g.bytes(at, size)
			if !ok {
				return wasiFault
			}
			b[copy(b, variable)] = 0
			pointer, at = pointer+4, at+size
		}
		return wasiOK
	}),
	"environ_sizes_get": wasi([]api.ValueType{i32, i32}, duringStart, func(g *wasmGuest, a args) uint32 {
		size := 0
		for _, variable := range g.env.environ {
			size += len(variable) + 1
		}
		if !g.put32(a.u32(0), uint32(len(g.env.environ))) || !g.put32(a.u32(1), uint32(size)) {
			return wasiFault
		}
		return wasiOK
	}),
	"fd_fdstat_get": wasi([]api.ValueType{i32, i32}, duringStart, func(g *wasmGuest, a args) uint32 {
		if fd := a.u32(0); fd != 1 && fd != 2 {
			return wasiBadf
		}
		const rightFdWrite = 64
		if b, ok := g.bytes(a.u32(1), 24); ok {
			clear(b)
			b[8] = rightFdWrite
		}
		return wasiOK
	}),
	"fd_close":            wasi([]api.ValueType{i32}, unrestricted, wasiConst(wasiOK)),
	"fd_seek":             wasi([]api.ValueType{i32, i64, i32, i32}, unrestricted, wasiConst(wasiOK)),
	"fd_read":             wasi([]api.ValueType{i32, i32, i32, i32}, unrestricted, wasiConst(wasiNosys)),
	"fd_prestat_get":      wasi([]api.ValueType{i32, i32}, duringStart, wasiConst(wasiBadf)),
	"fd_prestat_dir_name": wasi([]api.ValueType{i32, i32, i32}, duringStart, wasiConst(wasiNosys)),
	"path_open":           wasi([]api.ValueType{i32, i32, i32, i32, i32, i64, i64, i32, i32}, unrestricted, wasiConst(wasiNoent)),
	// Envoy only records the exit and returns. What the guest does next is up to the guest; compilers put an
	// unreachable instruction there.
	"proc_exit": {params: []api.ValueType{i32}, allowed: unrestricted, run: func(g *wasmGuest, a args) uint32 {
		g.calls.Log(LogError, fmt.Sprintf("proc_exit(%d) called; the VM will not survive it", a.u32(0)))
		return 0
	}},
}
