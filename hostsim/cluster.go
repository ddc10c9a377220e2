package hostsim

import (
	"context"
	"errors"
	"time"
)

// Cluster is a named target of HTTP callouts.
type Cluster interface {
	// Call sends a request and answers through done: at most once, from any goroutine, possibly before Call returns. It
	// must not block, because callouts are made on a worker's loop. The host enforces req.Timeout itself. ctx ends when
	// the answer is no longer needed (timeout, host closed).
	//
	// A non-nil error means that the call was refused immediately and done will not be called, for example
	// ErrNoHealthyHost or ErrCircuitBreaker. The guest then gets InternalFailure.
	Call(ctx context.Context, req CallRequest, done func(CallResponse)) error
}

// Errors of Cluster.Call.
var (
	// ErrNoHealthyHost: there is no host that the call could go to.
	ErrNoHealthyHost = errors.New("hostsim: no healthy host")
	// ErrCircuitBreaker: too many connections and pending calls.
	ErrCircuitBreaker = errors.New("hostsim: circuit breaker is open")
)

// CallRequest is a callout as the guest asked for it.
type CallRequest struct {
	Cluster  string  // the name that the guest called it by
	Thread   string  // the thread of the VM that made it: "main" or "worker-N"
	Headers  Headers // with :method, :path, :authority
	Body     []byte
	Trailers Headers
	Timeout  time.Duration // 0: none
}

// CallFailure is the reason that a callout got no complete answer.
type CallFailure int

// Callout failures and what the guest sees of them.
const (
	CallOK             CallFailure = iota
	CallTimedOut                   // a 504 with Envoy's text
	CallConnectFailed              // a 503 with Envoy's text
	CallReset                      // before response headers: a 503 with Envoy's text
	CallResetMidAnswer             // after response headers: zero headers, no body
)

// CallResponse is the answer to a callout.
type CallResponse struct {
	Failure  CallFailure
	Headers  Headers // with :status
	Body     []byte
	Trailers Headers // nil: none
	// Detail is appended to the text of a synthetic 503, for example "delayed connect
	// error: Connection refused"; it may be empty.
	Detail string
}
