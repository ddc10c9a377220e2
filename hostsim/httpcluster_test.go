package hostsim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

func httpCluster(t *testing.T, cfg hostsim.HTTPClusterConfig) *hostsim.HTTPCluster {
	t.Helper()
	c, err := hostsim.NewHTTPCluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

// call makes a call and waits for its answer.
func call(t *testing.T, c hostsim.Cluster, method, path, body string, nameValues ...string) hostsim.CallResponse {
	t.Helper()
	h := append(hostsim.H(":method", method, ":path", path, ":authority", "callee.test"), hostsim.H(nameValues...)...)
	answer := make(chan hostsim.CallResponse, 1)
	if err := c.Call(context.Background(), hostsim.CallRequest{Headers: h, Body: []byte(body)}, func(r hostsim.CallResponse) { answer <- r }); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-answer:
		return r
	case <-time.After(hostsimtest.Patience):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func TestHTTPClusterConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  hostsim.HTTPClusterConfig
		want string
	}{
		{hostsim.HTTPClusterConfig{}, `Address is ""`},
		{hostsim.HTTPClusterConfig{Address: "host"}, `Address is "host", it must be host:port`},
		{hostsim.HTTPClusterConfig{Address: "h:1", MaxConnections: -1}, "MaxConnections is -1, allowed are 1 to 65536"},
		{hostsim.HTTPClusterConfig{Address: "h:1", MaxPending: 70000}, "MaxPending is 70000"},
		{hostsim.HTTPClusterConfig{Address: "h:1", ConnectTimeout: -1}, "must not be negative"},
		{hostsim.HTTPClusterConfig{Address: "h:1", MaxMessageBytes: -1}, "must not be negative"},
	} {
		if _, err := hostsim.NewHTTPCluster(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error is %v, want %q in it", err, c.want)
		}
	}
}

// What the guest asked for is what arrives, and what is answered comes back.
func TestHTTPClusterRoundTrip(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Got", fmt.Sprintf("%s %s %s %d %q %q %q", r.Method, r.RequestURI, r.Host, r.ContentLength, body, r.Header.Values("x-a"), r.Header.Values("User-Agent")))
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "hello")
	})
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String()})
	r := call(t, c, "POST", "/p%2Fq?x=1&y=%20", "ping", "x-a", "1", "x-a", "2", "content-length", "99")
	want(t, "failure", r.Failure, hostsim.CallOK)
	want(t, "first header", r.Headers[0], hostsim.Header{":status", "201"})
	want(t, "arrived", r.Headers.Get("x-got"), `POST /p%2Fq?x=1&y=%20 callee.test 4 "ping" ["1" "2"] []`)
	want(t, "cookies", strings.Join(r.Headers.Values("set-cookie"), " "), "a=1 b=2")
	want(t, "body", string(r.Body), "hello")
	// Envoy sends these as they are, although a URL must not have them.
	for _, path := range []string{"/p|q", `/a"b<c>d^e{f}?g|h`, "//p/../q"} {
		r = call(t, c, "GET", path, "")
		want(t, "raw path", r.Headers.Get("x-got"), "GET "+path+` callee.test 0 "" [] []`)
	}
	r = call(t, c, "GET", "/", "")
	want(t, "arrived without a body", r.Headers.Get("x-got"), `GET / callee.test 0 "" [] []`)
	for _, path := range []string{"nowhere", "http://elsewhere/", "/line\nbreak"} {
		want(t, fmt.Sprintf("path %q", path), call(t, c, "GET", path, "").Failure, hostsim.CallReset)
	}
}

// Nobody listens; the peer hangs up before, or in the middle of, its answer; the answer
// is too long.
func TestHTTPClusterFailures(t *testing.T) {
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: hostsimtest.RefusingAddress(t)})
	r := call(t, c, "POST", "/", "x")
	want(t, "nobody listens", r.Failure, hostsim.CallConnectFailed)
	if !strings.Contains(r.Detail, "connection refused") {
		t.Errorf("detail is %q", r.Detail)
	}
	var mu sync.Mutex
	tries := map[string]int{}
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		tries[r.Method+r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/before":
			panic(http.ErrAbortHandler)
		case "/middle":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/long":
			_, _ = w.Write(make([]byte, 101))
		case "/fits":
			_, _ = w.Write(make([]byte, 100))
		case "/16MiB":
			_, _ = w.Write(make([]byte, 16<<20+1))
		case "/32MiB":
			_, _ = w.Write(make([]byte, 32<<20+1))
		}
	})
	address := srv.Listener.Addr().String()
	c = httpCluster(t, hostsim.HTTPClusterConfig{Address: address, MaxResponseBytes: 100})
	want(t, "before headers", call(t, c, "POST", "/before", "x").Failure, hostsim.CallReset)
	// GET and an Idempotency-Key would make net/http try again on a kept connection.
	call(t, c, "GET", "/fits", "")
	want(t, "GET before headers", call(t, c, "GET", "/before", "").Failure, hostsim.CallReset)
	call(t, c, "GET", "/fits", "")
	want(t, "keyed POST before headers", call(t, c, "POST", "/before", "x", "idempotency-key", "k").Failure, hostsim.CallReset)
	want(t, "mid answer", call(t, c, "GET", "/middle", "").Failure, hostsim.CallResetMidAnswer)
	want(t, "too long", call(t, c, "GET", "/long", "").Failure, hostsim.CallResetMidAnswer)
	want(t, "just fits", call(t, c, "GET", "/fits", "").Failure, hostsim.CallOK)
	c = httpCluster(t, hostsim.HTTPClusterConfig{Address: address})
	r = call(t, c, "GET", "/16MiB", "")
	want(t, "within Envoy's limit", fmt.Sprint(r.Failure, len(r.Body)), fmt.Sprint(hostsim.CallOK, 16<<20+1))
	want(t, "beyond Envoy's limit", call(t, c, "GET", "/32MiB", "").Failure, hostsim.CallResetMidAnswer)
	mu.Lock()
	defer mu.Unlock()
	want(t, "tries of GET /before", tries["GET/before"], 1)
	want(t, "tries of POST /before", tries["POST/before"], 2)
}

// The circuit breaker refuses at once what is beyond connections and pending calls.
func TestHTTPClusterCircuitBreaker(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	srv := serve(t, func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-release })
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String(), MaxConnections: 1, MaxPending: 1})
	answers := make(chan hostsim.CallResponse, 2)
	req := hostsim.CallRequest{Headers: hostsim.H(":method", "GET", ":path", "/", ":authority", "a")}
	for range 2 {
		if err := c.Call(context.Background(), req, func(r hostsim.CallResponse) { answers <- r }); err != nil {
			t.Fatal(err)
		}
	}
	<-entered
	if err := c.Call(context.Background(), req, func(hostsim.CallResponse) { t.Error("answered") }); !errors.Is(err, hostsim.ErrCircuitBreaker) {
		t.Errorf("third call: %v", err)
	}
	close(release)
	for range 2 {
		want(t, "failure", (<-answers).Failure, hostsim.CallOK)
	}
	c.Close()
	if err := c.Call(context.Background(), req, nil); !errors.Is(err, hostsim.ErrNoHealthyHost) {
		t.Errorf("after Close: %v", err)
	}
}

// End to end: a wasm guest calls a real server; a call whose caller's patience ends is
// cancelled.
func TestHTTPClusterFromGuest(t *testing.T) {
	eachGuest(t, func(r *rig) {
		hanging, gone := make(chan struct{}), make(chan struct{})
		srv := serve(r.T, func(w http.ResponseWriter, req *http.Request) {
			if body, err := io.ReadAll(req.Body); err != nil || string(body) != "hang" {
				_, _ = io.WriteString(w, "pong")
				return
			}
			close(hanging)
			<-req.Context().Done()
			close(gone)
		})
		c := httpCluster(r.T, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String()})
		r.start(hostsim.Config{Clusters: map[string]hostsim.Cluster{"c": c}})
		s, h := r.open("rh=pause,call:c:60000;cb=get:6::status,buffer:4:0:9,effective:self,reply:200")
		s.Request(h)
		await(r, s.Done(), "the answer")
		lines := r.logs.take("worker-0")
		want(r, "answer", strings.Join(lines[3:5], "; "), "cb: get:6::status = Ok 200; cb: buffer:4:0:9 = Ok pong")
		s, h = r.open("rh=pause,call:c:1000::hang;cb=get:6::status,effective:self,reply:504")
		s.Request(h)
		await(r, hanging, "the call's arrival")
		r.clock.Advance(time.Second)
		await(r, s.Done(), "the timeout")
		await(r, gone, "the cancellation at the server")
		want(r, "downstream", s.Down.Log(), "headers 504 end")
	})
}

// Envoy's router says that a call is internal, how long it may take, and how long an answer from outside took.
func TestHTTPClusterAddsWhatEnvoyAdds(t *testing.T) {
	seen := make(chan http.Header, 1)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.Header().Set("X-Envoy-Upstream-Service-Time", "forged")
	})
	c := httpCluster(t, hostsim.HTTPClusterConfig{Address: srv.Listener.Addr().String()})
	answer := make(chan hostsim.CallResponse, 1)
	q := hostsim.CallRequest{Headers: hostsim.H(":method", "POST", ":path", "/", ":authority", "a"), Timeout: 7 * time.Second}
	if err := c.Call(t.Context(), q, func(r hostsim.CallResponse) { answer <- r }); err != nil {
		t.Fatal(err)
	}
	r := <-answer
	if h := <-seen; h.Get("X-Envoy-Internal") != "true" || h.Get("X-Envoy-Expected-Rq-Timeout-Ms") != "7000" {
		t.Errorf("the callee saw %v", h)
	}
	if v := r.Headers.Values("x-envoy-upstream-service-time"); len(v) != 1 || v[0] == "forged" {
		t.Errorf("service time %q", v)
	}
	// An answer that the proxy makes has none.
	srv.Close()
	if r := call(t, c, "POST", "/", ""); r.Failure == hostsim.CallOK || r.Headers.Has("x-envoy-upstream-service-time") {
		t.Errorf("without a callee: %+v", r)
	}
}
