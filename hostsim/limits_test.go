package hostsim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
	"github.com/oncegate/oncegate/hostsim/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestNewStreamErrors(t *testing.T) {
	r := newRig(t, nativeScript())
	h := r.start(hostsim.Config{Workers: 2, MaxStreams: 1})
	if _, err := h.NewStream(hostsim.StreamOptions{}); err == nil || !strings.Contains(err.Error(), "Downstream and Upstream are required") {
		t.Errorf("without sinks: %v", err)
	}
	s := hostsimtest.Open(t, h, 0)
	for _, worker := range []int{-2, 2} {
		if _, err := h.NewStream(hostsim.StreamOptions{Worker: worker, Upstream: s.Up, Downstream: s.Down}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Worker is %d, allowed are -1 to 1", worker)) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	if _, err := h.NewStream(hostsim.StreamOptions{Worker: 0, Upstream: s.Up, Downstream: s.Down}); !errors.Is(err, hostsim.ErrTooManyStreams) {
		t.Errorf("one stream too many: %v", err)
	}
	s.ClientReset()
	await(t, s.Done(), "the stream's end")
	hostsimtest.Open(t, h, 0)
	want(t, "worker", hostsimtest.Open(t, h, 1).Worker(), 1)
	if err := h.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.NewStream(hostsim.StreamOptions{Worker: 0, Upstream: s.Up, Downstream: s.Down}); !errors.Is(err, hostsim.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Closing a host ends its streams; the filter sees their end before its own.
func TestCloseWithOpenStreams(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("done=log:2:plugin")})
		s := r.run("rh=;log=;delete=")
		paused := r.run("rh=pause")
		if err := r.h.Close(within(r)); err != nil {
			r.Fatal(err)
		}
		want(r, "upstream", s.Up.Log(), "headers POST /x end | reset host_closed")
		want(r, "downstream", s.Down.Log(), "reset host_closed")
		want(r, "downstream of the paused one", paused.Down.Log(), "reset host_closed")
		if got := strings.Join(r.logs.take("worker-0"), " | "); got != "rh 7 end | rh 7 end | log 0 | delete 0 | plugin | done: log:2:plugin = Ok" {
			r.Errorf("the filter saw %s", got)
		}
		if err := r.h.Close(context.Background()); err != nil {
			r.Errorf("closing twice: %v", err)
		}
	})
}

// A guest that never returns does not hold up Close beyond its context. The host ends once the guest returns.
func TestCloseIsBoundedByItsContext(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, nativeScript())
	r.start(hostsim.Config{Hooks: hostsim.Hooks{BeforeCallback: func(h hostsim.HookCallback) error {
		if h.Callback == "proxy_on_request_headers" {
			close(entered)
			<-release
		}
		return nil
	}}})
	s, headers := r.open("rh=")
	s.Request(headers)
	await(t, entered, "the callback")
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- r.h.Close(ctx) }()
	cancel()
	select {
	case err := <-closed:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
	case <-within(t).Done():
		t.Error("Close waits for the guest")
	}
	close(release)
	if err := r.h.Close(within(t)); err != nil {
		t.Error(err)
	}
	for range 100 {
		if err := r.h.Close(ctx); err != nil {
			t.Fatalf("a host that is closed: %v", err)
		}
	}
}

// A plugin that asks for more time than it gets is an error, and the host ends.
func TestCloseOfPluginThatIsNeverDone(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{PluginConfig: []byte("done=false")})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := r.h.Close(ctx); !errors.Is(err, context.Canceled) {
			r.Errorf("error is %v", err)
		}
		if err := r.h.Close(within(r)); err != nil {
			r.Error(err)
		}
	})
}

// A feeder that does not wait is cut off, and memory stays bounded.
func TestFeederThatDoesNotWaitIsCutOff(t *testing.T) {
	r := newRig(t, nativeScript())
	release := make(chan struct{})
	r.start(hostsim.Config{BufferLimit: 1024, Hooks: hostsim.Hooks{BeforeCallback: func(h hostsim.HookCallback) error {
		if h.Callback == "proxy_on_request_headers" {
			<-release
		}
		return nil
	}}})
	s, h := r.open("rb=")
	s.RequestHeaders(h, false)
	piece := make([]byte, 8<<20)
	for range 9 { // 72 MiB, where 64 are the most
		s.RequestData(piece, false)
	}
	close(release)
	await(t, s.Done(), "the stream's end")
	m := s.Down.Message()
	want(t, "downstream", m.Reset, hostsim.ResetOverrun)
	want(t, "upstream", s.Up.Message().Reset, hostsim.ResetOverrun)
	if n := len(s.Up.Message().Body); n > 64<<20+1024 {
		t.Errorf("%d bytes were taken", n)
	}
}

// Events in an order that no codec produces end the stream, and are reported.
func TestEventsOutOfOrderEndTheStream(t *testing.T) {
	h := func() hostsim.Headers { return hostsimtest.Post("/x") }
	ok := func() hostsim.Headers { return hostsim.H(":status", "200") }
	for name, feed := range map[string]func(s *hostsimtest.Stream){
		"request body":      func(s *hostsimtest.Stream) { s.RequestData([]byte("x"), false) },
		"request headers":   func(s *hostsimtest.Stream) { s.RequestHeaders(h(), false); s.RequestHeaders(h(), false) },
		"request trailers":  func(s *hostsimtest.Stream) { s.RequestHeaders(h(), true); s.RequestTrailers(nil) },
		"response headers":  func(s *hostsimtest.Stream) { s.ResponseHeaders(ok(), true) },
		"response body":     func(s *hostsimtest.Stream) { s.RequestHeaders(h(), true); s.ResponseData(nil, true) },
		"response trailers": func(s *hostsimtest.Stream) { s.RequestHeaders(h(), true); s.ResponseTrailers(nil) },
		`response :status is "100"`: func(s *hostsimtest.Stream) {
			s.RequestHeaders(h(), true)
			s.ResponseHeaders(hostsim.H(":status", "100"), false)
		},
		`response :status is ""`: func(s *hostsimtest.Stream) { s.RequestHeaders(h(), true); s.ResponseHeaders(nil, false) },
	} {
		r := newRig(t, nativeScript())
		r.start(hostsim.Config{})
		s := hostsimtest.Open(t, r.h, 0)
		feed(s)
		s.Settle()
		want(t, name+": downstream", s.Down.Message().Reset, hostsim.ResetProtocolMisuse)
		want(t, name+": over", s.Over(), true)
		if v := r.h.Violations(); len(v) != 1 || !strings.Contains(v[0].What, name) {
			t.Errorf("%s: violations are %v", name, v)
		}
	}
}

// Hooks can make any callback trap.
func TestHooksMakeCallbacksTrap(t *testing.T) {
	for _, callback := range []string{"proxy_on_context_create", "proxy_on_request_headers", "proxy_on_request_body", "proxy_on_response_headers", "proxy_on_response_body", "proxy_on_log", "proxy_on_done", "proxy_on_delete"} {
		r := newRig(t, nativeScript())
		armed := false
		r.start(hostsim.Config{Hooks: hostsim.Hooks{BeforeCallback: func(h hostsim.HookCallback) error {
			if armed && h.Callback == callback {
				return errors.New("injected")
			}
			return nil
		}}})
		armed = true
		s, h := r.open("rh=")
		s.Request(h, "abc")
		s.Settle()
		if s.Up.Message().Headers != nil && s.Up.Message().Reset == "" {
			s.Respond(200, "def")
		}
		s.Settle()
		want(t, callback+": over", s.Over(), true)
		traps := r.h.Traps()
		if len(traps) != 1 || traps[0].Callback != callback || traps[0].Err.Error() != "injected" {
			t.Errorf("%s: traps are %v", callback, traps)
		}
	}
}

// A stream makes progress on a worker while another worker's VM is busy: threads are
// independent.
func TestWorkersAreIndependent(t *testing.T) {
	r := newRig(t, nativeScript())
	entered, release := make(chan struct{}), make(chan struct{})
	r.start(hostsim.Config{Workers: 2, Hooks: hostsim.Hooks{BeforeCallback: func(h hostsim.HookCallback) error {
		if h.Thread == "worker-0" && h.Callback == "proxy_on_request_headers" {
			close(entered)
			<-release
		}
		return nil
	}}})
	busy := hostsimtest.Open(t, r.h, 0)
	busy.Request(hostsimtest.Get("/"))
	await(t, entered, "the busy callback")
	free := hostsimtest.Open(t, r.h, 1)
	free.Request(hostsimtest.Get("/", "x-script", "rh=reply:200"))
	await(t, free.Done(), "the other worker's stream")
	close(release)
}

// The virtual clock fires timers in order, each at its own time, also those that are
// set on the way.
func TestVirtualClockFiresTimersInOrder(t *testing.T) {
	c := hostsim.NewVirtualClock(hostsimtest.Epoch)
	var got []string
	note := func(name string) func() {
		return func() { got = append(got, fmt.Sprintf("%s@%v", name, c.Now().Sub(hostsimtest.Epoch))) }
	}
	c.AfterFunc(3*time.Second, note("c"))
	c.AfterFunc(time.Second, func() { note("a")(); c.AfterFunc(time.Second, note("a+1")) })
	c.AfterFunc(time.Second, note("b"))
	stop := c.AfterFunc(2*time.Second, note("stopped"))
	want(t, "stopped in time", stop(), true)
	want(t, "stopped again", stop(), false)
	c.AfterFunc(-time.Second, note("due"))
	c.Advance(0)
	c.Advance(2500 * time.Millisecond)
	want(t, "fired", strings.Join(got, " "), "due@0s a@1s b@1s a+1@2s")
	c.Advance(500 * time.Millisecond)
	want(t, "fired", strings.Join(got, " "), "due@0s a@1s b@1s a+1@2s c@3s")
}

// The real clock runs.
func TestRealClockRuns(t *testing.T) {
	c := hostsim.RealClock()
	before := c.Now()
	fired := make(chan struct{})
	c.AfterFunc(time.Millisecond, func() { close(fired) })
	await(t, fired, "the timer")
	if !c.Now().After(before) {
		t.Error("time stands still")
	}
	if !c.AfterFunc(time.Hour, func() {})() {
		t.Error("a timer could not be stopped")
	}
}

// The start is abandoned when its context ends.
func TestCancelledStartIsAbandoned(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := hostsim.Start(ctx, hostsim.Config{Guest: nativeScript()}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}
