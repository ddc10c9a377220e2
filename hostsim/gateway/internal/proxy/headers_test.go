package proxy

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

func parse(t *testing.T, raw string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(raw, "\n", "\r\n") + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRequestHeadersAreNormalized(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		want      hostsim.Headers
	}{
		{
			name: "pseudo headers first, names sorted and in lower case",
			raw:  "POST /a?b HTTP/1.1\nHost: h:1\nX-B: 2\nX-A: 1\nX-B: 3\nContent-Length: 0\nIdempotency-Key: \"k\"\nX-Request-Id: r",
			want: hostsim.H(":authority", "h:1", ":path", "/a?b", ":method", "POST", ":scheme", "http",
				"content-length", "0", "idempotency-key", `"k"`, "x-a", "1", "x-b", "2", "x-b", "3", "x-request-id", "r"),
		},
		{
			name: "hop-by-hop headers, those that Connection lists, and Expect stay here",
			raw: "POST / HTTP/1.1\nHost: h\nConnection: keep-alive, X-Hop\nX-Hop: 1\nKeep-Alive: 5\nProxy-Connection: x\n" +
				"Transfer-Encoding: chunked\nTE: gzip;q=1, trailers\nTrailer: X-Sum\nExpect: 100-continue\nX-Request-Id: r",
			want: hostsim.H(":authority", "h", ":path", "/", ":method", "POST", ":scheme", "http",
				"te", "trailers", "x-request-id", "r", "trailer", "x-sum"),
		},
		{
			name: "absolute form, forwarded scheme, h2c offer ignored",
			raw:  "GET http://other/x HTTP/1.1\nHost: h\nX-Forwarded-Proto: https\nConnection: Upgrade\nUpgrade: h2c\nTE: gzip\nX-Request-Id: r",
			want: hostsim.H(":authority", "other", ":path", "/x", ":method", "GET", ":scheme", "https",
				"x-forwarded-proto", "https", "x-request-id", "r"),
		},
		{
			name: "an empty value is a value",
			raw:  "GET //x/../%2f HTTP/1.1\nHost: h\nIdempotency-Key:\nX-Request-Id: r",
			want: hostsim.H(":authority", "h", ":path", "//x/../%2f", ":method", "GET", ":scheme", "http",
				"idempotency-key", "", "x-request-id", "r"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, no := requestHeaders(parse(t, tc.raw))
			if no != nil {
				t.Fatalf("refused: %+v", no)
			}
			if !equalHeaders(got, tc.want) {
				t.Errorf("got  %v\nwant %v", got, tc.want)
			}
		})
	}
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	many := strings.Repeat("X: 1\n", 100)
	for _, tc := range []struct {
		raw    string
		status int
	}{
		{"GET / HTTP/1.0\nHost: h", 426},
		{"CONNECT h:1 HTTP/1.1\nHost: h:1", 403},
		{"GET / HTTP/1.1\nHost: h\nConnection: upgrade\nUpgrade: websocket", 403},
		{"GET / HTTP/1.1\nHost: h\nConnection: host", 400},
		{"GET / HTTP/1.1\nHost: h\nConnection: X-Forwarded-For", 400},
		{"POST / HTTP/1.1\nHost: h\nConnection: content-length\nContent-Length: 1", 400},
		{"GET /a#b HTTP/1.1\nHost: h", 400},
		{"GET / HTTP/1.1\nHost: h\n" + many + "Y: 1", 431},
	} {
		h, no := requestHeaders(parse(t, tc.raw))
		if no == nil || no.status != tc.status || no.text == "" {
			t.Errorf("%.60q: refusal %+v (headers %v), want %d", tc.raw, no, h, tc.status)
		}
	}
	if _, no := requestHeaders(parse(t, "GET / HTTP/1.1\nHost: h\n"+strings.TrimSuffix(many, "\n"))); no != nil {
		t.Errorf("100 headers: %+v", no)
	}
}

func TestResponseHeadersForTheClient(t *testing.T) {
	dst := http.Header{}
	writeResponseHeaders(dst, hostsim.H(":status", "200", "connection", "close, x-hop", "x-hop", "1", "transfer-encoding", "chunked",
		"keep-alive", "1", "set-cookie", "a", "set-cookie", "b", "server", "other"))
	if len(dst["Set-Cookie"]) != 2 || dst.Get("Server") != "oncegate-gateway" {
		t.Errorf("%v", dst)
	}
	if v, ok := dst["Content-Type"]; !ok || v != nil {
		t.Errorf("Content-Type %v, %v: net/http would guess one", v, ok)
	}
	if len(dst) != 3 {
		t.Errorf("hop-by-hop headers left: %v", dst)
	}
}

// FuzzRequestHeaders: whatever net/http accepts gives a well-formed map or a refusal.
func FuzzRequestHeaders(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	f.Add("POST http://h/x HTTP/1.1\r\nHost: h\r\nConnection: a,, b\r\nTE: ;\r\nTrailer: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	f.Add("OPTIONS * HTTP/1.1\r\nHost: \r\nExpect: x\r\n\r\n")
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil {
			return
		}
		h, no := requestHeaders(r)
		if no != nil {
			if no.status < 400 || no.status > 499 {
				t.Fatalf("refused with %d", no.status)
			}
			return
		}
		for _, name := range []string{":method", ":path", ":authority", ":scheme"} {
			if len(h.Values(name)) != 1 {
				t.Fatalf("%s: %q", name, h.Values(name))
			}
		}
		for _, p := range h {
			if hopByHop(p[0]) || p[0] != strings.ToLower(p[0]) {
				t.Fatalf("header %q", p[0])
			}
		}
	})
}
