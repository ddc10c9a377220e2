package doctor

import (
	"fmt"
	"slices"
	"strings"
)

const (
	checkCapabilities = "envoy: capabilities"
	checkContinue     = "envoy: 100-continue"
)

// capabilities are the functions that the module calls and the callbacks that it needs.
var capabilities = strings.Fields(`
	args_get args_sizes_get clock_time_get environ_get environ_sizes_get fd_close fd_seek fd_write proxy_continue_stream proxy_define_metric
	proxy_dequeue_shared_queue proxy_done proxy_enqueue_shared_queue proxy_get_buffer_bytes
	proxy_get_current_time_nanoseconds proxy_get_header_map_pairs proxy_get_header_map_value proxy_get_property
	proxy_get_shared_data proxy_http_call proxy_increment_metric proxy_log proxy_on_configure proxy_on_context_create
	proxy_on_delete proxy_on_done proxy_on_http_call_response proxy_on_log proxy_on_queue_ready proxy_on_request_body
	proxy_on_request_headers proxy_on_request_trailers proxy_on_response_body proxy_on_response_headers
	proxy_on_response_trailers proxy_on_tick proxy_on_vm_start proxy_record_metric proxy_register_shared_queue
	proxy_remove_header_map_value proxy_replace_header_map_value proxy_send_local_response proxy_set_buffer_bytes
	proxy_set_effective_context proxy_set_header_map_pairs proxy_set_property proxy_set_shared_data
	proxy_set_tick_period_milliseconds random_get`)

// restrictions compares the list of what the module may call with what it calls.
func (g gate) restrictions(r *report) {
	const member = "capability_restriction_config"
	listed := 0
	for _, o := range []object{g.filter, g.filter.at("vm_config")} { // Envoy 1.40 has it in vm_config
		allowed := o.at(member).at("allowed_capabilities")
		if len(allowed) == 0 { // Envoy takes an empty list for no list
			continue
		}
		listed++
		missing := slices.DeleteFunc(slices.Clone(capabilities), func(name string) bool { return allowed[name] != nil })
		if len(missing) > 0 {
			r.fail(checkCapabilities, fmt.Sprintf("%s: %s lacks %s", g.place(), member, strings.Join(missing, ", ")),
				"use the list of envoy/capabilities.yaml: the gate cannot work without one of them")
			return
		}
	}
	r.ok(checkCapabilities, "%s: %s", g.place(), map[bool]string{true: "the module may call what it needs", false: "no list restricts the module"}[listed > 0])
}

// continues checks whether clients wait for a 100 that no upstream sends, because the gate holds the request until its
// body is there.
func (g gate) continues(r *report) {
	if g.manager["proxy_100_continue"] == true && g.body() {
		r.fail(checkContinue, g.place()+": proxy_100_continue in body mode: the gate waits for the body, and a client with Expect: 100-continue for the upstream",
			"remove proxy_100_continue; Envoy then asks the client for the body itself")
	}
}
