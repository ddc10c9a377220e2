package httpdtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"testing"
)

// Stream is a client of a gRPC stream that sends and receives bytes. Send and Receive may run side by side.
type Stream struct {
	Response *http.Response

	t    testing.TB
	send *io.PipeWriter
	in   *bufio.Reader
	end  context.CancelFunc
}

// HTTP2 returns a client that speaks HTTP/2 without TLS, on one connection, until the test ends.
func HTTP2(t testing.TB) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Stream opens a stream. header has names and values by turns. The answer may be a refusal.
func (s *Site) Stream(client *http.Client, path string, header ...string) *Stream {
	s.t.Helper()
	body, send := io.Pipe()
	ctx, end := context.WithCancel(context.WithoutCancel(s.t.Context()))
	req, err := http.NewRequestWithContext(ctx, "POST", s.Base+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("content-type", "application/grpc")
	req.Header.Set("te", "trailers")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	st := &Stream{t: s.t, send: send, end: end}
	s.t.Cleanup(st.Kill)
	if st.Response, err = client.Do(req); err != nil {
		s.t.Fatal(err)
	}
	st.in = bufio.NewReaderSize(st.Response.Body, 64<<10)
	return st
}

// Kill ends the stream without a word.
func (st *Stream) Kill() {
	_ = st.send.CloseWithError(io.ErrClosedPipe)
	st.end()
	if st.Response != nil {
		_ = st.Response.Body.Close()
	}
}

// Frame appends a message with its prefix.
func Frame(dst, message []byte) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, 0), uint32(len(message)))
	return append(dst, message...)
}

// Write sends bytes as they are. The error is for streams that have ended.
func (st *Stream) Write(b []byte) error {
	_, err := st.send.Write(b)
	return err
}

// Send sends messages, together.
func (st *Stream) Send(messages ...[]byte) error {
	var b []byte
	for _, m := range messages {
		b = Frame(b, m)
	}
	return st.Write(b)
}

// CloseSend says that no messages follow.
func (st *Stream) CloseSend() { _ = st.send.Close() }

// Receive returns the next message, or io.EOF at the end of the stream.
func (st *Stream) Receive() ([]byte, error) {
	var prefix [5]byte
	if _, err := io.ReadFull(st.in, prefix[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(prefix[1:]))
	_, err := io.ReadFull(st.in, b)
	return b, err
}

// Status reads to the end of the stream, and returns the trailers grpc-status and grpc-message.
func (st *Stream) Status() (status, message string) {
	st.t.Helper()
	if _, err := io.Copy(io.Discard, st.in); err != nil {
		st.t.Errorf("the stream: %v", err)
	}
	return st.Response.Trailer.Get("grpc-status"), st.Response.Trailer.Get("grpc-message")
}
