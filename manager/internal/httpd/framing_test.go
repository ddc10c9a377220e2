package httpd

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestAmbiguousLengthsAreRefused: a request that says twice how long it is, or that names headers with spaces, is answered 400
// and its connection is closed, so that nothing after it is taken for a request.
func TestAmbiguousLengthsAreRefused(t *testing.T) {
	listener, client := tlsFor(t)
	const next = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
	for what, c := range map[string]struct {
		request string
		answers []int
	}{
		"both":               {"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"both, other order":  {"POST /new HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\nX: y\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"length of 0":        {"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"bare line feeds":    {"POST /new HTTP/1.1\nhost: x\ncontent-length: 4\ntransfer-encoding: chunked\n\n0\r\n\r\n" + next, []int{400}},
		"folded":             {"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"HTTP/1.0":           {"POST /new HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"coding of HTTP/1.0": {"POST /new HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"space behind":       {"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length : 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"space before":       {"POST /new HTTP/1.1\r\n content-length: 4\r\nhost: x\r\n\r\n" + next, []int{400}},
		"space inside":       {"POST /new HTTP/1.1\r\nhost: x\r\nx y: z\r\n\r\n" + next, []int{400}},
		"tab":                {"POST /new HTTP/1.1\r\nhost: x\r\nx\t: z\r\n\r\n" + next, []int{400}},
		"two lengths":        {"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd" + next, []int{400}},
		"second request": {"POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\nt: x\r\n\r\n" +
			"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		// net/http takes this for a request, and then reads HTTP/1.
		"behind what begins HTTP/2": {"PRI * HTTP/2.0\r\nhost: x\r\n\r\nPOST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"half a preface":            {"PRI * HTTP/2.0\r\n\r\nPOST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"a preface of line feeds":   {"PRI * HTTP/2.0\n\nSM\n\nPOST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + next, []int{400}},
		"well framed": {"POST /new HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" +
			"POST /new HTTP/1.1\r\nhost: x\r\ncontent-length: 53\r\n\r\n\r\n\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" + next, []int{201, 201, 200}},
	} {
		for _, o := range []siteOptions{{}, {tls: listener, client: client}} {
			t.Run(what, func(t *testing.T) {
				s := newSite(t, o)
				var c2 net.Conn = s.Dial()
				if o.tls != nil {
					cfg := client.Clone()
					cfg.ServerName = "127.0.0.1"
					c2 = tls.Client(c2, cfg)
				}
				s.send(c2, c.request)
				answers := bufio.NewReader(c2)
				var got []int
				for len(got) < len(c.answers)+1 {
					resp, err := http.ReadResponse(answers, nil)
					if err != nil {
						break
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					got = append(got, resp.StatusCode)
					if len(got) == len(c.answers) && resp.StatusCode == 200 {
						break
					}
				}
				// A request before the one that is refused may have been answered already.
				if len(got) == 2 && got[0] == 201 && what == "second request" {
					got = got[1:]
				}
				if len(got) != len(c.answers) {
					t.Fatalf("answers %v, want %v", got, c.answers)
				}
				for i := range got {
					if got[i] != c.answers[i] {
						t.Errorf("answers %v, want %v", got, c.answers)
					}
				}
			})
		}
	}
}

// FuzzFraming: of a stream of requests that net/http reads, none that says twice how long it is stays unseen, however the
// bytes arrive; and one that net/http takes and that says it once is never refused.
func FuzzFraming(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"), uint8(3))
	f.Add([]byte("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("\r\nPOST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx\n\nGET / HTTP/1.1\nhost: x\n\n"), uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		var whole, parts framing
		whole.see(b)
		for rest := b; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			parts.see(rest[:n])
			rest = rest[n:]
		}
		if whole.refused() != parts.refused() || whole.state != parts.state {
			t.Fatalf("%q in steps of %d: %v %d, at once %v %d", b, int(step)+1, parts.refused(), parts.state, whole.refused(), whole.state)
		}
		// The heads as net/http reads them.
		rest := bytes.NewReader(b)
		r := bufio.NewReaderSize(rest, 1<<20)
		for twice := false; !twice; {
			for p, _ := r.Peek(1); len(p) == 1 && (p[0] == '\r' || p[0] == '\n'); p, _ = r.Peek(1) {
				_, _ = r.Discard(1)
			}
			begin := len(b) - rest.Len() - r.Buffered()
			req, err := http.ReadRequest(r)
			if err != nil {
				return // the server closes the connection
			}
			if req.ProtoMajor != 1 {
				return
			}
			head := strings.ToLower(string(b[begin : len(b)-rest.Len()-r.Buffered()]))
			twice = strings.Contains(head, "\ncontent-length:") && strings.Contains(head, "\ntransfer-encoding:")
			if twice && !whole.refused() {
				t.Fatalf("%q: not seen", b)
			}
			if twice {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			if r.Buffered() == 0 && rest.Len() == 0 && whole.refused() && !strings.Contains(string(b), "\n ") && !strings.Contains(string(b), "\n\t") && !strings.Contains(strings.ToLower(string(b)), "http/1.0") {
				t.Fatalf("%q: refused", b)
			}
		}
	})
}
