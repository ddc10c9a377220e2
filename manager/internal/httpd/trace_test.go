package httpd

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// Without tracing, a request that names a trace allocates no more than one that names none.
func TestTracingThatIsOffCostsNothing(t *testing.T) {
	s, err := New(Options{Version: "v"}, []Route{{Method: "GET", Path: "/x", Roles: Anyone, Handle: func(r *Request, w *Response) error {
		r.Span("x", time.Time{}, false)
		w.Status = 200
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	allocs := func(header http.Header) float64 {
		d, w := Direct{Method: "GET", Path: "/x", Header: header}, new(Response)
		return testing.AllocsPerRun(200, func() { s.Do(context.Background(), &d, w) })
	}
	plain := allocs(nil)
	traced := allocs(http.Header{"Traceparent": {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}})
	if traced > plain || plain > 1 {
		t.Errorf("%v allocations, with a traceparent %v", plain, traced)
	}
}
