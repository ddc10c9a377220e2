package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/openapi"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Options configure a Server; the zero value of a field means its default.
type Options struct {
	httpd.Options
	// Ledger says what the ledger is. A call that means another shard, or another ledger, is refused, and answers say
	// which one this is. Nil: the server takes calls for any.
	Ledger *shard.Keeper
	// Unreadable tracks the records that a call named and that cannot be read.
	// Nil tracks none.
	Unreadable *unread.Tracker
}

// Server is an HTTP server that refuses calls for other shards and knows how the errors of the ledger, the queue and
// the store are answered.
type Server struct {
	*httpd.Server
	guard *shardGuard
}

// New returns a server with the given groups of routes. It is not ready until SetReady is called.
func New(opts Options, groups ...[]httpd.Route) (*Server, error) {
	opts.Options = opts.WithDefaults()
	s := &Server{guard: newShardGuard(opts.Ledger, opts.Logger)}
	opts.Guard, opts.Answered = s.guard.stray, s.guard.mark
	opts.Problem = func(err error) (api.Problem, bool) {
		p := ProblemOf(err)
		return p, p.Status == 500 && opts.Unreadable.Met(err) // which reports each once
	}
	var err error
	if s.Server, err = httpd.New(opts.Options, groups...); err != nil {
		return nil, err
	}
	return s, nil
}

// Collectors are the server's metrics for a registry.
func (s *Server) Collectors() []prometheus.Collector {
	return append(s.Server.Collectors(), s.guard.total, s.guard.others)
}

// DescriptionRoutes serve the description of the API. It holds no secrets, and clients read it before they have a token.
func DescriptionRoutes() []httpd.Route {
	return []httpd.Route{{Method: "GET", Path: "/openapi.json", Roles: httpd.Anyone, Handle: func(_ *httpd.Request, w *httpd.Response) error {
		w.JSON(200)
		w.Body = append(w.Body, openapi.Document()...)
		return nil
	}}}
}
