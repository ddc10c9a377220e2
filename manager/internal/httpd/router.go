package httpd

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Handler answers one request. If it returns an error, the problem of that error is the answer, instead of what the handler wrote.
type Handler func(*Request, *Response) error

// Route binds a method and a path to a handler. The path's segments are literal
// or a {parameter}, which matches one non-empty segment and is decoded; see
// Request.Param.
type Route struct {
	Method, Path string
	// Roles are those that may call the route, administrators apart; others are answered 403. A
	// route must name some. Anyone, alone, needs no credentials.
	Roles Role
	// Exempt routes are answered even under overload and while stopping.
	Exempt bool
	// JSON routes answer 415 to a body of another form.
	JSON   bool
	Handle Handler
	// Stream, instead of Handle, makes it a stream of gRPC. Its Method is POST.
	Stream StreamHandler
}

// open reports whether the route needs no credentials.
func (r *Route) open() bool { return r.Roles == Anyone }

// answer calls the handler.
func (r *Route) answer(req *Request, w *Response) error {
	if r.JSON {
		if err := req.jsonOnly(); err != nil {
			return err
		}
	}
	return r.Handle(req, w)
}

// maxParams bounds the parameters of a route.
const maxParams = 4

// endpoint is a Route in use.
type endpoint struct {
	Route
	prefix   string   // of paths with parameters: what stands before the first
	segments []string // of paths with parameters
	metrics  *routeMetrics
}

// router finds endpoints: literal paths in one look-up, the others segment by
// segment.
type router struct {
	literal  map[string][]*endpoint // by path
	patterns []*endpoint
}

func newRouter(m *metrics, groups ...[]Route) (*router, error) {
	rt := &router{literal: make(map[string][]*endpoint)}
	for _, group := range groups {
		for _, r := range group {
			if r.Stream != nil && r.Handle == nil {
				r.Handle = streamOnly
			}
			if r.Method == "" || !strings.HasPrefix(r.Path, "/") || r.Handle == nil {
				return nil, fmt.Errorf("httpd: route %q %q: needs a method, a path and a handler", r.Method, r.Path)
			}
			if r.Roles == 0 || r.Roles&Anyone != 0 && r.Roles != Anyone {
				return nil, fmt.Errorf("httpd: route %s %s: must name the roles that may call it, or Anyone alone", r.Method, r.Path)
			}
			e := &endpoint{Route: r, metrics: m.route(r.Method, r.Path)}
			if !strings.Contains(r.Path, "{") {
				if slices.ContainsFunc(rt.literal[r.Path], func(other *endpoint) bool { return other.Method == r.Method }) {
					return nil, fmt.Errorf("httpd: route %s %s is there twice", r.Method, r.Path)
				}
				rt.literal[r.Path] = append(rt.literal[r.Path], e)
				continue
			}
			e.prefix, _, _ = strings.Cut(r.Path, "{")
			e.segments = strings.Split(r.Path[1:], "/")
			if strings.Count(r.Path, "{") > maxParams {
				return nil, fmt.Errorf("httpd: route %s %s has more than %d parameters", r.Method, r.Path, maxParams)
			}
			rt.patterns = append(rt.patterns, e)
		}
	}
	return rt, nil
}

// find returns the endpoint for the request and sets its parameters. Without
// one it returns the methods that the path does have, if any.
func (rt *router) find(r *Request) (e *endpoint, allow []string) {
	method := r.Method
	if method == "HEAD" {
		method = "GET"
	}
	for _, e := range rt.literal[r.Path] {
		if e.Method == method {
			return e, nil
		}
		allow = append(allow, e.Method)
	}
	if allow != nil {
		return nil, allow
	}
	for _, e := range rt.patterns {
		if !e.match(r) {
			continue
		}
		if e.Method == method {
			return e, nil
		}
		allow = append(allow, e.Method)
	}
	return nil, allow
}

// match compares segment by segment. A parameter that does not decode does not
// match.
func (e *endpoint) match(r *Request) bool {
	if !strings.HasPrefix(r.Path, e.prefix) { // so it is with most endpoints
		return false
	}
	rest, n := r.Path[1:], 0
	for i, want := range e.segments {
		got := rest
		if i < len(e.segments)-1 {
			var found bool
			if got, rest, found = strings.Cut(rest, "/"); !found {
				return false
			}
		} else if strings.Contains(got, "/") {
			return false
		}
		if want[0] != '{' {
			if got != want {
				return false
			}
			continue
		}
		value, err := url.PathUnescape(got)
		if err != nil || value == "" {
			return false
		}
		r.params[n] = value
		n++
	}
	return true
}
