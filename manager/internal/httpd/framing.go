package httpd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
)

// framing follows the requests of an HTTP/1 connection as their bytes arrive, and finds a head that says twice how long its
// body is: by Content-Length and by Transfer-Encoding. A proxy in front may have believed the other one, and then takes a part
// of that body for the next caller's request. net/http takes such a request and hides what it said.
//
// The zero value is for a new connection. Its methods are for the goroutine that reads, apart from refused.
type framing struct {
	state framingState
	begun int    // bytes of the preface of HTTP/2 that arrived
	left  uint64 // bytes of the body, or of the chunk, to come

	line    [64]byte // the beginning of a line
	n       int      // length of the line, which may be longer
	last    [8]byte  // the end of a request line
	lengths int      // headers Content-Length of this head
	coded   bool     // it has a Transfer-Encoding
	ours    bool     // the header above, which the line may continue, is one of the two
	length  uint64
	http10  bool
	size    int // bytes of the head
	most    int // of these; 0: any number

	bad, long atomic.Bool
}

type framingState uint8

const (
	atStart framingState = iota // of the connection
	inRequestLine
	inHeaders
	inBody
	inChunkSize
	inChunk
	behindChunk
	inTrailers
	ignored // HTTP/2, or refused
)

// preface begins a connection of HTTP/2. net/http takes part of it for a request of HTTP/1, and so does framing.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// refused reports whether the connection has brought a request that states its length twice, or that cannot be followed.
func (f *framing) refused() bool { return f.bad.Load() }

// multiplexed reports whether the connection is HTTP/2.
func (f *framing) multiplexed() bool { return f.state == ignored && !f.refused() }

// tooLong reports whether the connection has brought a head of more than most bytes. net/http allows 4 KiB more than its limit.
func (f *framing) tooLong() bool { return f.long.Load() }

// refuse marks the connection as refused and ignores what follows.
func (f *framing) refuse() { f.state = ignored; f.bad.Store(true) }

// see takes the bytes that arrived.
func (f *framing) see(b []byte) {
	for len(b) > 0 && f.state != ignored {
		if f.state == atStart {
			b = f.start(b)
			continue
		}
		if f.state == inBody || f.state == inChunk {
			n := min(f.left, uint64(len(b)))
			b, f.left = b[n:], f.left-n
			if f.left == 0 {
				f.state++
				if f.state == inChunkSize { // it followed a body
					f.head()
				}
			}
			continue
		}
		end := bytes.IndexByte(b, '\n')
		part := b
		if end >= 0 {
			part = b[:end]
		}
		f.collect(part)
		if f.state == inRequestLine || f.state == inHeaders {
			f.size += len(part) + min(end+1, 1) // with the line's end
			if f.most > 0 && f.size > f.most {
				f.long.Store(true)
			}
		}
		if end < 0 {
			return
		}
		b = b[end+1:]
		f.endLine()
		f.n = 0
	}
}

// start finds out from the connection's first bytes whether it is HTTP/2. It returns the bytes that it did not take.
func (f *framing) start(b []byte) []byte {
	want := preface[f.begun:]
	n := min(len(b), len(want))
	if string(b[:n]) != want[:n] {
		f.state = inRequestLine
		f.see([]byte(preface[:f.begun]))
		return b
	}
	if f.begun += n; f.begun == len(preface) {
		f.state = ignored
	}
	return b[n:]
}

// http2 reports whether the connection is one of HTTP/2.
func (f *framing) http2() bool { return f.begun == len(preface) }

// head waits for the next request.
func (f *framing) head() {
	f.state, f.n, f.lengths, f.coded, f.ours, f.length, f.http10, f.size = inRequestLine, 0, 0, false, false, 0, false, 0
}

// collect keeps the beginning of a line, and of a request line the end as well.
func (f *framing) collect(part []byte) {
	if f.n < len(f.line) {
		copy(f.line[f.n:], part)
	}
	if f.state == inRequestLine {
		tail := part[max(0, len(part)-len(f.last)):]
		copy(f.last[:], f.last[len(tail):])
		copy(f.last[len(f.last)-len(tail):], tail)
	}
	f.n += len(part)
}

func (f *framing) endLine() {
	whole := f.n <= len(f.line)
	line := bytes.TrimSuffix(f.line[:min(f.n, len(f.line))], []byte("\r"))
	empty := whole && len(line) == 0
	switch f.state {
	case inRequestLine:
		switch {
		case empty: // old clients send an extra one after a body
		case bytes.HasPrefix(line, []byte("PRI ")):
			f.refuse()
		default:
			f.http10 = bytes.Contains(f.last[:], []byte("TP/1.0"))
			f.state = inHeaders
		}
	case inHeaders:
		if empty {
			f.endHead()
			return
		}
		f.header(line, whole)
	case inChunkSize:
		f.chunkSize(line, whole)
	case behindChunk:
		if !empty {
			f.refuse()
			return
		}
		f.state = inChunkSize
	case inTrailers:
		if empty {
			f.head()
		}
	}
}

// header looks at a line of a head.
func (f *framing) header(line []byte, whole bool) {
	if line[0] == ' ' || line[0] == '\t' { // it continues the one above
		if f.ours {
			f.refuse()
		}
		return
	}
	f.ours = false
	if c := line[0] | 0x20; c != 't' && c != 'c' { // most headers
		return
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	f.ours = true
	switch {
	case bytes.EqualFold(name, []byte("transfer-encoding")):
		f.coded = true
	case bytes.EqualFold(name, []byte("content-length")):
		n, err := strconv.ParseUint(string(bytes.Trim(value, " \t")), 10, 63)
		if err != nil || !whole || f.lengths > 0 && n != f.length {
			f.refuse()
			return
		}
		f.lengths++
		f.length = n
	default:
		f.ours = false
	}
}

// endHead decides what follows the head.
func (f *framing) endHead() {
	switch {
	case f.coded && (f.lengths > 0 || f.http10):
		f.refuse()
	case f.coded:
		f.state = inChunkSize
	case f.length > 0:
		f.state, f.left = inBody, f.length
	default:
		f.head()
	}
}

func (f *framing) chunkSize(line []byte, whole bool) {
	size, _, extended := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.Trim(size, " \t")), 16, 64)
	switch {
	case err != nil || !whole && !extended:
		f.refuse()
	case n == 0:
		f.state = inTrailers
	default:
		f.state, f.left = inChunk, n
	}
}

// secureConn is a TLS connection whose decrypted bytes are followed. net/http does not take it for a TLS
// connection: it knows HTTP/2 by its preface, and Server.certificate knows the client.
type secureConn struct {
	net.Conn // *tls.Conn
	limited  *limitConn
}

// NetConn is for limited.
func (c *secureConn) NetConn() net.Conn { return c.limited }

// CloseWrite is for net/http: it shows the client that no more will come.
func (c *secureConn) CloseWrite() error { return c.limited.secure.CloseWrite() }

// Read implements net.Conn. The first one shakes hands.
func (c *secureConn) Read(b []byte) (int, error) {
	n, err := 0, error(nil)
	if c.limited.phase == connNew {
		err = c.limited.secure.Handshake() // net/http has set a deadline
	}
	f := &c.limited.framing
	first := f.state == atStart
	if err == nil {
		n, err = c.limited.read(c.Conn, b)
	}
	if first && f.http2() && prohibited(c.limited.secure.ConnectionState()) {
		_, _ = io.WriteString(c.Conn, goAway)
		_ = c.Close()
		return 0, io.EOF
	}
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) && notTLS.Conn != nil && bytes.Contains([]byte("GET HEAD POST PUT DELETE OPTIO PATCH"), bytes.TrimSpace(notTLS.RecordHeader[:4])) {
		_, _ = io.WriteString(notTLS.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
	}
	return n, err
}

// prohibited reports whether HTTP/2 must not be spoken over a connection, by appendix A of RFC 9113. net/http asks only of
// connections that it takes for TLS.
func prohibited(state tls.ConnectionState) bool {
	if state.Version >= tls.VersionTLS13 {
		return false
	}
	switch state.CipherSuite {
	case tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
		return false
	}
	return true
}

// goAway are the frames SETTINGS, which comes first, and GOAWAY with the error INADEQUATE_SECURITY.
const goAway = "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x0c"
