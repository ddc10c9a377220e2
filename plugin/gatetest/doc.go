// Package gatetest tests the gate from outside, on hostsim, with a scripted upstream, a clock that the test
// moves, and a manager on a network that the test breaks. The manager is the real one, on a volatile store.
//
// Every case runs on the native build of the gate and on build/oncegate.wasm, the file that ships. make test runs a case on one of
// them, make test-deep on the other.
// The wasm runs fail if that file is missing; make build makes it.
package gatetest
