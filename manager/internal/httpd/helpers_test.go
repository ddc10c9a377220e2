package httpd

import (
	"crypto/tls"
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const patience = httpdtest.Patience

// site is a server that listens.
type site struct {
	*httpdtest.Site
	t      *testing.T
	server *Server
	letGo  chan struct{} // closed: POST /hold is answered
	log    *httpdtest.Log
}

type siteOptions struct {
	server Options
	listen func(net.Listener) net.Listener
	routes []Route
	tls    *tls.Config
	client *tls.Config
}

// newSite starts a server. POST /new is answered 201, POST /hold when the test closes
// letGo; DELETE /new is for administrators.
func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{t: t, log: new(httpdtest.Log), letGo: make(chan struct{})}
	var err error
	o.server.Version, o.server.Logger = httpdtest.Version, s.log.Logger()
	if s.server, err = New(o.server, append(o.routes, Route{Method: "POST", Path: "/hold", Roles: Plain, Handle: s.hold},
		Route{Method: "POST", Path: "/new", Roles: Plain | Submitter, Handle: answerNew}, Route{Method: "DELETE", Path: "/new", Roles: Admin, Handle: answerNew})); err != nil {
		t.Fatal(err)
	}
	s.Site = httpdtest.Start(t, s.server, httpdtest.Options{Listen: o.listen, TLS: o.tls, Client: o.client})
	return s
}

// waiters is how many requests are held.
func (s *site) waiters() int { return int(s.server.load.held.Load()) }

func (s *site) hold(r *Request, w *Response) error {
	ctx, stop := r.Hold()
	defer stop()
	select {
	case <-s.letGo:
		w.JSON(200)
		w.Body = append(w.Body, `{"held":true}`...)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func answerNew(_ *Request, w *Response) error {
	w.JSON(201)
	w.Body = append(w.Body, `{}`...)
	return nil
}
