package httpd

import (
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncegate/oncegate/manager/api"
)

// AdminHandler serves /healthz, /readyz, /metrics and /debug/pprof/. It asks
// for no credentials and belongs on a listener that only operators reach.
func (s *Server) AdminHandler(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.healthRoutes() {
		mux.HandleFunc(r.Method+" "+r.Path, func(hw http.ResponseWriter, _ *http.Request) {
			var w Response
			r.Handle(nil, &w)
			hw.Header().Set(api.HeaderManager, s.opts.Version)
			hw.Header().Set("Content-Type", w.ContentType)
			if w.RetryAfter > 0 {
				hw.Header().Set("Retry-After", strconv.Itoa(w.RetryAfter))
			}
			hw.WriteHeader(w.Status)
			_, _ = hw.Write(w.Body)
		})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
