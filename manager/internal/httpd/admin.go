package httpd

import (
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncegate/oncegate/manager/api"
)

// AdminHandler serves /healthz, /readyz, /metrics and /debug/pprof/, for which it asks for no
// credentials, and pages below /ui/, which ask for their own; nil for none. It belongs on a
// listener that only operators reach. Browsers that reach metrics and profiles through another
// site, or by a name that neither OwnName nor names know, are refused.
func (s *Server) AdminHandler(g prometheus.Gatherer, pages http.Handler, names ...string) http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.healthRoutes() {
		mux.HandleFunc(r.Method+" "+r.Path, func(hw http.ResponseWriter, _ *http.Request) {
			var w Response
			_ = r.Handle(nil, &w) // which never fails
			hw.Header().Set(api.HeaderManager, s.opts.Version)
			hw.Header().Set("Content-Type", w.ContentType)
			if w.RetryAfter > 0 {
				hw.Header().Set("Retry-After", strconv.Itoa(w.RetryAfter))
			}
			hw.WriteHeader(w.Status)
			_, _ = hw.Write(w.Body)
		})
	}
	for path, h := range map[string]http.Handler{
		"GET /metrics":         promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true}),
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	} {
		mux.Handle(path, ownPages(h, names))
	}
	if pages != nil {
		mux.Handle("/ui/", pages)
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "ui/") // http.Redirect would forget the prefix of a proxy
			w.WriteHeader(http.StatusSeeOther)
		})
	}
	return mux
}

// maxAdminConnections bounds the open connections of the listener for operators. Each open page has one.
const maxAdminConnections = 1024

// AdminListener is ln with a bound on its open connections. One beyond it is closed, and answered 503 before if it is plain.
func (s *Server) AdminListener(ln net.Listener, plain bool) net.Listener {
	l := &limiter{max: maxAdminConnections, refusal: refusal(s.opts.Version), refused: s.metrics.refused, log: s.log, done: make(chan struct{})}
	bounded, err := l.listen(ln, nil)
	if err != nil {
		return ln // only a limiter that was closed fails
	}
	l.plain = plain
	return bounded
}

func (s *Server) healthRoutes() []Route {
	return []Route{
		{Method: "GET", Path: "/healthz", Roles: Anyone, Exempt: true, Handle: s.healthz},
		{Method: "GET", Path: "/readyz", Roles: Anyone, Exempt: true, Handle: s.readyz},
	}
}

// healthz: the process answers.
func (s *Server) healthz(_ *Request, w *Response) error {
	w.JSON(200)
	w.Body = append(w.Body, `{"status":"ok"}`...)
	return nil
}

// readyz: the process wants traffic.
func (s *Server) readyz(_ *Request, w *Response) error {
	if why := s.NotReady(); why != "" {
		w.Problem(&api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Not ready", Detail: why, RetryAfterSeconds: RetrySoon,
		})
		return nil
	}
	w.JSON(200)
	w.Body = append(w.Body, `{"status":"ready"}`...)
	return nil
}
