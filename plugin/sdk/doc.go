// Package sdk connects the gate to the Proxy-Wasm SDK. It passes the host's callbacks
// to plugin/gate and makes the gate's host calls. It decides nothing.
//
// It differs from the SDK in three ways:
//
//   - It imports metrics, time, randomness and the environment itself. The SDK's metric
//     functions panic when the host refuses a call, and a panic ends the VM. The SDK has
//     none of the others.
//   - It reads header maps and sends local replies without the SDK's lists and blocks
//     (pairs.go).
//   - It makes callouts only while the plugin context is active. The SDK remembers
//     which context was active when a callout was made. It silently drops the answer
//     if that context was a stream that has been deleted since. So the gate asks for
//     a queue callback first (see plugin/gate).
//
// The native build exists only so that the usual tools can check the package. Only
// the TinyGo build is connected to a host.
package sdk
