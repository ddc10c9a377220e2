// Package sdk joins the gate to the Proxy-Wasm SDK: it hands the host's
// callbacks to plugin/gate and makes the host calls that the gate asks for. It
// decides nothing.
//
// What it adds to the SDK:
//
//   - Metrics, time and randomness are imported here. The SDK's metric functions
//     panic when the host refuses a call, and a panic ends the VM; its time and
//     randomness are missing.
//   - Header maps are read and local replies sent without the SDK's lists and blocks
//     (pairs.go).
//   - Callouts are made only while the plugin context is active. The SDK remembers
//     which context was active when a callout was made and drops the answer
//     silently when that context was a stream that has since been deleted. The
//     gate asks for a queue callback first (see plugin/gate).
//
// A native build exists so that the usual tools can check the package; only the
// TinyGo build is connected to a host.
package sdk
