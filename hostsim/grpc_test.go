package hostsim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// Metadata, messages in both directions, trailers and the end arrive in this order. The stream belongs to the plugin and
// outlives the request that opened it.
func TestStreamCarriesMessages(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		s := r.run("rh=pause,gopen:a:c:x-token:secret,gsend:a:hello;gm=pairs:4:names,get:4:x-a,buffersize:5;gr=buffer:5:1:2,get:4:x-a;gr2=gend:a:bye;gt=get:5:x-t;gc=gclose:a,gclose:a,status")
		s.ClientReset()
		r.wantLog("worker-0", "rh 7 end", "rh: gopen:a:c:x-token:secret = Ok 2", "rh: gsend:a:hello = Ok")
		server, err := cluster.NextStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		want(r, "service", server.Service+" "+server.Method+" "+server.Authority+" "+server.Thread, "test.Service Call c worker-0")
		want(r, "metadata", server.Metadata.Get("x-token"), "secret")
		wantMessage(r, server, "hello")
		server.Accept("x-a", "1")
		server.Send([]byte("one"))
		server.Send([]byte{})
		r.wantLog("worker-0", "gm a 3", "gm: pairs:4:names = Ok :status content-type x-a", "gm: get:4:x-a = Ok 1", "gm: buffersize:5 = Ok 0",
			"gr a 3 one", "gr: buffer:5:1:2 = Ok ne", "gr: get:4:x-a = BadArgument", "gr a 0 ", "gr: gend:a:bye = Ok")
		wantMessage(r, server, "bye")
		if _, open, err := server.Next(within(t)); open || err != nil {
			t.Errorf("after the last message: %v, %v", open, err)
		}
		server.Finish(5, "no such thing", "x-t", "2")
		r.wantLog("worker-0", "gt a 3", "gt: get:5:x-t = Ok 2", "gc a 5 status 5 no such thing{via_upstream}", "gc: gclose:a = Ok", "gc: gclose:a = NotFound", "gc: status = 5 no such thing{via_upstream}")
		await(t, server.Cut(), "the end of the stream's context")
		hostsimtest.Healthy(r, r.h)
	})
}

func wantMessage(r *rig, s *hostsimtest.ServerStream, text string) {
	r.Helper()
	if b, _, err := s.Next(within(r.T)); err != nil || string(b) != text {
		r.Fatalf("the server got %q, %v, want %q", b, err, text)
	}
}

// A reset that was not asked for, a cancelled stream and the end of the host reach the other side.
func TestStreamIsCut(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{})
		r.run("rh=gopen:a:c,gopen:b:c,gopen:d:c,gcancel:a,gsend:a:x,gcancel:a,gclose:a,reply:200:x;gc=gcancel:b,gsend:b:x")
		r.wantLog("worker-0", "rh 7 end", "rh: gopen:a:c = Ok 2", "rh: gopen:b:c = Ok 2", "rh: gopen:d:c = Ok 2", "rh: gcancel:a = Ok", "rh: gsend:a:x = NotFound", "rh: gcancel:a = NotFound", "rh: gclose:a = NotFound", "rh: reply:200:x = Ok")
		var servers [3]*hostsimtest.ServerStream
		for i := range servers {
			var err error
			if servers[i], err = cluster.NextStream(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		await(t, servers[0].Cut(), "the cancelled stream's end")
		servers[0].Finish(0, "") // too late
		servers[1].Fail(hostsim.UpstreamDisconnected, "", false)
		r.wantLog("worker-0", "gm b 0", "gt b 4", "gc b 14 status 14 upstream connect error or disconnect/reset before headers.", "gc: gcancel:b = Ok", "gc: gsend:b:x = NotFound")
		if err := r.h.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		await(t, servers[2].Cut(), "the end of the host's stream")
		hostsimtest.Healthy(r, r.h)
	})
}

// grpcServer is a cluster whose host answers streams of gRPC.
func grpcServer(t *testing.T, h http.HandlerFunc) *hostsim.HTTPCluster {
	t.Helper()
	return httpCluster(t, hostsim.HTTPClusterConfig{Address: h2cServer(t, h).Listener.Addr().String(), HTTP2: true})
}

// h2cServer speaks HTTP/2 without TLS.
func h2cServer(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

func grpcFrame(text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))) + text
}

// echo answers each message with the same one, as soon as it comes.
func echo(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	w.Header().Set("X-Got", q.URL.Path+" "+q.Host+" "+q.Header.Get("Content-Type")+" "+q.Header.Get("X-Token"))
	w.WriteHeader(http.StatusOK)
	for {
		_ = http.NewResponseController(w).Flush()
		b := make([]byte, 5)
		if _, err := io.ReadFull(q.Body, b); err != nil {
			break
		}
		message := make([]byte, binary.BigEndian.Uint32(b[1:]))
		if _, err := io.ReadFull(q.Body, message); err != nil {
			break
		}
		_, _ = w.Write(append(b, message...))
	}
	w.Header().Set("Grpc-Status", "9")
	w.Header().Set("Grpc-Message", "so%20it%20is")
}

// events collects what a stream's server does.
type events chan string

func (e events) stream() hostsim.StreamEvents {
	return hostsim.StreamEvents{
		Metadata: func(h hostsim.Headers) { e <- "metadata " + h.Get(":status") + " " + h.Get("x-got") },
		Message:  func(b []byte) { e <- "message " + string(b) },
		Trailers: func(h hostsim.Headers) { e <- "trailers " + h.Get("grpc-status") },
		Close:    func(status int, message string) { e <- fmt.Sprintf("close %d %s", status, message) },
	}
}

func (e events) want(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		select {
		case got := <-e:
			if got != line {
				t.Errorf("event %q, want %q", got, line)
			}
		case <-within(t).Done():
			t.Fatalf("no event, want %q", line)
		}
	}
}

func TestHTTPClusterStreams(t *testing.T) {
	c := grpcServer(t, echo)
	e := make(events, 100)
	s, err := c.OpenStream(context.Background(), hostsim.StreamRequest{Service: "a.B", Method: "C", Authority: "auth", Metadata: hostsim.H("x-token", "t")}, e.stream())
	if err != nil {
		t.Fatal(err)
	}
	e.want(t, "metadata 200 /a.B/C auth application/grpc t")
	s.Send([]byte("one"), false)
	e.want(t, "message one") // before the stream's end, in both directions
	s.Send([]byte{}, false)
	s.Send([]byte("two"), true)
	e.want(t, "message ", "message two", "trailers 9", "close 9 so%20it%20is{via_upstream}")
	// A stream that has only its end left.
	if s, err = c.OpenStream(context.Background(), hostsim.StreamRequest{Service: "a.B", Method: "C", Authority: "auth"}, e.stream()); err != nil {
		t.Fatal(err)
	}
	s.Send(nil, true)
	e.want(t, "metadata 200 /a.B/C auth application/grpc ", "trailers 9", "close 9 so%20it%20is{via_upstream}")
}

// The limit of messages is not that of a call's answer.
func TestHTTPClusterBoundsMessages(t *testing.T) {
	srv := h2cServer(t, echo)
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String(), HTTP2: true, MaxMessageBytes: 3, MaxResponseBytes: 1})
	e := make(events, 100)
	s, err := c.OpenStream(t.Context(), hostsim.StreamRequest{Service: "a.B", Method: "C"}, e.stream())
	if err != nil {
		t.Fatal(err)
	}
	s.Send([]byte("fit"), false)
	s.Send([]byte("long"), false)
	e.want(t, "metadata 200 /a.B/C "+srv.Listener.Addr().String()+" application/grpc ", "message fit", "trailers ", "close 13 via_upstream")
}

// A server that vanishes without a word costs one stream. The next one has a connection of its own.
func TestHTTPClusterStreamLeavesDeadConnection(t *testing.T) {
	f := startForwarder(t, h2cServer(t, echo).Listener.Addr().String())
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: f.Addr().String(), HTTP2: true})
	e := make(events, 100)
	open := func() hostsim.GRPCStream {
		s, err := c.OpenStream(t.Context(), hostsim.StreamRequest{Service: "a.B", Method: "C", Authority: "auth"}, e.stream())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	e.want(t, "metadata 200 /a.B/C auth application/grpc ")
	f.silence()
	s.Reset()
	e.want(t, "trailers ", "close 13 upstream_reset_after_response_started{connection_termination}")
	s = open()
	e.want(t, "metadata 200 /a.B/C auth application/grpc ")
	s.Send([]byte("one"), true)
	e.want(t, "message one", "trailers 9", "close 9 so%20it%20is{via_upstream}")
}

// A stream ends by itself if its server takes the connection and says nothing.
func TestHTTPClusterStreamNoticesSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel connects, nothing reads
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: l.Addr().String(), HTTP2: true})
	c.PingSoon()
	e := make(events, 100)
	if _, err := c.OpenStream(t.Context(), hostsim.StreamRequest{Service: "a.B", Method: "C"}, e.stream()); err != nil {
		t.Fatal(err)
	}
	e.want(t, "metadata  ", "trailers 14",
		"close 14 upstream connect error or disconnect/reset before headers. reset reason: connection termination{upstream_reset_before_response_started{connection_termination}}")
}

// Every way in which a server can fail gives the guest the events that Envoy gives it.
func TestHTTPClusterStreamFailures(t *testing.T) {
	answer := func(status int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Date"] = nil
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
		}
	}
	body := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, c := range map[string]struct {
		server http.HandlerFunc
		want   []string
	}{
		"refused":         {answer(200, "Grpc-Status", "16", "Grpc-Message", "no"), []string{"metadata  ", "trailers 16", "close 16 no{via_upstream}"}},
		"refused as HTTP": {answer(401, "Grpc-Status", "7"), []string{"metadata  ", "trailers 7", "close 7 via_upstream"}},
		"bare 401":        {answer(401), []string{"metadata  ", "trailers ", "close 16 via_upstream"}},
		"page with 503":   {body(503, "<html>"), []string{"metadata  ", "trailers ", "close 14 via_upstream"}},
		"page with 200":   {body(200, "<html>"), []string{"metadata 200 ", "trailers ", "close 13 via_upstream"}},
		"no trailers":     {body(200, grpcFrame("x")), []string{"metadata 200 ", "message x", "trailers ", "close 2 via_upstream"}},
		"compressed":      {body(200, "\x01\x00\x00\x00\x01x"), []string{"metadata 200 ", "trailers ", "close 13 via_upstream"}},
		"cut before headers": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, []string{"metadata  ", "trailers 14",
			"close 14 upstream connect error or disconnect/reset before headers. reset reason: connection termination{upstream_reset_before_response_started{connection_termination}}"}},
		"cut after headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"metadata 200 ", "trailers ", "close 13 upstream_reset_after_response_started{connection_termination}"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := make(events, 100)
			s, err := grpcServer(t, c.server).OpenStream(context.Background(), hostsim.StreamRequest{Service: "a.B", Method: "C"}, e.stream())
			if err != nil {
				t.Fatal(err)
			}
			e.want(t, c.want...)
			s.Send([]byte("late"), false)
			s.Reset()
		})
	}
}

// A cluster that refuses a stream answers inside the guest's own call; the close callback follows. In the same callback
// only one stream may be refused: at the second one Envoy hangs.
func TestRefusedStream(t *testing.T) {
	eachGuest(t, func(r *rig) {
		refuse := hostsim.ErrNoHealthyHost
		callRig(r, &hostsimtest.Cluster{RefuseStream: func(hostsim.StreamRequest) error { return refuse }}, hostsim.Config{})
		r.run("rh=gopen:a:c,reply:200:x")
		r.wantLog("worker-0", "rh 7 end", "gm unknown 0", "gt unknown 4", "rh: gopen:a:c = InternalFailure", "rh: reply:200:x = Ok", "gc unknown 14 status 14 no healthy upstream{no_healthy_upstream}")
		r.run("rh=gopen:a:nowhere,graw:a:x,reply:200:x")
		r.wantLog("worker-0", "rh 7 end", "rh: gopen:a:nowhere = InternalFailure", "rh: graw:a:x = ParseFailure", "rh: reply:200:x = Ok", "gc unknown 14 status 14 Cluster not available")
		hostsimtest.Healthy(r, r.h)
		refuse = hostsim.ErrCircuitBreaker
		r.run("rh=gopen:a:c,gopen:b:c,reply:200:x")
		r.wantLog("worker-0", "rh 7 end", "gm unknown 0", "gt unknown 5", "rh: gopen:a:c = InternalFailure", "gm unknown 0", "gt unknown 5", "rh: gopen:b:c = InternalFailure", "rh: reply:200:x = Ok",
			"gc unknown 14 status 14 upstream connect error or disconnect/reset before headers.", "gc unknown 14 status 14 upstream connect error or disconnect/reset before headers.")
		wantViolation(r, "Envoy's worker hangs here")
	})
}

func wantViolation(r *rig, text string) {
	r.Helper()
	for _, v := range r.h.Violations() {
		if strings.Contains(v.What, text) {
			return
		}
	}
	r.Errorf("violations are %v, want %q in one", r.h.Violations(), text)
}

// What is undefined in Envoy is reported and does no harm.
func TestMisusedStreamIsReported(t *testing.T) {
	for script, violation := range map[string]string{
		"gr=gcancel:a":             "cancelled in its own callback",
		"gt=gsend:a:x;gc=gclose:a": "used in its callback of trailing metadata",
		"gc=":                      "neither closed nor cancelled in its close callback",
	} {
		t.Run(script, func(t *testing.T) {
			eachGuest(t, func(r *rig) {
				callRig(r, &hostsimtest.Cluster{StreamHandler: func(s *hostsimtest.ServerStream) {
					s.Accept()
					s.Send([]byte("one"))
					s.Finish(0, "")
				}}, hostsim.Config{})
				r.run("rh=gopen:a:c,reply:200:x;" + script)
				if err := r.h.Close(within(r.T)); err != nil {
					r.Fatal(err)
				}
				wantViolation(r, violation)
			})
		})
	}
}

// The canary's stream is accepted and never reaches the server; those of the other VMs do.
func TestCanaryStreamsAreNeverSent(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{PluginConfig: []byte("configure=gopen:a:c,gsend:a:x")})
		r.wantLog("canary", "configure: gopen:a:c = Ok 2", "configure: gsend:a:x = Ok")
		threads := map[string]bool{}
		for range 2 {
			s, err := cluster.NextStream(within(r.T))
			if err != nil {
				r.Fatal(err)
			}
			threads[s.Thread] = true
		}
		want(r, "streams of main and worker", threads["main"] && threads["worker-0"], true)
	})
}

// A trap leaves the VM's streams open, and nothing more comes from them. A new VM cuts them.
func TestStreamOfDeadVM(t *testing.T) {
	eachGuest(t, func(r *rig) {
		cluster := &hostsimtest.Cluster{}
		callRig(r, cluster, hostsim.Config{FailurePolicy: hostsim.FailReload, ReloadBackoff: 1})
		r.run("rh=gopen:a:c,reply:200:x;gr=trap")
		s, err := cluster.NextStream(within(r.T))
		if err != nil {
			r.Fatal(err)
		}
		s.Accept()
		s.Send([]byte("x"))
		r.wantLog("worker-0", "rh 7 end", "rh: gopen:a:c = Ok 2", "rh: reply:200:x = Ok", "gm a 2", "gr a 1 x")
		want(r, "traps", len(r.h.Traps()), 1)
		s.Send([]byte("y"))
		r.wantLog("worker-0")
		select {
		case <-s.Cut():
			r.Error("the dead VM's stream was cut")
		default:
		}
		r.clock.Advance(time.Second)
		r.run("rh=reply:200:x")
		await(r, s.Cut(), "the end of the stream")
	})
}

// A filter cannot open streams without a bound, and a server cannot send without one.
func TestStreamsAreBounded(t *testing.T) {
	r := newRig(t, hostsim.Native(func(h hostsim.HostCalls) hostsim.Guest { return &manyStreams{h: h} }))
	cluster := &hostsimtest.Cluster{StreamHandler: func(*hostsimtest.ServerStream) {}}
	callRig(r, cluster, hostsim.Config{})
	hostsimtest.Open(r, r.h, 0).Request(hostsimtest.Get("/"))
	r.wantLog("worker-0", "65536 streams, then InternalFailure")

	r = newRig(t, nativeScript())
	cluster = &hostsimtest.Cluster{}
	callRig(r, cluster, hostsim.Config{})
	r.run("rh=gopen:a:c,reply:200:x;gc=gclose:a")
	s, err := cluster.NextStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	r.logs.take("worker-0")
	s.Events.Message(make([]byte, 257<<20))
	s.Send([]byte("late"))
	r.wantLog("worker-0", "gc a 8 status 8 too many bytes wait for the filter", "gc: gclose:a = Ok")
	await(t, s.Cut(), "the end of the stream")
}

type manyStreams struct {
	hostsim.DefaultGuest
	h hostsim.HostCalls
}

func (g *manyStreams) OnRequestHeaders(uint32, int, bool) (hostsim.Action, error) {
	for n := 0; ; n++ {
		if _, st := g.h.GRPCStream([]byte("\x0a\x03\x0a\x01c"), "a.B", "C", nil); st != hostsim.StatusOK {
			g.h.Log(hostsim.LogInfo, fmt.Sprintf("%d streams, then %v", n, st))
			return hostsim.ActionContinue, nil
		}
	}
}
