// Package api holds the wire types of the ledger API, which the gate and other clients use to call the manager.
//
// It is the only package that the filter and the manager share. It builds with
// TinyGo for wasm: no encoding/json, no net/http, no fmt.
//
// Every ledger call exists in two forms with the same meaning:
//
//   - JSON (application/json), for people and other languages; bodies of
//     results are base64.
//   - raw (ContentTypeRaw), in the messages of streams between gate and manager, and
//     between managers: a version byte followed by length-prefixed fields in a fixed
//     order. Bodies travel as plain bytes, and nothing is escaped. See raw.go.
//
// The answer has the form of the request's Content-Type. Errors are always application/problem+json (RFC 9457).
//
// Times cross the wire as durations, never as points in time, so no decision compares the clocks of two machines.
package api
