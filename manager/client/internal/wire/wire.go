// Package wire has what the packages client and admin share: calls of the API.
package wire

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Call is one call of the API.
type Call struct {
	Method, Path string
	Body         any
	Key          string        // idempotency key
	Trace        string        // traceparent
	Wait         time.Duration // how long the manager may let the call wait
	Once         bool          // do not repeat
}

// Do makes a call of a *client.Client and decodes the answer into out; a *[]byte gets it as it is. Package client sets it, so that
// Client has no exported method for package admin.
var Do func(ctx context.Context, client any, call Call, out any) (replayed bool, err error)

// Encoded is a body that is JSON already.
type Encoded []byte

// BadAnswer is a success that cannot be decoded.
type BadAnswer struct{ Err error }

func (e *BadAnswer) Error() string { return e.Err.Error() }

func (e *BadAnswer) Unwrap() error { return e.Err }

// NotOurs is the error for a JSON answer that no manager would send. It must never count as a success.
func (c *Call) NotOurs(what string) error {
	return &BadAnswer{fmt.Errorf("client: %s %s: an answer that is not of a manager: %s", c.Method, c.Path, what)}
}

// PageQuery is the query of a call for one page.
func PageQuery(v url.Values, limit int, cursor string) string {
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// JobPath is the path of a job.
func JobPath(id string) string { return "/v1/jobs/" + url.PathEscape(id) }
