package hostsimtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// Cluster is a hostsim.Cluster that answers as the test scripts it. With a Handler every call is answered immediately.
// Without one, the test takes calls with Next and answers them. Fault can make any call fail. It
// carries gRPC streams likewise. Set the fields before the cluster is used.
type Cluster struct {
	// Handler answers a call. It runs on the caller's loop and must not block.
	Handler func(hostsim.CallRequest) hostsim.CallResponse
	// Fault returns what goes wrong with the n-th call (from 1).
	Fault func(n int, req hostsim.CallRequest) Fault
	// Clock is needed for Fault.Delay.
	Clock hostsim.Clock
	// StreamHandler serves gRPC streams. It runs on the guest's loop and must not block. Without it the test takes streams
	// with NextStream.
	StreamHandler func(*ServerStream)
	// RefuseStream makes a stream fail immediately (hostsim.ErrNoHealthyHost, hostsim.ErrCircuitBreaker).
	RefuseStream func(hostsim.StreamRequest) error

	mu      sync.Mutex
	count   int
	waiting []*Call
	streams []*ServerStream
	log     []hostsim.CallRequest
	arrived chan struct{}
}

// Fault is what goes wrong with a call. The zero value is nothing.
type Fault struct {
	// Refuse makes the call fail immediately (hostsim.ErrNoHealthyHost, hostsim.ErrCircuitBreaker). The server does not
	// see it.
	Refuse error
	// Lost: no answer ever arrives, and only the call's timeout ends it. The server does not see the call unless
	// Executed is set.
	Lost bool
	// Failure is reported instead of the answer. The server does not see the call unless Executed is set.
	Failure hostsim.CallFailure
	// Executed makes the server handle the call although its answer is lost.
	Executed bool
	// Twice makes the server handle the call twice; the second answer is delivered.
	Twice bool
	// Delay is how long the answer takes, on Cluster.Clock. The server sees the call immediately.
	Delay time.Duration
}

// Call is a call that waits for the test to answer it.
type Call struct {
	hostsim.CallRequest
	ctx  context.Context
	done func(hostsim.CallResponse)
}

// Reply answers the call.
func (c *Call) Reply(r hostsim.CallResponse) { c.done(r) }

// Fail answers the call with a failure.
func (c *Call) Fail(f hostsim.CallFailure) { c.done(hostsim.CallResponse{Failure: f}) }

// Cancelled reports whether the caller no longer needs the answer.
func (c *Call) Cancelled() bool { return c.ctx.Err() != nil }

// Call implements hostsim.Cluster.
func (c *Cluster) Call(ctx context.Context, req hostsim.CallRequest, done func(hostsim.CallResponse)) error {
	c.mu.Lock()
	c.count++
	n := c.count
	c.mu.Unlock()
	var f Fault
	if c.Fault != nil {
		f = c.Fault(n, req)
	}
	if f.Refuse != nil {
		return f.Refuse
	}
	failed := f.Lost || f.Failure != hostsim.CallOK
	if !failed || f.Executed {
		c.mu.Lock()
		c.log = append(c.log, req)
		c.mu.Unlock()
	}
	var answer hostsim.CallResponse
	switch {
	case c.Handler == nil && !failed:
		c.enqueue(&Call{CallRequest: req, ctx: ctx, done: done})
		return nil
	case c.Handler != nil && (!failed || f.Executed):
		answer = c.Handler(req)
		if f.Twice {
			answer = c.Handler(req)
		}
	}
	if f.Lost {
		return nil
	}
	if f.Failure != hostsim.CallOK {
		answer = hostsim.CallResponse{Failure: f.Failure}
	}
	if f.Delay > 0 {
		c.Clock.AfterFunc(f.Delay, func() { done(answer) })
		return nil
	}
	done(answer)
	return nil
}

func (c *Cluster) enqueue(call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, call)
	c.wake()
}

// wake tells await that something came. The caller holds mu.
func (c *Cluster) wake() {
	if c.arrived != nil {
		close(c.arrived)
		c.arrived = nil
	}
}

// await waits until take, which runs under mu, returns true.
func (c *Cluster) await(ctx context.Context, what string, take func() bool) error {
	for {
		c.mu.Lock()
		if take() {
			c.mu.Unlock()
			return nil
		}
		if c.arrived == nil {
			c.arrived = make(chan struct{})
		}
		arrived := c.arrived
		c.mu.Unlock()
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("no %s came: %w", what, ctx.Err())
		}
	}
}

// Next returns the oldest unanswered call, and waits for one if there is none.
func (c *Cluster) Next(ctx context.Context) (*Call, error) {
	var call *Call
	err := c.await(ctx, "callout", func() bool {
		if len(c.waiting) == 0 {
			return false
		}
		call, c.waiting = c.waiting[0], c.waiting[1:]
		return true
	})
	return call, err
}

// Pending is the number of unanswered calls.
func (c *Cluster) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// Calls returns the calls that the server has seen.
func (c *Cluster) Calls() []hostsim.CallRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]hostsim.CallRequest(nil), c.log...)
}

// Answer makes a plain answer.
func Answer(status, body string, nameValues ...string) hostsim.CallResponse {
	return hostsim.CallResponse{Headers: append(hostsim.H(":status", status), hostsim.H(nameValues...)...), Body: []byte(body)}
}
