package httpd

import (
	"context"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
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
	allocs := func(headers []api.Header) float64 {
		d, w := Direct{Method: "GET", Path: "/x", Headers: headers}, new(Response)
		return testing.AllocsPerRun(200, func() { s.Do(context.Background(), &d, w) })
	}
	plain := allocs(nil)
	traced := allocs([]api.Header{{Name: "traceparent", Value: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}})
	if traced > plain || plain > 1 {
		t.Errorf("%v allocations, with a traceparent %v", plain, traced)
	}
}
