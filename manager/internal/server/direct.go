package server

import (
	"context"

	"github.com/oncegate/oncegate/manager/api"
)

// Direct is a request that comes without a connection, from the program that has the
// server in itself: for tests that hold the network in their hands.
type Direct struct {
	Method, Path, Query string
	// Headers have names in lower case.
	Headers []api.Header
	Body    []byte
}

// Do answers one request as an engine would have it answered. ctx ends when the caller
// leaves, which ends a held call. The answer is the caller's to keep.
func (s *Server) Do(ctx context.Context, d *Direct) *Response {
	r := Request{Method: d.Method, Path: d.Path, Query: d.Query, Body: d.Body, source: &directSource{ctx, d.Headers}}
	w := new(Response)
	s.serve(&r, w)
	return w
}

type directSource struct {
	ctx     context.Context
	headers []api.Header
}

func (s *directSource) header(name string) string {
	for i := range s.headers {
		if s.headers[i].Name == name {
			return s.headers[i].Value
		}
	}
	return ""
}

func (s *directSource) count(name string) (n int) {
	for i := range s.headers {
		if s.headers[i].Name == name {
			n++
		}
	}
	return n
}

func (s *directSource) remote() string { return "direct" }
func (s *directSource) verified() bool { return false }

func (s *directSource) watch(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	unwatch := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { unwatch(); cancel() }
}

func (s *directSource) left() bool { return s.ctx.Err() != nil }
