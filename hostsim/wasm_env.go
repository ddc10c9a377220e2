package hostsim

import "github.com/tetratelabs/wazero/api"

// hostFunctions are the available imports by module and name: the host functions of ABI 0.2.x, two helpers of the C++
// toolchain, and the WASI functions that all recent Envoys have (wasm_wasi.go). Newer Envoys have more WASI functions,
// so a module that loads here loads everywhere.
var hostFunctions = map[string]map[string]hostFunction{
	"env":                    envFunctions,
	"wasi_snapshot_preview1": wasiFunctions,
	"wasi_unstable":          wasiFunctions,
}

// fn declares a function with i32 parameters that returns a status.
func fn(params int, run func(g *wasmGuest, a args) Status) hostFunction {
	return typed(make([]api.ValueType, params), run)
}

// values are what the pointers among a function's parameters point to.
type values [5][]byte

// fnOf is fn for a function that reads values in memory, each given by a pointer and a size after it. from are the
// positions of the pointers.
func fnOf(params int, from []int, run func(g *wasmGuest, a args, in values) Status) hostFunction {
	return fn(params, func(g *wasmGuest, a args) Status {
		var in values
		for i, p := range from {
			var ok bool
			if in[i], ok = g.bytes(a.u32(p), a.u32(p+1)); !ok {
				return invalidMemory
			}
		}
		return run(g, a, in)
	})
}

// typed declares a function; a zero in params means i32.
func typed(params []api.ValueType, run func(g *wasmGuest, a args) Status) hostFunction {
	for i := range params {
		if params[i] == 0 {
			params[i] = i32
		}
	}
	return hostFunction{params: params, results: []api.ValueType{i32}, run: func(g *wasmGuest, a args) uint32 { return uint32(run(g, a)) }}
}

const invalidMemory = StatusInvalidMemoryAccess

var envFunctions = map[string]hostFunction{
	"proxy_log": {params: []api.ValueType{i32, i32, i32}, results: []api.ValueType{i32}, allowed: alwaysAllowed,
		run: func(g *wasmGuest, a args) uint32 {
			level := LogLevel(a.u32(0))
			message, ok := g.str(a.u32(1), a.u32(2))
			if !ok && level <= logMax { // an unknown level is reported before a bad pointer
				return uint32(invalidMemory)
			}
			return uint32(g.calls.Log(level, message))
		}},

	"proxy_get_property": fnOf(4, []int{0}, func(g *wasmGuest, a args, in values) Status {
		value, st := g.calls.GetProperty(string(in[0]))
		return handOver(g, value, st, a.u32(2), a.u32(3))
	}),
	"proxy_set_property": fnOf(4, []int{0, 2}, func(g *wasmGuest, _ args, in values) Status {
		return g.calls.SetProperty(string(in[0]), in[1])
	}),
	"proxy_get_status": fn(3, func(g *wasmGuest, a args) Status {
		code, message := g.calls.GetStatus()
		if !g.put32(a.u32(0), code) {
			return invalidMemory
		}
		return handOver(g, message, StatusOK, a.u32(1), a.u32(2))
	}),
	"proxy_call_foreign_function": fnOf(6, []int{0, 2}, func(g *wasmGuest, a args, in values) Status {
		result, st := g.calls.CallForeignFunction(string(in[0]), in[1])
		// A caller that ignores the result passes null pointers.
		if a.u32(4) == 0 || a.u32(5) == 0 {
			return st
		}
		return handOver(g, result, st, a.u32(4), a.u32(5))
	}),

	"proxy_continue_stream": fn(1, func(g *wasmGuest, a args) Status { return g.calls.ContinueStream(StreamType(a.u32(0))) }),
	"proxy_close_stream":    fn(1, func(g *wasmGuest, a args) Status { return g.calls.CloseStream(StreamType(a.u32(0))) }),
	"proxy_send_local_response": fnOf(8, []int{1, 3, 5}, func(g *wasmGuest, a args, in values) Status {
		return g.calls.SendLocalResponse(a.u32(0), string(in[0]), in[1], UnmarshalPairs(in[2]), int32(a.u32(7)))
	}),
	"proxy_set_effective_context": fn(1, func(g *wasmGuest, a args) Status { return g.calls.SetEffectiveContext(a.u32(0)) }),
	"proxy_done":                  fn(0, func(g *wasmGuest, _ args) Status { return g.calls.Done() }),

	"proxy_get_shared_data": fnOf(5, []int{0}, func(g *wasmGuest, a args, in values) Status {
		value, cas, st := g.calls.GetSharedData(string(in[0]))
		return g.answer32(a.u32(4), cas, handOver(g, value, st, a.u32(2), a.u32(3)))
	}),
	"proxy_set_shared_data": fnOf(5, []int{0, 2}, func(g *wasmGuest, a args, in values) Status {
		return g.calls.SetSharedData(string(in[0]), in[1], a.u32(4))
	}),
	"proxy_register_shared_queue": fnOf(3, []int{0}, func(g *wasmGuest, a args, in values) Status {
		id, st := g.calls.RegisterSharedQueue(string(in[0]))
		return g.answer32(a.u32(2), id, st)
	}),
	"proxy_resolve_shared_queue": fnOf(5, []int{0, 2}, func(g *wasmGuest, a args, in values) Status {
		id, st := g.calls.ResolveSharedQueue(string(in[0]), string(in[1]))
		return g.answer32(a.u32(4), id, st)
	}),
	"proxy_dequeue_shared_queue": fn(3, func(g *wasmGuest, a args) Status {
		item, st := g.calls.DequeueSharedQueue(a.u32(0))
		return handOver(g, item, st, a.u32(1), a.u32(2))
	}),
	"proxy_enqueue_shared_queue": fnOf(3, []int{1}, func(g *wasmGuest, a args, in values) Status {
		return g.calls.EnqueueSharedQueue(a.u32(0), in[0])
	}),

	"proxy_get_header_map_value": fn(5, func(g *wasmGuest, a args) Status {
		key, ok := g.mapKey(a)
		if ok != StatusOK {
			return ok
		}
		value, st := g.calls.GetHeaderMapValue(MapType(a.u32(0)), key)
		return handOver(g, value, st, a.u32(3), a.u32(4))
	}),
	"proxy_add_header_map_value": fn(5, func(g *wasmGuest, a args) Status {
		return g.mapPair(a, g.calls.AddHeaderMapValue)
	}),
	"proxy_replace_header_map_value": fn(5, func(g *wasmGuest, a args) Status {
		return g.mapPair(a, g.calls.ReplaceHeaderMapValue)
	}),
	"proxy_remove_header_map_value": fn(3, func(g *wasmGuest, a args) Status {
		key, ok := g.mapKey(a)
		if ok != StatusOK {
			return ok
		}
		return g.calls.RemoveHeaderMapValue(MapType(a.u32(0)), key)
	}),
	"proxy_get_header_map_pairs": fn(3, func(g *wasmGuest, a args) Status {
		h, st := g.calls.GetHeaderMapPairs(MapType(a.u32(0)))
		return handOverPairs(g, h, st, a.u32(1), a.u32(2))
	}),
	"proxy_set_header_map_pairs": fn(3, func(g *wasmGuest, a args) Status {
		if MapType(a.u32(0)) > mapTypeMax {
			return StatusBadArgument
		}
		pairs, ok := g.bytes(a.u32(1), a.u32(2))
		if !ok {
			return invalidMemory
		}
		return g.calls.SetHeaderMapPairs(MapType(a.u32(0)), UnmarshalPairs(pairs))
	}),
	"proxy_get_header_map_size": fn(2, func(g *wasmGuest, a args) Status {
		n, st := g.calls.GetHeaderMapSize(MapType(a.u32(0)))
		return g.answer32(a.u32(1), n, st)
	}),

	"proxy_get_buffer_bytes": fn(5, func(g *wasmGuest, a args) Status {
		b, st := g.calls.GetBufferBytes(BufferType(a.u32(0)), a.u32(1), a.u32(2))
		return handOver(g, b, st, a.u32(3), a.u32(4))
	}),
	"proxy_get_buffer_status": fn(3, func(g *wasmGuest, a args) Status {
		n, st := g.calls.GetBufferStatus(BufferType(a.u32(0)))
		return g.answer32(a.u32(2), 0, g.answer32(a.u32(1), n, st))
	}),
	"proxy_set_buffer_bytes": fn(5, func(g *wasmGuest, a args) Status {
		if BufferType(a.u32(0)) > bufferTypeMax {
			return StatusBadArgument
		}
		value, ok := g.bytes(a.u32(3), a.u32(4))
		if !ok {
			return invalidMemory
		}
		return g.calls.SetBufferBytes(BufferType(a.u32(0)), a.u32(1), a.u32(2), value)
	}),

	"proxy_http_call": fnOf(10, []int{0, 2, 4, 6}, func(g *wasmGuest, a args, in values) Status {
		// The token is written before the call is made, so a bad pointer starts no call.
		if !g.put32(a.u32(9), 0) {
			return invalidMemory
		}
		token, st := g.calls.HTTPCall(string(in[0]), UnmarshalPairs(in[1]), in[2], UnmarshalPairs(in[3]), a.u32(8))
		g.put32(a.u32(9), token)
		return st
	}),

	"proxy_define_metric": fnOf(4, []int{1}, func(g *wasmGuest, a args, in values) Status {
		id, st := g.calls.DefineMetric(MetricType(a.u32(0)), string(in[0]))
		return g.answer32(a.u32(3), id, st)
	}),
	"proxy_increment_metric": typed([]api.ValueType{i32, i64}, func(g *wasmGuest, a args) Status {
		return g.calls.IncrementMetric(a.u32(0), int64(a[1]))
	}),
	"proxy_record_metric": typed([]api.ValueType{i32, i64}, func(g *wasmGuest, a args) Status {
		return g.calls.RecordMetric(a.u32(0), a[1])
	}),
	"proxy_get_metric": fn(2, func(g *wasmGuest, a args) Status {
		n, st := g.calls.GetMetric(a.u32(0))
		if st == StatusOK && !g.put64(a.u32(1), n) {
			return invalidMemory
		}
		return st
	}),

	"proxy_set_tick_period_milliseconds": fn(1, func(g *wasmGuest, a args) Status { return g.calls.SetTickPeriod(a.u32(0)) }),
	"proxy_get_current_time_nanoseconds": fn(1, func(g *wasmGuest, a args) Status {
		if !g.put64(a.u32(0), g.calls.CurrentTime()) {
			return invalidMemory
		}
		return StatusOK
	}),
	// ABI 0.2.1. This host does not filter by level, so guests log everything.
	"proxy_get_log_level": fn(1, func(g *wasmGuest, a args) Status { return g.answer32(a.u32(0), uint32(LogTrace), StatusOK) }),

	// Unary gRPC calls are not offered: none can start.
	"proxy_grpc_call": fnOf(12, []int{0, 2, 4, 6, 8}, func(*wasmGuest, args, values) Status { return StatusParseFailure }),
	"proxy_grpc_stream": fnOf(9, []int{0, 2, 4, 6}, func(g *wasmGuest, a args, in values) Status {
		token, st := g.calls.GRPCStream(in[0], string(in[1]), string(in[2]), UnmarshalPairs(in[3]))
		return g.answer32(a.u32(8), token, st)
	}),
	"proxy_grpc_send": fnOf(4, []int{1}, func(g *wasmGuest, a args, in values) Status {
		return g.calls.GRPCSend(a.u32(0), in[0], a.u32(3) != 0)
	}),
	"proxy_grpc_close":  fn(1, func(g *wasmGuest, a args) Status { return g.calls.GRPCClose(a.u32(0)) }),
	"proxy_grpc_cancel": fn(1, func(g *wasmGuest, a args) Status { return g.calls.GRPCCancel(a.u32(0)) }),

	// Further imports of C++ toolchains.
	"emscripten_notify_memory_growth": {params: []api.ValueType{i32}, allowed: alwaysAllowed, run: func(*wasmGuest, args) uint32 { return 0 }},
	"pthread_equal": {params: []api.ValueType{i32, i32}, results: []api.ValueType{i32}, allowed: alwaysAllowed,
		run: func(_ *wasmGuest, a args) uint32 { return b2u(a.u32(0) == a.u32(1)) }},
}

// answer32 writes a number where the guest asked for it, unless the call failed.
func (g *wasmGuest) answer32(ptr, v uint32, st Status) Status {
	if st == StatusOK && !g.put32(ptr, v) {
		return invalidMemory
	}
	return st
}

// mapKey reads the map type and key that start the header map functions.
func (g *wasmGuest) mapKey(a args) (string, Status) {
	if MapType(a.u32(0)) > mapTypeMax {
		return "", StatusBadArgument
	}
	key, ok := g.str(a.u32(1), a.u32(2))
	if !ok {
		return "", invalidMemory
	}
	return key, StatusOK
}

func (g *wasmGuest) mapPair(a args, f func(MapType, string, string) Status) Status {
	key, st := g.mapKey(a)
	if st != StatusOK {
		return st
	}
	value, ok := g.str(a.u32(3), a.u32(4))
	if !ok {
		return invalidMemory
	}
	return f(MapType(a.u32(0)), key, value)
}
