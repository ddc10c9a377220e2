package httpd

import (
	"context"
	"crypto/x509"

	"github.com/oncegate/oncegate/manager/api"
)

// Direct is a request that comes without a connection, from the program that has the
// server in itself: for tests that simulate the network.
type Direct struct {
	Method, Path, Query string
	// Headers have names in lower case.
	Headers []api.Header
	Body    []byte

	request Request
	ctx     context.Context
}

// Do answers one request as if it had come by HTTP. ctx ends when the caller
// leaves, which ends a held call. The caller may keep the answer, or give it to the
// next call. A Direct carries one request at a time.
func (s *Server) Do(ctx context.Context, d *Direct, w *Response) {
	d.ctx = ctx
	d.request = Request{Method: d.Method, Path: d.Path, Query: d.Query, Body: d.Body, source: d}
	w.reset()
	s.serve(&d.request, w)
}

func (d *Direct) header(name string) string {
	value, _ := headerOf(d.Headers, name)
	return value
}

func (d *Direct) count(name string) (n int) {
	for i := range d.Headers {
		if d.Headers[i].Name == name {
			n++
		}
	}
	return n
}

func (d *Direct) remote() string                 { return "direct" }
func (d *Direct) certificate() *x509.Certificate { return nil }
func (d *Direct) client() context.Context        { return d.ctx }
func (d *Direct) crossSite() bool                { return false }
func (d *Direct) scheme() string                 { return "http" }
