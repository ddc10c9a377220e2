package httpd

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/api"
)

// Request is what a handler sees of an HTTP request. It is valid until the
// handler returns.
type Request struct {
	Method string
	// Path as it was sent, still percent-encoded.
	Path string
	// Query without the question mark, still encoded.
	Query string
	// Body is complete. It must not be kept or modified.
	Body []byte

	ctx    context.Context
	source *source
	server *Server
	params [maxParams]string
	caller caller
	span   trace.Span // nil without tracing
}

// Context bounds the work of the request. It does not end when the client
// leaves: work that was begun is finished, so that its outcome is known.
func (r *Request) Context() context.Context { return r.ctx }

// Header returns the first value of a header, "" when absent. Name must be in
// lower case.
func (r *Request) Header(name string) string { return r.source.header(name) }

// HeaderCount returns how often a header was sent, empty or not. Name must be in
// lower case.
func (r *Request) HeaderCount(name string) int { return len(r.source.r.Header.Values(name)) }

// Remote is the client's address; "unix" on a Unix socket, where a client has none.
func (r *Request) Remote() string {
	if address := r.source.r.RemoteAddr; address != "" && address != "@" {
		return address
	}
	return "unix"
}

// Param returns the decoded value of the route's i-th {parameter}.
func (r *Request) Param(i int) string { return r.params[i] }

// Hold says that the request begins to wait for something to happen, for as
// long as the handler likes. The context ends when the client leaves or the
// server is stopped by force; stop must be called when the wait is over.
func (r *Request) Hold() (ctx context.Context, stop func()) {
	ctx, unwatch := r.watch()
	r.server.load.hold()
	return ctx, func() {
		r.server.load.unhold()
		unwatch()
	}
}

// watch returns a context that ends when the client leaves or the server is stopped by force.
func (r *Request) watch() (context.Context, func()) {
	ctx, cancel := context.WithCancel(r.server.base)
	unwatch := context.AfterFunc(r.source.client(), cancel)
	return ctx, func() { unwatch(); cancel() }
}

// Left reports whether the client is known to have left, as of now. It is for a
// handler that is about to give away something that must not get lost. For a client
// that leaves a moment later, see Response.Undelivered.
func (r *Request) Left() bool { return r.source.client().Err() != nil }

// QueryValues reads the query strictly: every parameter must be one of allowed
// and be given once. The error is a *api.FieldError.
func (r *Request) QueryValues(allowed ...string) (map[string]string, error) {
	values := make(map[string]string)
	for pair := range strings.SplitSeq(r.Query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			return nil, &api.FieldError{Field: "query", Value: pair, Allowed: "malformed percent-encoding"}
		}
		if !slices.Contains(allowed, name) {
			return nil, &api.FieldError{Field: "query", Value: name, Allowed: "unknown parameter, allowed are: " + strings.Join(allowed, ", ")}
		}
		if _, twice := values[name]; twice {
			return nil, &api.FieldError{Field: name, Value: value, Allowed: "given twice"}
		}
		values[name] = value
	}
	return values, nil
}

// Form is the form of a body.
type Form uint8

// The forms a request can have; its answer has the same.
const (
	FormJSON Form = iota
	FormRaw
)

// Form returns the form of the body by its content-type; without one it is JSON. Another charset than UTF-8 is refused.
// The error is a *Refusal.
func (r *Request) Form() (Form, error) {
	ct := r.Header("content-type")
	switch ct {
	case api.ContentTypeRaw:
		return FormRaw, nil
	case "", api.ContentTypeJSON:
		return FormJSON, nil
	}
	media, parameters, _ := strings.Cut(ct, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); media {
	case api.ContentTypeRaw:
		return FormRaw, nil
	case api.ContentTypeJSON:
		if !unicode8(parameters) {
			return FormJSON, unsupported("content-type " + strconv.QuoteToASCII(Clip(ct)) + ": charset must be utf-8, as in all JSON (RFC 8259)")
		}
		return FormJSON, nil
	}
	detail := "content-type " + strconv.QuoteToASCII(Clip(ct)) + ": must be " + api.ContentTypeJSON + " or " + api.ContentTypeRaw
	if media == "application/x-www-form-urlencoded" {
		detail += " (with curl: -H 'content-type: application/json')"
	}
	return FormJSON, unsupported(detail)
}

func unsupported(detail string) error {
	return &Refusal{api.Problem{Status: 415, Code: api.CodeUnsupportedMedia, Title: "Unsupported media type", Detail: detail}}
}

// unicode8 reports whether the parameters of a content-type name no other charset than UTF-8.
func unicode8(parameters string) bool {
	for parameter := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
		value = strings.Trim(value, `"`)
		if strings.EqualFold(name, "charset") && !strings.EqualFold(value, "utf-8") && !strings.EqualFold(value, "utf8") {
			return false
		}
	}
	return true
}

// jsonOnly is Form for calls that have no raw form.
func (r *Request) jsonOnly() error {
	form, err := r.Form()
	if err == nil && form != FormJSON {
		err = unsupported("this call has no raw form, content-type must be " + api.ContentTypeJSON)
	}
	return err
}

// Clip shortens what a caller sent, for errors and logs, to 64 bytes and a mark.
func Clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

// Response is what a handler answers. Body may be appended to.
type Response struct {
	Status      int
	ContentType string
	// RetryAfter in seconds is sent when positive.
	RetryAfter int
	Body       []byte
	// Within, when positive, is the longest time that the client has to take the whole answer, after which it is of no use.
	Within time.Duration
	// Undelivered, when set, is called if the connection did not take the whole answer. It takes back what the answer
	// gives away.
	Undelivered func() error

	header [maxHeaders]api.Header
	nh     int
}

// maxHeaders bounds the headers a handler adds itself.
const maxHeaders = 8

// SetHeader adds a header; name must be in lower case. Handlers add few, fixed
// ones: more than 8 is a bug and panics.
func (w *Response) SetHeader(name, value string) {
	w.header[w.nh] = api.Header{Name: name, Value: value}
	w.nh++
}

// Headers returns what SetHeader added.
func (w *Response) Headers() []api.Header { return w.header[:w.nh] }

// JSON prepares a JSON answer; the handler appends it to Body.
func (w *Response) JSON(status int) {
	w.Status, w.ContentType, w.Body = status, api.ContentTypeJSON, w.Body[:0]
}

// Problem answers with a problem.
func (w *Response) Problem(p *api.Problem) {
	w.Status, w.ContentType, w.RetryAfter = p.Status, api.ContentTypeProblem, p.RetryAfterSeconds
	w.Body = p.AppendJSON(w.Body[:0])
}

func (w *Response) reset() {
	*w = Response{Body: w.Body[:0]}
}
