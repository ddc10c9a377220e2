package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// How an upstream fails decides the status, the flag that the filter reads, and the
// code details.
func TestUpstreamFailureDecidesStatusAndFlag(t *testing.T) {
	refused := hostsimtest.RefusingAddress(t)
	hangs := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // a server looks for the client's end only behind the body
		<-r.Context().Done()
	})
	drops := newUpstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, tc := range []struct {
		name, upstream string
		change         func(*options)
		status         int
		flag           hostsim.ResponseFlags
		details        string
	}{
		{"refused", refused, nil, 503, hostsim.FlagConnectFailure, "upstream_reset_before_response_started{"},
		{"unknown name", "no..such.host:80", nil, 503, hostsim.FlagNoHealthyUpstream, "no_healthy_upstream"},
		{"dropped", drops.addr(), nil, 503, hostsim.FlagUpstreamTermination, "upstream_reset_before_response_started{"},
		{"slow", hangs.addr(), func(o *options) { o.upstreamTimeout = 20 * time.Millisecond }, 504, hostsim.FlagUpstreamTimeout, "response_timeout"},
		{"idle", hangs.addr(), func(o *options) { o.idleTimeout = 2 * time.Second }, 504, hostsim.FlagStreamIdleTimeout, "stream_idle_timeout"},
	} {
		for _, body := range []string{"", "body"} {
			t.Run(tc.name+"/"+body, func(t *testing.T) {
				r := up(t, guest{responseHeaders: tellFlags}, tc.upstream, tc.change)
				a := send(t, client(t), request(t, "POST", r.url, strings.NewReader(body)))
				if a.StatusCode != tc.status || a.Header.Get("X-Flags") != fmt.Sprintf("%x", tc.flag) ||
					!strings.HasPrefix(a.Header.Get("X-Details"), tc.details) {
					t.Errorf("%d, flags %s, details %q; want %d, %x, %q", a.StatusCode, a.Header.Get("X-Flags"),
						a.Header.Get("X-Details"), tc.status, tc.flag, tc.details)
				}
			})
		}
	}
}

// Beyond the circuit breaker requests are refused at once: of three, one is at upstream,
// one waits, and one is told no.
func TestBreakerRefusesWhatIsTooMuch(t *testing.T) {
	release := make(chan struct{})
	u := newUpstream(t, func(http.ResponseWriter, *http.Request) { <-release })
	r := up(t, guest{responseHeaders: tellFlags}, u.addr(), func(o *options) { o.maxConnections, o.maxPending = 1, 1 })
	type result struct {
		status int
		flags  string
	}
	results := make(chan result, 3)
	for range 3 {
		c, req := client(t), request(t, "GET", r.url, nil)
		go func() {
			resp, err := c.Do(req)
			if err != nil {
				results <- result{flags: err.Error()}
				return
			}
			resp.Body.Close()
			results <- result{resp.StatusCode, resp.Header.Get("X-Flags")}
		}()
	}
	if got, want := <-results, (result{503, fmt.Sprintf("%x", hostsim.FlagUpstreamOverflow)}); got != want {
		t.Errorf("first answer %v, want %v", got, want)
	}
	close(release)
	for range 2 {
		if got := <-results; got.status != 200 {
			t.Errorf("a request within the limits got %v", got)
		}
	}
}

// Upstream breaks off in the middle of its answer: the client must see that.
func TestClientSeesACutAnswer(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", "100")
		}
		fmt.Fprint(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	ended := make(endings, 2)
	r := up(t, guest{log: ended.log}, u.addr(), nil)
	for _, path := range []string{"/sized", "/chunked"} {
		resp, err := client(t).Do(request(t, "GET", r.url+path, nil))
		if err == nil {
			if body, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("%s: a cut answer looks whole: %q", path, body)
			}
			resp.Body.Close()
		}
		if f := ended.wait(t); f != hostsim.FlagUpstreamTermination {
			t.Errorf("%s: flags %x", path, f)
		}
	}
}

// The client leaves while upstream works: the upstream request is cancelled, the stream
// is destroyed with the flag DC, and no response callback comes.
func TestLeavingClientCancelsTheUpstreamRequest(t *testing.T) {
	for name, body := range map[string]string{"no body": "", "with a body": "body", "in the middle of its body": "bo"} {
		t.Run(name, func(t *testing.T) {
			arrived, cancelled := make(chan struct{}), make(chan struct{})
			u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
				close(arrived)
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
				close(cancelled)
			})
			ended := make(endings, 1)
			var answers atomic.Int32
			r := up(t, guest{log: ended.log, responseHeaders: func(*guest, uint32, bool) hostsim.Action {
				answers.Add(1)
				return hostsim.ActionContinue
			}}, u.addr(), nil)
			c := r.dial(t)
			length := min(len(body), 1) * 4
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", length, body)
			<-arrived
			c.Close()
			if f := ended.wait(t); f != hostsim.FlagDownstreamReset {
				t.Errorf("flags %x", f)
			}
			select {
			case <-cancelled:
			case <-time.After(patience):
				t.Fatal("upstream's request is not cancelled")
			}
			if answers.Load() != 0 {
				t.Error("a response callback was called")
			}
		})
	}
}

// The client leaves while the filter holds the request: upstream never hears of it.
func TestClientLeavesAPausedStream(t *testing.T) {
	for _, body := range []string{"", "body"} {
		u := newUpstream(t, echo)
		ended, paused := make(endings, 1), make(chan struct{})
		r := up(t, guest{log: ended.log, requestHeaders: func(*guest, uint32, bool) hostsim.Action {
			close(paused)
			return hostsim.ActionPause
		}}, u.addr(), nil)
		c := r.dial(t)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		<-paused
		c.Close()
		if f := ended.wait(t); f != hostsim.FlagDownstreamReset {
			t.Errorf("flags %x", f)
		}
		if n := u.connections(); n != 0 {
			t.Errorf("%d connections to upstream", n)
		}
	}
}

// The filter closes the stream: the client's connection goes without an answer.
func TestFilterClosesTheStream(t *testing.T) {
	u := newUpstream(t, echo)
	r := up(t, guest{requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		g.CloseStream(hostsim.StreamTypeRequest)
		return hostsim.ActionPause
	}}, u.addr(), nil)
	c := r.dial(t)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("the client read %q, %v", b, err)
	}
}

// A request that meets a connection which upstream closes under it fails; it is not
// sent again, however replayable its headers make it look.
func TestNeverSentTwice(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var seen atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // answers one request and reads the next
				defer c.Close()
				br := bufio.NewReader(c)
				for i := range 2 {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					seen.Add(1)
					if i == 0 {
						fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				}
			}()
		}
	}()
	for _, method := range []string{"POST", "GET", "DELETE"} {
		seen.Store(0)
		r := up(t, guest{}, l.Addr().String(), nil)
		for i, want := range []int{200, 503} {
			req := request(t, method, r.url, nil)
			req.Header.Set("Idempotency-Key", "k")
			if a := send(t, client(t), req); a.StatusCode != want {
				t.Errorf("%s %d: %d, want %d", method, i, a.StatusCode, want)
			}
		}
		if n := seen.Load(); n != 2 {
			t.Errorf("%s: upstream saw %d requests, want 2", method, n)
		}
	}
}

// A client that stops reading neither fills the memory nor holds the stream forever.
func TestClientThatDoesNotRead(t *testing.T) {
	const offered = 256 << 20
	stopped := make(chan int, 1)
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		piece, n := make([]byte, 64<<10), 0
		for n < offered {
			if _, err := w.Write(piece); err != nil {
				break
			}
			n += len(piece)
		}
		stopped <- n
	})
	r := up(t, guest{}, u.addr(), func(o *options) { o.idleTimeout = 2 * time.Second })
	c := r.dial(t)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	select {
	case n := <-stopped:
		if n > offered/4 {
			t.Errorf("%d MiB were taken for a client that read nothing", n>>20)
		}
	case <-time.After(patience):
		t.Error("upstream is still sending")
	}
}

// A small window suffices for a large answer to a slow client.
func TestSlowClientGetsEverything(t *testing.T) {
	const size = 8 << 20
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 32<<10)
		for n := 0; n < size; n += len(piece) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	r := up(t, guest{}, u.addr(), func(o *options) { o.bufferLimit = 1 << 10 })
	resp, err := client(t).Do(request(t, "GET", r.url, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, buf := 0, make([]byte, 4<<10)
	for {
		k, err := resp.Body.Read(buf)
		n += k
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != size {
		t.Errorf("%d bytes, want %d", n, size)
	}
}

// Draining: no new connection, /readyz 503, the running request ends well, exit code 0.
func TestDrainingFinishesRunningRequests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-release
		fmt.Fprint(w, "done")
	})
	r := up(t, guest{}, u.addr(), nil)
	got := make(chan answer, 1)
	req := request(t, "GET", r.url, nil)
	c := client(t)
	go func() {
		resp, err := c.Do(req)
		if err != nil {
			got <- answer{body: err.Error()}
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- answer{resp, string(b)}
	}()
	<-arrived
	r.drain()
	for { // until the listener is closed
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			break
		}
		conn.Close()
	}
	if a := get(t, "http://"+r.adminL.Addr().String()+"/readyz"); a.StatusCode != 503 {
		t.Errorf("/readyz: %d", a.StatusCode)
	}
	close(release)
	if a := <-got; a.body != "done" {
		t.Errorf("the running request got %q", a.body)
	}
	if code := <-r.code; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	r.code <- 0
}

// A drain that takes too long, or a second signal, cuts what is left.
func TestDrainIsBounded(t *testing.T) {
	for _, how := range []string{"timeout", "second signal"} {
		arrived := make(chan struct{})
		u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		})
		ended := make(endings, 1)
		r := up(t, guest{log: ended.log}, u.addr(), func(o *options) {
			if how == "timeout" {
				o.drainTimeout = 10 * time.Millisecond
			}
		})
		c := r.dial(t)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		<-arrived
		r.drain()
		if how == "second signal" {
			r.cut()
		}
		if code := <-r.code; code != exitOK {
			t.Errorf("%s: exit code %d", how, code)
		}
		r.code <- 0
		if b, err := io.ReadAll(c); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the client read %q, %v", how, b, err)
		}
		ended.wait(t)
	}
}

// A filter that never finishes does not hold the shutdown beyond the drain's time.
func TestFilterThatDoesNotFinish(t *testing.T) {
	u := newUpstream(t, echo)
	r := up(t, guest{done: func(*guest, uint32) bool { return false }}, u.addr(), func(o *options) { o.drainTimeout = 10 * time.Millisecond })
	get(t, r.url)
	r.drain()
	if code := <-r.code; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	r.code <- 0
	if !strings.Contains(r.logs.String(), "the filter had not finished") {
		t.Error("the shutdown does not tell")
	}
}

// Nothing is left behind when the start fails.
func TestFailedStartLeavesNothingBehind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wasm, conf := files(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--listen", l.Addr().String()}, exitFail, "--listen"},
		{[]string{"--listen", "127.0.0.1:0", "--admin", l.Addr().String()}, exitFail, "--admin"},
	} {
		var stderr strings.Builder
		args := append([]string{"--wasm", wasm, "--config", conf, "--upstream", "127.0.0.1:1"}, tc.args...)
		code := run(t.Context(), t.Context(), args, io.Discard, &stderr)
		if code != tc.code || !strings.Contains(stderr.String(), tc.want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, %q", tc.args, code, stderr.String())
		}
	}
}
