package envoydiff

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// rpcServer is the server of a site's gRPC streams, frame by frame.
type rpcServer struct {
	ln net.Listener
	wg sync.WaitGroup

	mu      sync.Mutex
	conns   []*rpcConn
	streams []*rpcStream // in the order of their coming
	stalled bool         // it opens no windows
}

type rpcConn struct {
	net.Conn
	mu     sync.Mutex // of what is written
	framer *http2.Framer
	text   strings.Builder // header block under construction
	hpack  *hpack.Encoder
	last   uint32
}

// rpcStream is a stream as its server sees it.
type rpcStream struct {
	conn     *rpcConn
	id       uint32
	metadata hostsim.Headers
	body     []byte
	ended    bool // by the client
	cut      bool
	answered bool // the server has ended it
}

func newRPCServer(t *testing.T) *rpcServer {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rpcServer{ln: ln}
	s.wg.Add(1)
	go s.accept()
	t.Cleanup(func() {
		ln.Close()
		s.hangUp()
		s.wg.Wait()
	})
	return s
}

func (s *rpcServer) accept() {
	defer s.wg.Done()
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			return
		}
		c := &rpcConn{Conn: conn, framer: http2.NewFramer(conn, conn)}
		c.hpack = hpack.NewEncoder(&c.text)
		c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Add(1)
		go s.serve(c)
	}
}

// serve reads a connection until it ends.
func (s *rpcServer) serve(c *rpcConn) {
	defer s.wg.Done()
	defer c.Close()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, st := range s.streams {
			st.cut = st.cut || st.conn == c && !st.answered
		}
	}()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	c.write(func(f *http2.Framer) error { return f.WriteSettings() })
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.handle(c, frame)
		s.mu.Unlock()
	}
}

func (s *rpcServer) handle(c *rpcConn, frame http2.Frame) {
	st := s.find(c, frame.Header().StreamID)
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			c.write(func(f *http2.Framer) error { return f.WriteSettingsAck() })
		}
	case *http2.MetaHeadersFrame:
		st := &rpcStream{conn: c, id: f.StreamID, ended: f.StreamEnded()}
		for _, h := range f.Fields {
			st.metadata = append(st.metadata, hostsim.Header{h.Name, h.Value})
		}
		c.last = f.StreamID
		s.streams = append(s.streams, st)
	case *http2.DataFrame:
		if st != nil {
			st.body = append(st.body, f.Data()...)
			st.ended = st.ended || f.StreamEnded()
		}
		if n := uint32(len(f.Data())); n > 0 && !s.stalled {
			c.write(func(w *http2.Framer) error { return w.WriteWindowUpdate(0, n) })
			if !f.StreamEnded() {
				c.write(func(w *http2.Framer) error { return w.WriteWindowUpdate(f.StreamID, n) })
			}
		}
	case *http2.RSTStreamFrame:
		if st != nil && !st.answered {
			st.cut = true
		}
	}
}

func (s *rpcServer) find(c *rpcConn, id uint32) *rpcStream {
	for _, st := range s.streams {
		if st.conn == c && st.id == id {
			return st
		}
	}
	return nil
}

func (c *rpcConn) write(f func(*http2.Framer) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = f(c.framer)
}

// headers sends a header block of names and values.
func (st *rpcStream) headers(end bool, nameValues ...string) {
	st.answered = st.answered || end
	st.conn.write(func(f *http2.Framer) error {
		st.conn.text.Reset()
		for i := 0; i+1 < len(nameValues); i += 2 {
			_ = st.conn.hpack.WriteField(hpack.HeaderField{Name: nameValues[i], Value: nameValues[i+1]})
		}
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: st.id, BlockFragment: []byte(st.conn.text.String()), EndHeaders: true, EndStream: end})
	})
}

func (st *rpcStream) data(end bool, b []byte) {
	st.answered = st.answered || end
	st.conn.write(func(f *http2.Framer) error { return f.WriteData(st.id, end, b) })
}

// fill sends a message of so many bytes in frames of 16 KiB. Envoy's windows are larger than any message here.
func (st *rpcStream) fill(_ *rpcServer, size string) {
	n, _ := strconv.Atoi(size)
	for b := frames([]string{strings.Repeat("\x00", n)}); len(b) > 0; {
		piece := b[:min(len(b), 16<<10)]
		st.data(false, piece)
		b = b[len(piece):]
	}
}

func frames(messages []string) []byte {
	var b []byte
	for _, m := range messages {
		b = append(binary.BigEndian.AppendUint32(append(b, 0), uint32(len(m))), m...)
	}
	return b
}

// hangUp closes the connections.
func (s *rpcServer) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// forget starts a new case.
func (s *rpcServer) forget() {
	s.hangUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams, s.stalled = nil, false
}

// showRPC is what a stream's server has got.
func showRPC(show []string, metadata hostsim.Headers, messages []string, ended, cut bool) string {
	text := metadata.Get(":path")
	for _, name := range show {
		if metadata.Has(name) {
			text = join(text, name+"="+metadata.Get(name))
		}
	}
	for _, m := range messages {
		text = join(text, "["+showShort(m)+"]")
	}
	switch {
	case cut:
		text = join(text, "cut")
	case ended:
		text = join(text, "end")
	}
	return text
}

func showShort(m string) string {
	if len(m) > 40 {
		return fmt.Sprint(len(m), " bytes")
	}
	return m
}

func (s *rpcServer) view(tb testing.TB, show []string, peers map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range s.streams {
		var messages []string
		for b := st.body; len(b) >= 5; {
			n := int(binary.BigEndian.Uint32(b[1:]))
			if len(b) < 5+n {
				break
			}
			messages = append(messages, string(b[5:5+n]))
			b = b[5+n:]
		}
		peers[fmt.Sprint("rpc ", i+1)] = showRPC(show, st.metadata, messages, st.ended, st.cut)
	}
}

// do plays a step: "rpc N VERB ARGUMENTS".
func (s *rpcServer) do(tb testing.TB, arg string) {
	f := strings.Split(arg, " ")
	n, _ := strconv.Atoi(f[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 1 || n > len(s.streams) {
		tb.Errorf("rpc %s: no stream has come", arg)
		return
	}
	st := s.streams[n-1]
	switch f[1] {
	case "accept":
		st.headers(false, ":status", "200", "content-type", "application/grpc")
	case "send":
		st.data(false, frames(f[2:]))
	case "stall": // reads no more
		s.stalled = true
	case "fill": // a message of so many bytes, as far as the windows go
		st.fill(s, f[2])
	case "half":
		st.data(false, frames(f[2:])[:6])
	case "finish":
		st.headers(true, "grpc-status", f[2], "grpc-message", strings.Join(f[3:], "%20"))
	case "nostatus":
		st.headers(true, "x-t", "1")
	case "end":
		st.data(true, nil)
	case "refuse":
		st.headers(true, ":status", f[2], "content-type", "application/grpc", "grpc-status", f[3], "grpc-message", "no")
	case "html":
		st.headers(false, ":status", f[2], "content-type", "text/html")
		st.data(true, []byte("<html>"))
	case "bare":
		st.headers(true, ":status", f[2])
	case "compressed":
		b := frames(f[2:])
		b[0] = 1
		st.data(false, b)
	case "reset":
		code, _ := strconv.Atoi(f[2])
		st.answered = true
		st.conn.write(func(w *http2.Framer) error { return w.WriteRSTStream(st.id, http2.ErrCode(code)) })
	case "goaway":
		st.conn.write(func(w *http2.Framer) error { return w.WriteGoAway(st.conn.last, http2.ErrCodeNo, nil) })
	case "hangup":
		for _, other := range s.streams {
			other.answered = other.answered || other.conn == st.conn
		}
		st.conn.Close()
	default:
		tb.Fatalf("unknown step rpc %s", arg)
	}
}

// --- hostsim ---

// simRPC are the streams that hostsim has opened.
type simRPC struct {
	mu      sync.Mutex
	streams []*simRPCStream
}

type simRPCStream struct {
	*hostsimtest.ServerStream
	messages       []string
	ended, started bool
	answered       bool
}

// full is a circuit breaker that lets one stream through.
func (r *simRPC) full(hostsim.StreamRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams) > 0 {
		return hostsim.ErrCircuitBreaker
	}
	return nil
}

func (r *simRPC) open(s *hostsimtest.ServerStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &simRPCStream{ServerStream: s}
	s.OnMessage = func(b []byte, end bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if b != nil {
			st.messages = append(st.messages, string(b))
		}
		st.ended = st.ended || end
	}
	r.streams = append(r.streams, st)
}

func (r *simRPC) view(show []string, peers map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, st := range r.streams {
		cut := false
		select {
		case <-st.Cut():
			cut = !st.answered
		default:
		}
		h := append(hostsim.H(":path", "/"+st.Service+"/"+st.Method, ":authority", st.Authority, ":method", "POST", ":scheme", "http", "te", "trailers", "content-type", "application/grpc"), st.Metadata...)
		peers[fmt.Sprint("rpc ", i+1)] = showRPC(show, h, st.messages, st.ended, cut)
	}
}

func (r *simRPC) do(tb testing.TB, arg string) {
	f := strings.Split(arg, " ")
	n, _ := strconv.Atoi(f[0])
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < 1 || n > len(r.streams) {
		tb.Errorf("rpc %s: no stream has come", arg)
		return
	}
	st := r.streams[n-1]
	rest := f[2:]
	code := 0
	if len(rest) > 0 {
		code, _ = strconv.Atoi(rest[0])
	}
	switch f[1] {
	case "accept":
		st.started = true
		if st.ended {
			st.Accept("x-envoy-upstream-service-time", "0") // the request is complete
			return
		}
		st.Accept()
		return
	case "send":
		for _, m := range rest {
			st.Send([]byte(m))
		}
		return
	case "fill":
		st.Send(make([]byte, code))
		return
	case "half", "goaway", "stall":
		return
	case "compressed": // the client resets the stream
		st.Break(13)
		return
	}
	st.answered = true
	switch f[1] {
	case "finish":
		st.Finish(code, strings.Join(f[3:], "%20"))
	case "nostatus":
		st.Events.Trailers(hostsim.H("x-t", "1"))
		st.Events.Close(2, "via_upstream")
	case "end":
		st.Break(2)
	case "refuse":
		status, _ := strconv.Atoi(f[3])
		st.Refuse(status, "no")
	case "html", "bare":
		trailers, status := hostsim.Headers(nil), map[int]int{401: 16, 503: 14}[code]
		switch {
		case status != 0:
			st.Events.Metadata(nil)
		case f[1] == "bare":
			st.Events.Metadata(nil)
			trailers, status = hostsim.H(":status", "200"), 2
		default:
			st.Events.Metadata(hostsim.H(":status", "200", "content-type", "text/html"))
			status = 13
		}
		st.Events.Trailers(trailers)
		st.Events.Close(status, "via_upstream")
	case "reset":
		if st.started {
			st.Events.Trailers(nil)
			st.Events.Close(13, "upstream_reset_after_response_started{remote_reset}")
			return
		}
		const why = "upstream connect error or disconnect/reset before headers. reset reason: remote refused stream reset"
		st.Events.Metadata(nil)
		st.Events.Trailers(hostsim.H(":status", "200", "content-type", "application/grpc", "grpc-status", "14", "grpc-message", why))
		st.Events.Close(14, hostsim.StreamText(why, "upstream_reset_before_response_started{remote_refused_stream_reset}"))
	case "hangup":
		for _, other := range r.streams {
			if other == st || !other.answered {
				other.answered = true
				other.Fail(hostsim.UpstreamDisconnected, "", other.started)
			}
		}
	default:
		tb.Fatalf("unknown step rpc %s", arg)
	}
}

// forget starts a new case.
func (r *simRPC) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range r.streams {
		if !st.answered {
			st.Fail(hostsim.UpstreamDisconnected, "", st.started)
		}
	}
	r.streams = nil
}
