package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// echo answers with the request's body and tells how it came.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	h["Content-Type"] = nil
	h.Set("X-Path", r.RequestURI)
	h.Set("X-Length", strconv.FormatInt(r.ContentLength, 10))
	h.Set("X-Encoding", strings.Join(r.TransferEncoding, ","))
	for k, v := range r.Trailer {
		h.Set("X-Trailer-"+k, strings.Join(v, ","))
	}
	if r.URL.Query().Has("chunked") {
		h.Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		http.NewResponseController(w).Flush()
		w.Write(body)
		h.Set("X-Sum", strconv.Itoa(len(body)))
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusCreated)
	w.Write(body)
}

// buffering is a filter that holds the whole request and the whole answer.
var buffering = guest{
	requestBody:  func(_ *guest, _ uint32, _ int, end bool) hostsim.Action { return pauseUnless(end) },
	responseBody: func(_ *guest, _ uint32, _ int, end bool) hostsim.Action { return pauseUnless(end) },
}

func pauseUnless(end bool) hostsim.Action {
	if end {
		return hostsim.ActionContinue
	}
	return hostsim.ActionPause
}

func TestBodiesOfAllSizesPass(t *testing.T) {
	up1 := newUpstream(t, echo)
	filters := map[string]guest{"pass-through": {}, "buffering": buffering}
	for name, g := range filters {
		r := up(t, g, up1.addr(), nil)
		c := client(t)
		for _, size := range []int{0, 1, 1000, 60 << 10, 4 << 20} {
			if name == "buffering" && size > r.o.bufferLimit {
				continue
			}
			body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			for _, chunkedRequest := range []bool{false, true} {
				for _, query := range []string{"", "?chunked"} {
					t.Run(fmt.Sprintf("%s/%d bytes/chunked %v%s", name, size, chunkedRequest, query), func(t *testing.T) {
						var in io.Reader = bytes.NewReader(body)
						wantLength, wantEncoding := strconv.Itoa(size), ""
						if chunkedRequest {
							in = io.MultiReader(in) // hides the length
							wantLength, wantEncoding = "-1", "chunked"
						}
						a := send(t, c, request(t, "POST", r.url+"/a//b%2f"+query, in))
						if a.StatusCode != 201 || a.body != string(body) {
							t.Fatalf("%d with %d bytes, want 201 with %d", a.StatusCode, len(a.body), size)
						}
						if a.Header.Get("X-Length") != wantLength || a.Header.Get("X-Encoding") != wantEncoding {
							t.Errorf("upstream saw length %s, encoding %q", a.Header.Get("X-Length"), a.Header.Get("X-Encoding"))
						}
						if a.Header.Get("X-Path") != "/a//b%2f"+query {
							t.Errorf("upstream saw %s", a.Header.Get("X-Path"))
						}
						if query == "" && a.ContentLength != int64(size) || query != "" && a.ContentLength != -1 {
							t.Errorf("the answer's length is %d", a.ContentLength)
						}
						if query != "" && a.Trailer.Get("X-Sum") != strconv.Itoa(size) {
							t.Errorf("trailers %v", a.Trailer)
						}
						if a.Header.Get("Server") != "oncegate-gateway" || a.Header.Get("Date") == "" || a.Header["Content-Type"] != nil {
							t.Errorf("headers %v", a.Header)
						}
					})
				}
			}
		}
	}
}

func TestRequestTrailersPass(t *testing.T) {
	u := newUpstream(t, echo)
	r := up(t, guest{}, u.addr(), nil)
	req := request(t, "POST", r.url, io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Check": {"42"}}
	if a := send(t, client(t), req); a.body != "body" || a.Header.Get("X-Trailer-X-Check") != "42" {
		t.Errorf("%q, headers %v", a.body, a.Header)
	}
}

func TestAnswersWithoutBody(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "HEAD" {
			w.Header().Set("Content-Length", "1234")
			return
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	})
	r := up(t, guest{}, u.addr(), nil)
	c := client(t)
	if a := send(t, c, request(t, "HEAD", r.url, nil)); a.StatusCode != 200 || a.ContentLength != 1234 || a.body != "" {
		t.Errorf("HEAD: %d, length %d", a.StatusCode, a.ContentLength)
	}
	for _, status := range []int{200, 204, 304, 404, 500} {
		a := send(t, c, request(t, "GET", r.url+"/"+strconv.Itoa(status), nil))
		if a.StatusCode != status || a.body != "" || len(a.TransferEncoding) > 0 {
			t.Errorf("%d: %d, %q, %v", status, a.StatusCode, a.body, a.TransferEncoding)
		}
	}
	if u.connections() != 1 {
		t.Errorf("%d connections to upstream", u.connections())
	}
}

// One connection on each side carries all requests, also those without a body that the
// filter answers.
func TestOneConnectionCarriesAllRequests(t *testing.T) {
	u := newUpstream(t, echo)
	g := guest{requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		if path, _ := g.GetHeaderMapValue(hostsim.MapRequestHeaders, ":path"); path == "/local" {
			g.SendLocalResponse(409, "", []byte("no"), nil, -1)
			return hostsim.ActionPause
		}
		return hostsim.ActionContinue
	}}
	r := up(t, g, u.addr(), nil)
	c := r.dial(t)
	br := bufio.NewReader(c)
	for i := range 20 {
		path, want := "/up", 201
		if i%2 == 1 {
			path, want = "/local", 409
		}
		body := strings.Repeat("x", 20000)
		if path == "/local" {
			body = ""
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want || resp.Close {
			t.Fatalf("request %d: %d, close %v", i, resp.StatusCode, resp.Close)
		}
	}
	if u.connections() != 1 {
		t.Errorf("%d connections to upstream", u.connections())
	}
}

// An answer that begins before the request is complete closes the connection, even if the
// body came in the same packet.
func TestEarlyAnswerCloses(t *testing.T) {
	u := newUpstream(t, echo)
	g := guest{requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		g.SendLocalResponse(409, "", []byte("no"), nil, -1)
		return hostsim.ActionPause
	}}
	r := up(t, g, u.addr(), nil)
	c := r.dial(t)
	br := bufio.NewReader(c)
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "no" || resp.StatusCode != 409 || !resp.Close {
		t.Errorf("%d %q, close %v, %v", resp.StatusCode, body, resp.Close, err)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("after the answer: %v, want EOF", err)
	}
}

// An early answer to a body that is too long to read reaches the client whole, though
// the connection is then closed on a client that is still sending.
func TestEarlyAnswerToALongBody(t *testing.T) {
	u := newUpstream(t, echo)
	g := guest{requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		g.SendLocalResponse(422, "", bytes.Repeat([]byte("n"), 30000), nil, -1)
		return hostsim.ActionPause
	}}
	r := up(t, g, u.addr(), nil)
	c := r.dial(t)
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n")
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 600<<10))
		sent <- err
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || len(body) != 30000 || resp.StatusCode != 422 || !resp.Close {
		t.Errorf("%d with %d bytes, close %v, %v", resp.StatusCode, len(body), resp.Close, err)
	}
	if err := <-sent; err != nil {
		t.Errorf("the client could not send: %v", err)
	}
	if n := u.connections(); n != 0 {
		t.Errorf("%d connections to upstream", n)
	}
}

func TestExpectContinueIsAnswered(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Expect", r.Header.Get("Expect"))
		echo(w, r)
	})
	r := up(t, guest{}, u.addr(), nil)
	c := r.dial(t)
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 100 {
		t.Fatalf("%v, %v", resp, err)
	}
	fmt.Fprint(c, "body")
	if resp, err = http.ReadResponse(br, nil); err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 201 || string(body) != "body" || resp.Header.Get("X-Expect") != "" {
		t.Errorf("%d %q, upstream was asked to expect %q", resp.StatusCode, body, resp.Header.Get("X-Expect"))
	}
}

// What the filter sees and changes.
func TestTheFiltersView(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("X-Added")+r.Header.Get("X-Drop"))
		w.Header().Set("X-Forwarded", r.Header.Get("X-Forwarded-Proto"))
		echo(w, r)
	})
	seen := make(chan string, 2)
	g := guest{
		requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
			pairs, _ := g.GetHeaderMapPairs(hostsim.MapRequestHeaders)
			var b strings.Builder
			for _, p := range pairs {
				if p[0] != "x-request-id" && p[0] != "user-agent" && p[0] != ":authority" {
					b.WriteString(p[0] + "=" + p[1] + ";")
				}
			}
			if len(pairs.Get("x-request-id")) != 36 {
				b.WriteString("no x-request-id")
			}
			seen <- b.String()
			g.AddHeaderMapValue(hostsim.MapRequestHeaders, "x-added", "added")
			g.RemoveHeaderMapValue(hostsim.MapRequestHeaders, "x-drop")
			return hostsim.ActionContinue
		},
		responseHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
			pairs, _ := g.GetHeaderMapPairs(hostsim.MapResponseHeaders)
			up, _ := g.GetProperty("upstream\x00address")
			route, _ := g.GetProperty("xds\x00route_name")
			seen <- fmt.Sprintf("%s %s %v %v %s", pairs.Get(":status"), pairs.Get("transfer-encoding"),
				pairs.Has("x-envoy-upstream-service-time"), string(up) == u.addr(), route)
			g.ReplaceHeaderMapValue(hostsim.MapResponseHeaders, ":status", "299")
			return hostsim.ActionContinue
		},
	}
	r := up(t, g, u.addr(), nil)
	req := request(t, "PUT", r.url+"/x?chunked", strings.NewReader("b"))
	req.Header.Set("X-Drop", "dropped")
	a := send(t, client(t), req)
	if a.StatusCode != 299 || a.Header.Get("X-Seen") != "added" || a.Header.Get("X-Forwarded") != "http" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	want := ":path=/x?chunked;:method=PUT;:scheme=http;content-length=1;x-drop=dropped;x-forwarded-proto=http;"
	if got := <-seen; got != want {
		t.Errorf("the filter saw\n%s\nwant\n%s", got, want)
	}
	if got := <-seen; got != "201 chunked true true default" {
		t.Errorf("the filter saw the answer as %q", got)
	}
}

// The filter sees the variables that were named, and nothing else of the gateway's environment.
func TestTheFiltersEnvironment(t *testing.T) {
	g := guest{responseHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		g.AddHeaderMapValue(hostsim.MapResponseHeaders, "x-environ", strings.Join(g.Environ(), "|"))
		return hostsim.ActionContinue
	}}
	r := up(t, g, newUpstream(t, echo).addr(), func(o *options) { o.environment = map[string]string{"B": "2", "A": "1"} })
	resp, err := http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("X-Environ"); got != "A=1|B=2" {
		t.Errorf("the filter's environment is %q", got)
	}
}

// asking is a filter that asks a cluster by a gRPC stream, and answers with its reply or with how the stream ended.
type asking struct {
	hostsim.DefaultGuest
	hostsim.HostCalls
	client uint32
}

func (g *asking) OnRequestHeaders(id uint32, _ int, _ bool) (hostsim.Action, error) {
	g.client = id
	cluster, _ := g.GetHeaderMapValue(hostsim.MapRequestHeaders, "x-cluster")
	service := append([]byte{0x0a, byte(2 + len(cluster)), 0x0a, byte(len(cluster))}, cluster...)
	token, status := g.GRPCStream(service, "test.Service", "Ask", nil)
	if status != hostsim.StatusOK {
		return hostsim.ActionPause, fmt.Errorf("no stream: status %v", status)
	}
	g.GRPCSend(token, []byte("hello"), true)
	return hostsim.ActionPause, nil
}

// answer answers the client, once.
func (g *asking) answer(b []byte) {
	if g.client != 0 {
		g.SetEffectiveContext(g.client)
		g.SendLocalResponse(http.StatusOK, "", b, nil, -1)
		g.client = 0
	}
}

func (g *asking) OnGRPCReceive(_, _ uint32, size int) error {
	b, _ := g.GetBufferBytes(hostsim.BufferGRPCMessage, 0, uint32(size))
	g.answer(b)
	return nil
}

func (g *asking) OnGRPCClose(_, token, status uint32) error {
	g.GRPCCancel(token)
	g.answer(fmt.Appendf(nil, "the stream ended with status %d", status))
	return nil
}

// A filter's stream reaches a cluster by HTTP/2 if its address begins with h2c://, and otherwise by HTTP/1.1, which
// servers of gRPC refuse.
func TestStreamsNeedAClusterOfHTTP2(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.URL.Path != "/test.Service/Ask" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		if _, err := io.Copy(w, r.Body); err != nil {
			t.Error(err)
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	address := server.Listener.Addr().String()
	source := hostsim.Native(func(c hostsim.HostCalls) hostsim.Guest { return &asking{HostCalls: c} })
	r := upWith(t, source, newUpstream(t, echo).addr(), func(o *options) {
		o.clusters = map[string]string{"h2c": http2Scheme + address, "plain": address}
	})
	for cluster, want := range map[string]string{"h2c": "hello", "plain": "the stream ended with status 12"} {
		req := request(t, http.MethodGet, r.url, nil)
		req.Header.Set("X-Cluster", cluster)
		if a := send(t, client(t), req); a.StatusCode != http.StatusOK || a.body != want {
			t.Errorf("cluster %s: %d %q, want %q", cluster, a.StatusCode, a.body, want)
		}
	}
}

func TestRefusedByTheGateway(t *testing.T) {
	u := newUpstream(t, echo)
	r := up(t, guest{}, u.addr(), nil)
	for _, tc := range []struct {
		raw    string
		status int
	}{
		{"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 403},
		{"GET / HTTP/1.0\r\nHost: h\r\n\r\n", 426},
		{"GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431},
		{"GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: 1\r\n", 101) + "\r\n", 431},
		{"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400},
		{"POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: a\x01b\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{"nonsense\r\n\r\n", 400},
	} {
		c := r.dial(t)
		fmt.Fprint(c, tc.raw)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%.60q: %v", tc.raw, err)
			continue
		}
		if resp.StatusCode != tc.status || !resp.Close {
			t.Errorf("%.60q: %d (close %v), want %d", tc.raw, resp.StatusCode, resp.Close, tc.status)
		}
		resp.Body.Close()
	}
	if a := get(t, "http://"+r.adminL.Addr().String()+"/metrics"); !strings.Contains(a.body, `gateway_requests_total{code="426"} 1`) {
		t.Errorf("metrics: %s", a.body)
	}
}

// A filter that collects more than the buffer limit: 413 for the request; for the
// answer 500 while its headers are held, a cut connection when they are gone.
func TestBufferLimitRefusesRequestsAndAnswers(t *testing.T) {
	u := newUpstream(t, echo)
	body := strings.Repeat("x", 200<<10)
	r := up(t, buffering, u.addr(), nil)
	if a := send(t, client(t), request(t, "POST", r.url, strings.NewReader(body))); a.StatusCode != 413 {
		t.Errorf("request: %d", a.StatusCode)
	}
	onlyAnswers := guest{responseBody: buffering.responseBody}
	r = up(t, onlyAnswers, u.addr(), nil)
	// Whether the headers are out before the connection is cut is a matter of time.
	if resp, err := client(t).Do(request(t, "POST", r.url, strings.NewReader(body))); err == nil {
		if _, err = io.ReadAll(resp.Body); err == nil {
			t.Errorf("an answer that was cut looks whole: %d", resp.StatusCode)
		}
		resp.Body.Close()
	}
	onlyAnswers.responseHeaders = func(*guest, uint32, bool) hostsim.Action { return hostsim.ActionPause }
	r = up(t, onlyAnswers, u.addr(), func(o *options) { o.stopIteration = true })
	if a := send(t, client(t), request(t, "POST", r.url, strings.NewReader(body))); a.StatusCode != 500 {
		t.Errorf("answer with headers held: %d", a.StatusCode)
	}
}

func TestAdminShowsStateAndMetrics(t *testing.T) {
	u := newUpstream(t, echo)
	g := guest{requestHeaders: func(g *guest, _ uint32, _ bool) hostsim.Action {
		id, _ := g.DefineMetric(hostsim.MetricCounter, "seen_total")
		g.IncrementMetric(id, 1)
		g.SetSharedData("key", []byte("value"), 0)
		return hostsim.ActionContinue
	}}
	r := up(t, g, u.addr(), nil)
	get(t, r.url)
	admin := "http://" + r.adminL.Addr().String()
	a := get(t, admin+"/metrics")
	for _, want := range []string{"seen_total", `gateway_requests_total{code="201"} 1`, `gateway_upstream_calls_total{result="answered"} 1`, "gateway_requests_in_flight 0"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("metrics lack %s:\n%s", want, a.body)
		}
	}
	if ct := a.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/plain") {
		t.Errorf("metrics are %s", ct)
	}
	if a := get(t, admin+"/shared_data"); a.body != `{"keys":1,"bytes":8}`+"\n" {
		t.Errorf("shared data: %s", a.body)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/other": 404} {
		if a := get(t, admin+path); a.StatusCode != want {
			t.Errorf("%s: %d", path, a.StatusCode)
		}
	}
}
