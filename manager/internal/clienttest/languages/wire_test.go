package languages

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/openapi/openapitest"
)

// fault is what happens to a request on the wire.
type fault struct {
	path string // the end of the path, with the method before it if it matters: "POST /v1/jobs"
	does string // one of the constants below
	// answer is sent in place of the manager's answer, for does == answered and refusedAfter.
	status int
	header map[string]string
	body   string
	times  int // 1 if 0
}

const (
	cutBefore = "cut before" // the connection ends before the manager gets the request
	cutAfter  = "cut after"  // the manager answers, and the answer is lost
	cutWithin = "cut within" // half of the manager's answer arrives
	answered  = "answered"   // something on the way answers, and the manager does not get the request
	held      = "held"       // the request is neither forwarded nor answered until the client goes away
)

// wire is a proxy between a client and the manager. It carries HTTP/1.1, each client's connection on one of its own, and passes
// on a client's end of sending.
type wire struct {
	t        *testing.T
	listener net.Listener
	to       string

	mu     sync.Mutex
	faults []fault
	seen   []request
	off    bool
	delay  time.Duration // of each answer
	lost   int           // connections for which there was no manager
	conns  map[net.Conn]bool
	served sync.WaitGroup
}

// request is one that arrived at the wire.
type request struct {
	method, path, key, trace, auth string
}

func startWire(t *testing.T, managerURL string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, listener: l, to: strings.TrimPrefix(managerURL, "http://"), conns: map[net.Conn]bool{}}
	w.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.served.Go(func() { w.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.cut(true)
		w.served.Wait()
	})
	return w
}

func (w *wire) url() string { return "http://" + w.listener.Addr().String() }

// set replaces the faults.
func (w *wire) set(f ...fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append([]fault(nil), f...)
}

// cut ends all connections, and those that come, until it is called with false.
func (w *wire) cut(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = off
	if off {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

// slow delays each answer.
func (w *wire) slow(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = by
}

func (w *wire) slowness() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.delay
}

// requests returns those whose method and path end so.
func (w *wire) requests(path string) (out []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.seen {
		if strings.HasSuffix(r.method+" "+r.path, path) {
			out = append(out, r)
		}
	}
	return out
}

// refused counts the connections for which there was no manager.
func (w *wire) refused() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *wire) hold(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.off {
		return false
	}
	w.conns[c] = true
	return true
}

func (w *wire) drop(c net.Conn) {
	_ = c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// meet notes a request and returns what happens to it.
func (w *wire) meet(r *http.Request) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, request{
		method: r.Method, path: r.URL.Path, key: r.Header.Get("Idempotency-Key"), trace: r.Header.Get("Traceparent"), auth: r.Header.Get("Authorization"),
	})
	for i := range w.faults {
		f := &w.faults[i]
		if f.times >= 0 && strings.HasSuffix(r.Method+" "+r.URL.Path, f.path) {
			met := *f
			if f.times--; f.times <= 0 {
				f.times = -1
			}
			return met
		}
	}
	return fault{}
}

func (w *wire) serve(client net.Conn) {
	if !w.hold(client) {
		_ = client.Close()
		return
	}
	var watched sync.WaitGroup
	defer watched.Wait() // which the ends of the connections below end
	defer w.drop(client)
	manager, err := net.Dial("tcp", w.to)
	if err != nil {
		w.mu.Lock()
		w.lost++
		w.mu.Unlock()
		return
	}
	if !w.hold(manager) {
		_ = manager.Close()
		return
	}
	defer w.drop(manager)
	fromClient, fromManager := bufio.NewReader(client), bufio.NewReader(manager)
	for {
		r, err := http.ReadRequest(fromClient)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f := w.meet(r)
		switch f.does {
		case cutBefore:
			return
		case held:
			_, _ = fromClient.Peek(1) // until the client goes away
			return
		case answered:
			if _, err := client.Write(f.text()); err != nil {
				return
			}
			continue
		}
		if err := send(r, body, manager); err != nil {
			return
		}
		// A worker that stops closes its half of the connection, and waits for the answer of its claim.
		over := make(chan struct{})
		watched.Go(func() {
			if _, err := fromClient.Peek(1); errors.Is(err, io.EOF) {
				select {
				case <-over:
				default:
					_ = manager.(*net.TCPConn).CloseWrite()
				}
			}
		})
		answer, err := w.receive(r, body, fromManager)
		close(over)
		switch {
		case err != nil || f.does == cutAfter:
			return
		case f.does == cutWithin:
			_, _ = client.Write(answer[:len(answer)/2])
			return
		}
		time.Sleep(w.slowness())
		if _, err := client.Write(answer); err != nil {
			return
		}
		watched.Wait() // for the next request, or the end
	}
}

// send passes a request on.
func send(r *http.Request, body []byte, manager io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), r.Host)
	if r.Method != http.MethodGet {
		r.Header.Set("Content-Length", fmt.Sprint(len(body)))
	}
	_ = r.Header.Write(&out)
	out.WriteString("\r\n")
	out.Write(body)
	_, err := manager.Write(out.Bytes())
	return err
}

// receive reads the manager's answer, compares the exchange with the API's description, and returns the answer's bytes.
func (w *wire) receive(r *http.Request, body []byte, fromManager *bufio.Reader) ([]byte, error) {
	resp, err := http.ReadResponse(fromManager, r)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body, resp.ContentLength, resp.TransferEncoding = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	if d, err := openapitest.Load(); err != nil {
		w.t.Error(err)
	} else if err := d.Check(&openapitest.Exchange{
		Method: r.Method, Path: r.URL.RequestURI(), RequestType: r.Header.Get("Content-Type"), Request: string(body),
		Status: resp.StatusCode, Header: resp.Header, Answer: string(b),
	}); err != nil {
		w.t.Error(err)
	}
	var text bytes.Buffer
	err = resp.Write(&text)
	return text.Bytes(), err
}

// text is the answer in place of the manager's.
func (f *fault) text() []byte {
	h := http.Header{"Content-Type": {"application/json"}}
	for name, value := range f.header {
		h.Set(name, value)
	}
	resp := http.Response{
		ProtoMajor: 1, ProtoMinor: 1, StatusCode: f.status, Header: h,
		ContentLength: int64(len(f.body)), Body: io.NopCloser(strings.NewReader(f.body)),
	}
	var b bytes.Buffer
	_ = resp.Write(&b)
	return b.Bytes()
}
