package hostsim

import (
	"context"
	"time"
)

// Cluster is a named target of HTTP callouts.
type Cluster interface {
	// Call sends a request and answers through done, exactly once for a Cluster that
	// keeps Envoy's promises (ScriptedCluster can be told to break them), from any
	// goroutine, possibly before Call returns. ctx ends when the host closes.
	//
	// A non-nil error means that the call was refused at once and done will not be
	// called: no healthy host, or a full circuit breaker. The guest then sees
	// InternalFailure.
	Call(ctx context.Context, req CallRequest, done func(CallResponse)) error
}

// CallRequest is one callout as the guest asked for it.
type CallRequest struct {
	Headers  Headers // with :method, :path, :authority
	Body     []byte
	Trailers Headers
	Timeout  time.Duration // 0: none
}

// CallFailure is how a callout got no whole answer.
type CallFailure int

// Callout failures and what the guest sees of them.
const (
	CallOK             CallFailure = iota
	CallTimedOut                   // 504 with Envoy's text
	CallConnectFailed              // 503 with Envoy's text
	CallReset                      // before response headers: 503 with Envoy's text
	CallResetMidAnswer             // after response headers: zero headers, no body
)

// CallResponse is the answer to a callout.
type CallResponse struct {
	Failure  CallFailure
	Headers  Headers // with :status
	Body     []byte
	Trailers Headers
	// Detail is appended to the text of a synthetic 503, for example "connection
	// refused"; it may be empty.
	Detail string
}

// HTTPClusterConfig describes a cluster that is reached over real HTTP/1.1.
type HTTPClusterConfig struct {
	// Address is "host:port".
	Address string
	// ConnectTimeout bounds the TCP connect, default 5 s.
	ConnectTimeout time.Duration
	// MaxConnections and MaxPending are the circuit breaker: calls under way on
	// connections and calls waiting for one; a call beyond both is refused at once.
	// Default 1024 each.
	MaxConnections, MaxPending int
	// MaxResponseBytes bounds an answer's body; a longer one is a reset after
	// headers. Default 16 MiB.
	MaxResponseBytes int64
}

// HTTPCluster is a Cluster over net/http. Close closes its idle connections.
type HTTPCluster struct{}

// NewHTTPCluster makes a cluster; errors name the bad field.
func NewHTTPCluster(cfg HTTPClusterConfig) (*HTTPCluster, error) { return &HTTPCluster{}, nil }

// Call implements Cluster.
func (c *HTTPCluster) Call(ctx context.Context, req CallRequest, done func(CallResponse)) error {
	return nil
}

// Close closes idle connections.
func (c *HTTPCluster) Close() {}
