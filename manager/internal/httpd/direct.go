package httpd

import (
	"context"
	"net/http"
)

// Direct is a request that comes without a connection, from the program that has the
// server in itself: for tests that simulate the network.
type Direct struct {
	Method, Path, Query string
	Header              http.Header
	Body                []byte

	request Request
	source  source
}

// Do answers one request as if it had come by HTTP. ctx ends when the caller
// leaves, which ends a held call. The caller may keep the answer, or give it to the
// next call. A Direct carries one request at a time.
func (s *Server) Do(ctx context.Context, d *Direct, w *Response) {
	r := &http.Request{Method: d.Method, Header: d.Header, RemoteAddr: "direct"}
	d.source = source{r: r.WithContext(ctx)}
	d.request = Request{Method: d.Method, Path: d.Path, Query: d.Query, Body: d.Body, source: &d.source}
	w.reset()
	s.serve(&d.request, w)
}
