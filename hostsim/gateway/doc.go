// Command gateway is a small HTTP/1.1 reverse proxy that runs a Proxy-Wasm filter
// as Envoy would, for places where there is no Envoy: development, tests, small
// installations.
//
//	gateway --wasm F --config F --listen A --upstream A [--cluster NAME=A]... [flags]
//
// One upstream is behind the filter; clusters are what the filter's own calls may
// name, up to 256, and the upstream is one as well, named upstream. Managers that are a ledger each
// have a cluster each, whose names are in the filter's manager.shards:
//
//	gateway --cluster A=h2c://10.0.0.1:8090 --cluster B=h2c://10.0.0.2:8090 ...
//
// With h2c:// before the address of a cluster the gateway speaks HTTP/2 there, without TLS. A filter's gRPC streams need
// that, and so do Oncegate's managers. Otherwise it speaks HTTP/1.1, which servers of gRPC refuse.
//
// With --env NAME the filter sees a variable of the gateway's environment, such as the one that manager.auth_token_env
// names:
//
//	ONCEGATE_GATE_TOKEN=... gateway --env ONCEGATE_GATE_TOKEN ...
//
// With --admin a second listener serves /metrics (Prometheus text: the
// filter's metrics, then the gateway's), /shared_data (JSON: number of keys and
// bytes), /healthz and /readyz.
//
// It logs JSON lines to standard error, one of them per listener once it accepts:
// {"msg":"listening","listener":"proxy","addr":"127.0.0.1:10000"}.
//
// SIGTERM or SIGINT drains: /readyz turns 503, no connection is accepted, running
// requests get --drain-timeout to end, then the filter gets as long for the calls
// that it still has to deliver; the rest is cut. A second signal cuts at once.
//
// Exit codes: 0 after a shutdown, 1 when something fails at run time (an address that
// is taken), 2 for a bad command line, module or configuration, with one line
// on standard error that names what is wrong.
package main
