package httpd

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// Refusal is an error that is a problem already.
type Refusal struct{ P api.Problem }

func (e *Refusal) Error() string {
	if e.P.Detail != "" {
		return e.P.Detail
	}
	return e.P.Title
}

// Problem returns the problem.
func (e *Refusal) Problem() api.Problem { return e.P }

// Problemer is an error that knows how it is answered. It may be wrapped.
type Problemer interface {
	error
	Problem() api.Problem
}

// Seconds that callers are asked to wait.
const (
	RetrySoon  = 1 // load, conflicts, something that is about to end
	RetryLater = 5 // storage, a store that is away
)

// Error answers with the problem for err. Errors without one of their own are
// logged here, where they leave the program.
func (r *Request) Error(w *Response, err error) {
	p := r.Problem(err, nil)
	w.Problem(&p)
}

// Problem is how an error is answered: of the request, or of an item of it that
// came with those headers. Internal errors are logged.
func (r *Request) Problem(err error, item []api.Header) api.Problem {
	p, logged := r.server.problem(err)
	if errors.Is(err, context.Canceled) && r.Left() {
		// It may have closed one direction only, and still read this.
		p = clientLeft()
	}
	if p.Status == 500 && !logged {
		args := []any{"method", r.Method, "path", r.Path, "error", err.Error()}
		for _, name := range [...]string{"x-request-id", "traceparent"} {
			if id := r.trace(name, item); id != "" {
				args = append(args, name, Clip(id))
			}
		}
		r.server.log.Error("request failed", args...)
	}
	return p
}

func (s *Server) problem(err error) (p api.Problem, logged bool) {
	if s.opts.Problem != nil {
		return s.opts.Problem(err)
	}
	var own Problemer
	if errors.As(err, &own) {
		return own.Problem(), false
	}
	return *internal(), false
}

// trace returns a header that ties a call to the request that caused it: the item's own, or
// that of the request which brought the item.
func (r *Request) trace(name string, item []api.Header) string {
	if value, found := headerOf(item, name); found {
		return value
	}
	return r.Header(name)
}

// headerOf returns the first value of a header.
func headerOf(headers []api.Header, name string) (value string, found bool) {
	for i := range headers {
		if headers[i].Name == name {
			return headers[i].Value, true
		}
	}
	return "", false
}

func internal() *api.Problem {
	return &api.Problem{Status: 500, Code: api.CodeInternal, Title: "Internal error"}
}

func clientLeft() api.Problem {
	return api.Problem{
		Status: 503, Code: api.CodeUnavailable, Title: "Unavailable", RetryAfterSeconds: RetrySoon,
		Detail: "the client closed its side of the connection while the call was held, and was taken for gone; repeat the call with the same token",
	}
}

func overloaded(detail string) *api.Problem {
	return &api.Problem{Status: 503, Code: api.CodeOverloaded, Title: "Overloaded", RetryAfterSeconds: RetrySoon, Detail: detail}
}

func notFound(path string) *api.Problem {
	return &api.Problem{Status: 404, Code: api.CodeNotFound, Title: "Not found", Detail: "no such path: " + Clip(path)}
}

func methodNotAllowed(method string, allow []string) *api.Problem {
	return &api.Problem{
		Status: 405, Code: api.CodeMethodNotAllowed, Title: "Method not allowed",
		Detail: "method " + Clip(method) + ": must be " + strings.Join(allow, " or "),
	}
}

func bodyTooLarge(limit int) *api.Problem {
	return &api.Problem{
		Status: 413, Code: api.CodeTooLarge, Title: "Too large",
		Detail: "the body must have at most " + strconv.Itoa(limit) + " bytes",
	}
}

func headTooLong(limit int) *api.Problem {
	return &api.Problem{
		Status: 431, Code: api.CodeTooLarge, Title: "Headers too large",
		Detail: "the request line and the headers must have at most " + strconv.Itoa(limit) + " bytes",
	}
}

func requestTimeout() *api.Problem {
	return &api.Problem{
		Status: 408, Code: api.CodeInvalidRequest, Title: "Request timeout", Detail: "the request did not arrive in time",
	}
}

func malformed() *api.Problem {
	return &api.Problem{
		Status: 400, Code: api.CodeInvalidRequest, Title: "Bad request", Detail: "malformed HTTP request",
	}
}
