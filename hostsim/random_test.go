package hostsim_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

var oneSeed = flag.Uint64("seed", 0, "run the random tests with this seed only; 0: with 100 random ones")

// eachSeed runs a test with 100 sources of random numbers, and logs the seed of the first one that fails.
func eachSeed(tb testing.TB, test func(*rand.Rand)) {
	tb.Helper()
	for range 100 {
		seed := *oneSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		func() {
			defer func() {
				if tb.Failed() {
					tb.Logf("run it again with -run '^%s$' -seed %d", tb.Name(), seed)
				}
			}()
			test(rand.New(rand.NewPCG(seed, 0)))
		}()
		if tb.Failed() || *oneSeed != 0 {
			return
		}
	}
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, values []T) T { return values[r.IntN(len(values))] }

// strictSink checks the promises that Sink's documentation makes.
type strictSink struct {
	name              string
	mu                sync.Mutex
	begun, ended, cut bool
	wrong             []string
}

func (s *strictSink) event(what string, begins, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cut:
		s.wrong = append(s.wrong, what+" after a reset")
	case s.ended:
		s.wrong = append(s.wrong, what+" after the end")
	case begins == s.begun:
		s.wrong = append(s.wrong, what+" out of order")
	}
	s.begun, s.ended = true, ends
}

func (s *strictSink) Headers(_ hostsim.Headers, end bool) { s.event("headers", true, end) }
func (s *strictSink) Data(b []byte, end bool) {
	if len(b) == 0 && !end {
		s.wrong = append(s.wrong, "a piece of nothing")
	}
	s.event("data", false, end)
}
func (s *strictSink) Trailers(hostsim.Headers) { s.event("trailers", false, true) }
func (s *strictSink) Reset(hostsim.ResetReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		s.wrong = append(s.wrong, "reset twice")
	}
	s.cut = true
}

// Whatever a filter does and in whatever order things happen, sinks get well-formed
// messages, a stream ends once, the filter learns of it once, and the host stays
// idle afterwards.
func TestSinksGetWellFormedMessages(t *testing.T) {
	eachGuest(t, func(r *rig) {
		for _, stop := range []bool{false, true} {
			cluster := &hostsimtest.Cluster{Clock: r.clock}
			host := hostsimtest.Start(r, r.config(hostsim.Config{
				AllowOnHeadersStopIteration: stop, BufferLimit: 1024, FailurePolicy: hostsim.FailReload, ReloadBackoff: 1,
				Clusters: map[string]hostsim.Cluster{"c": cluster},
			}))
			r.h = host
			eachSeed(r, func(random *rand.Rand) { randomStream(random, r, host, cluster) })
		}
	})
}

func randomStream(random *rand.Rand, r *rig, h *hostsim.Host, cluster *hostsimtest.Cluster) {
	ops := []string{"pause", "action:2", "action:3", "action:4", "resume:0", "resume:1", "reply:409:no", "reply:200", "close:0", "trap", "call:c:50", "add:0:a:b", "add:2:a:b", "add:1:t:1", "add:3:t:1", "fillbuffer:0:2000", "fillbuffer:1:2000", "setbuffer:0:0:0:x", "remove:2::status"}
	script := "log=log:2:L;sdone=log:2:D;delete=log:2:X"
	for _, when := range []string{"rh", "rb1", "rb", "rt", "sh", "sb1", "sb", "st"} {
		var list []string
		for range random.IntN(3) {
			list = append(list, pick(random, ops))
		}
		if len(list) > 0 {
			script += ";" + when + "=" + strings.Join(list, ",")
		}
	}
	script += ";cb=effective:self," + pick(random, []string{"resume:0", "resume:1", "reply:200", "close:1"})
	up, down := &strictSink{name: "upstream"}, &strictSink{name: "downstream"}
	s, err := h.NewStream(hostsim.StreamOptions{Worker: 0, Upstream: up, Downstream: down})
	if err != nil {
		r.Fatal(err)
	}
	r.settle()
	r.logs.take("worker-0")

	body := func() []byte { return make([]byte, pick(random, []int{0, 1, 600, 1500})) }
	// The two directions are fed in their own order, interleaved at random.
	told := "0 0 0"
	request := []func(){func() { told = "1 1 1"; s.RequestHeaders(hostsimtest.Post("/x", "x-script", script), false) }}
	for range random.IntN(4) {
		b := body()
		request = append(request, func() { s.RequestData(b, false) })
	}
	if random.IntN(2) == 0 {
		request = append(request, func() { s.RequestTrailers(hostsim.H("t", "1")) })
	} else {
		request = append(request, func() { s.RequestData(nil, true) })
	}
	response := []func(){func() { s.ResponseHeaders(hostsim.H(":status", "200"), false) }}
	for range random.IntN(4) {
		b := body()
		response = append(response, func() { s.ResponseData(b, false) })
	}
	switch random.IntN(3) {
	case 0:
		response = append(response, func() { s.ResponseTrailers(hostsim.H("t", "1")) })
	case 1:
		response = append(response, func() { s.ResponseData(nil, true) })
	case 2:
		response = append(response, func() { s.UpstreamFailed(hostsim.UpstreamDisconnected, "") })
	}
	opened := func() bool { up.mu.Lock(); defer up.mu.Unlock(); return up.begun && !up.cut }
	for len(request)+len(response) > 0 {
		switch k := random.IntN(20); {
		case k == 0:
			s.ClientReset()
			request, response = nil, nil
		case k == 1:
			if cluster.Pending() > 0 {
				call, err := cluster.Next(within(r))
				if err != nil {
					r.Fatal(err)
				}
				call.Reply(hostsimtest.Answer("200", ""))
			}
		case k == 2:
			r.clock.Advance(100e6)
		case k < 12 && len(request) > 0:
			request[0]()
			request = request[1:]
		case len(response) > 0 && opened():
			response[0]()
			response = response[1:]
		case len(request) == 0:
			response = nil // upstream never answers
		}
		r.settle()
	}
	r.clock.Advance(100e6) // callouts time out
	s.ClientReset()
	await(r, s.Done(), "the stream's end")
	r.settle()
	for _, sink := range []*strictSink{up, down} {
		if len(sink.wrong) > 0 {
			r.Fatalf("%s got %v", sink.name, sink.wrong)
		}
	}
	if n := h.Streams(); n != 0 {
		r.Fatalf("%d streams are open", n)
	}
	seen := strings.Join(r.logs.take("worker-0"), "\n")
	count := fmt.Sprint(strings.Count(seen, "log:2:L"), strings.Count(seen, "sdone: "), strings.Count(seen, "delete: "))
	if trapped := strings.Contains(script, "trap"); !trapped && count != told {
		r.Fatalf("the filter was told of its end %s times:\n%s", count, seen)
	}
	for cluster.Pending() > 0 {
		if _, err := cluster.Next(within(r)); err != nil {
			r.Fatal(err)
		}
	}
}
