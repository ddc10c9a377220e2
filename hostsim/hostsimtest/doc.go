// Package hostsimtest drives a hostsim.Host in tests. It has streams that are fed step by step (Open), whole requests
// (Do), scripted upstreams and callout clusters that fail on demand, golden transcripts, and a dump of the host's state
// when a test fails.
//
// A typical test runs on a virtual clock and pins its streams to workers. It feeds an event, waits until the host has
// settled, and checks the sinks:
//
//	clock := hostsim.NewVirtualClock(hostsimtest.Epoch)
//	h := hostsimtest.Start(t, hostsim.Config{Guest: hostsim.Wasm(module), Clock: clock})
//	s := hostsimtest.Open(t, h, 0)
//	s.RequestHeaders(hostsimtest.Post("/a"), false)
//	s.Settle()
//	s.Up.Log() // what reached upstream so far
//	clock.Advance(time.Second)
//
// Nothing in this package sleeps or depends on how fast the machine is.
package hostsimtest
