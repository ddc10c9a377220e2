package hostsim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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
		r.wantLog("worker-0", "gt a 2", "gt: get:5:x-t = Ok 2", "gc a 5 status 5 no such thing", "gc: gclose:a = Ok", "gc: gclose:a = NotFound", "gc: status = 5 no such thing")
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
		servers[1].Break(14)
		r.wantLog("worker-0", "gt b 0", "gc b 14 status 14 ", "gc: gcancel:b = Ok", "gc: gsend:b:x = NotFound")
		if err := r.h.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		await(t, servers[2].Cut(), "the end of the host's stream")
		hostsimtest.Healthy(r, r.h)
	})
}

// grpcServer answers streams of gRPC over HTTP/2 without TLS.
func grpcServer(t *testing.T, h http.HandlerFunc) *hostsim.HTTPCluster {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return httpCluster(t, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String(), HTTP2: true})
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
	e.want(t, "message ", "message two", "trailers 9", "close 9 so it is")
	// A stream that has only its end left.
	if s, err = c.OpenStream(context.Background(), hostsim.StreamRequest{Service: "a.B", Method: "C", Authority: "auth"}, e.stream()); err != nil {
		t.Fatal(err)
	}
	s.Send(nil, true)
	e.want(t, "metadata 200 /a.B/C auth application/grpc ", "trailers 9", "close 9 so it is")
}
