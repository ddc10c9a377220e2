package main

// signature writes a function type as its parameters, '>' and its results: i is an i32, I an i64.
type signature string

// hostFunctions are the functions that a module may import from "env": the calls of Proxy-Wasm ABI 0.2.0. A host offers
// later calls only to modules that declare a later ABI, and the SDK declares 0.2.0. So proxy_get_log_level (0.2.1) must
// not be here, and neither must the calls that 0.2.0 dropped, such as proxy_continue_request.
var hostFunctions = map[string]signature{
	"proxy_log":        "iii>i",
	"proxy_get_status": "iii>i",

	"proxy_set_property":        "iiii>i",
	"proxy_get_property":        "iiii>i",
	"proxy_continue_stream":     "i>i",
	"proxy_close_stream":        "i>i",
	"proxy_send_local_response": "iiiiiiii>i",

	"proxy_get_shared_data":          "iiiii>i",
	"proxy_set_shared_data":          "iiiii>i",
	"proxy_register_shared_queue":    "iii>i",
	"proxy_resolve_shared_queue":     "iiiii>i",
	"proxy_dequeue_shared_queue":     "iii>i",
	"proxy_enqueue_shared_queue":     "iii>i",
	"proxy_get_header_map_value":     "iiiii>i",
	"proxy_add_header_map_value":     "iiiii>i",
	"proxy_remove_header_map_value":  "iii>i",
	"proxy_replace_header_map_value": "iiiii>i",
	"proxy_get_header_map_pairs":     "iii>i",
	"proxy_set_header_map_pairs":     "iii>i",
	"proxy_get_header_map_size":      "ii>i",
	"proxy_get_buffer_status":        "iii>i",
	"proxy_get_buffer_bytes":         "iiiii>i",
	"proxy_set_buffer_bytes":         "iiiii>i",

	"proxy_http_call":   "iiiiiiiiii>i",
	"proxy_grpc_call":   "iiiiiiiiiiii>i",
	"proxy_grpc_stream": "iiiiiiiii>i",
	"proxy_grpc_cancel": "i>i",
	"proxy_grpc_close":  "i>i",
	"proxy_grpc_send":   "iiii>i",

	"proxy_set_tick_period_milliseconds": "i>i",
	"proxy_get_current_time_nanoseconds": "i>i",

	"proxy_define_metric":    "iiii>i",
	"proxy_increment_metric": "iI>i",
	"proxy_record_metric":    "iI>i",
	"proxy_get_metric":       "ii>i",

	"proxy_set_effective_context": "i>i",
	"proxy_done":                  ">i",
	"proxy_call_foreign_function": "iiiiii>i",
}

// wasiFunctions are the functions that a module may import from wasiModule: those that proxy-wasm-cpp-host has offered in
// every Envoy release of the last years. Newer hosts have more, but a module that imports one of those does not load in
// an older Envoy.
var wasiFunctions = map[string]signature{
	"args_get":            "ii>i",
	"args_sizes_get":      "ii>i",
	"clock_time_get":      "iIi>i",
	"environ_get":         "ii>i",
	"environ_sizes_get":   "ii>i",
	"fd_close":            "i>i",
	"fd_fdstat_get":       "ii>i",
	"fd_prestat_dir_name": "iii>i",
	"fd_prestat_get":      "ii>i",
	"fd_read":             "iiii>i",
	"fd_seek":             "iIii>i",
	"fd_write":            "iiii>i",
	"path_open":           "iiiiiIIii>i",
	"proc_exit":           "i>",
	"random_get":          "ii>i",
}

// The import modules a Proxy-Wasm host offers.
const (
	envModule  = "env"
	wasiModule = "wasi_snapshot_preview1"
)

// allowed maps import module and function to the type the host gives it.
var allowed = map[string]map[string]signature{
	envModule:  hostFunctions,
	wasiModule: wasiFunctions,
}
