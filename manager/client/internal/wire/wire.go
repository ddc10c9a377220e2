// Package wire has what the packages client and admin share: calls of the API.
package wire

import (
	"context"
	"fmt"
	"maps"
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

// Ask makes a call and decodes its answer. An answer that is not complete is no manager's; missing says what it lacks.
func Ask[T any](ctx context.Context, client any, call Call, missing string, complete func(*T) bool) (*T, error) {
	return AskReplayed(ctx, client, call, missing, complete, func(*T) *bool { return new(bool) })
}

// AskReplayed is Ask for a call with a key. It notes in a member of the answer, which replayed returns, whether the answer was
// recorded for an earlier attempt.
func AskReplayed[T any](ctx context.Context, client any, call Call, missing string, complete func(*T) bool, replayed func(*T) *bool) (*T, error) {
	answer := new(T)
	again, err := Do(ctx, client, call, answer)
	if err != nil {
		return nil, err
	}
	if !complete(answer) {
		return nil, call.NotOurs(missing)
	}
	*replayed(answer) = again
	return answer, nil
}

// Page is the call for one page of a list. The query may be nil; limit and cursor are left out when they are zero.
func Page(path string, query url.Values, limit int, cursor string) Call {
	all := maps.Clone(query)
	if all == nil {
		all = url.Values{}
	}
	if limit != 0 {
		all.Set("limit", strconv.Itoa(limit))
	}
	if cursor != "" {
		all.Set("cursor", cursor)
	}
	if len(all) > 0 {
		path += "?" + all.Encode()
	}
	return Call{Method: "GET", Path: path}
}

// JobPath is the path of a job.
func JobPath(id string) string { return "/v1/jobs/" + url.PathEscape(id) }
