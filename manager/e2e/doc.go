// Package e2e tests the manager as a real process: it is started, killed, stopped and started again, on each engine with the
// engine's real server.
//
// The first test that needs the program builds it from the source tree, once for all tests. Each test has its own directories
// and servers, and its listeners have ports that the kernel picks, so the tests run side by side. Tests that measure memory, or set
// variables of this process, run alone.
//
// Tests wait for conditions that they poll. Time limits only end a hang.
package e2e
