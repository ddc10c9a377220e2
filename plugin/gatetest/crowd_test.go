package gatetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// crowd is a rig whose worker can be stopped. The calls of everything that comes meanwhile are then ready in one
// queue callback.
type crowd struct {
	*Rig
	mu   sync.Mutex
	stop chan struct{} // nil: it runs
}

func newCrowd(t *testing.T, guest hostsim.Source, o Options) *crowd {
	t.Helper()
	c := new(crowd)
	if o.Config == "" {
		o.Config = `{"manager":{"batch":"auto"}}`
	}
	o.Hooks.BeforeCallback = func(h hostsim.HookCallback) error {
		c.mu.Lock()
		stop := c.stop
		c.mu.Unlock()
		if h.Thread == "worker-0" && stop != nil {
			<-stop
		}
		return nil
	}
	c.Rig = NewRig(t, guest, o)
	return c
}

// together stops the worker while do runs, so that the worker then finds all of it together.
func (c *crowd) together(do func()) {
	stop := make(chan struct{})
	c.mu.Lock()
	c.stop = stop
	c.mu.Unlock()
	do()
	c.mu.Lock()
	c.stop = nil
	c.mu.Unlock()
	close(stop)
	c.Settle()
}

// send starts requests with n new keys at the same time.
func (c *crowd) send(n int, headers ...string) (all []*Exchange) {
	c.together(func() {
		for i := range n {
			all = append(all, c.Send(Request{Key: key(i), Headers: headers}))
		}
	})
	return all
}

func key(i int) string { return fmt.Sprintf("key-%02d", i) }

// answer lets upstream answer all of them at the same time, each with its number.
func (c *crowd) answer(all []*Exchange) {
	for _, x := range all {
		x.Upstream.AwaitHeaders(c)
	}
	c.together(func() {
		for i, x := range all {
			x.Answer(200, fmt.Sprint(i))
		}
	})
}

// once checks that all requests got their answers, and that retries get the same answers and run nothing.
func (c *crowd) once(all []*Exchange) {
	c.Helper()
	for i, x := range all {
		want(c, "answer of "+key(i), x.Response().Body, fmt.Sprint(i))
	}
	c.Settle()
	for i := range all {
		state, _ := c.Manager.State(key(i))
		want(c, "state of "+key(i), state, api.StateCommitted)
		y := c.Send(Request{Key: key(i)})
		want(c, "retry of "+key(i), y.Response().Body, fmt.Sprint(i))
		want(c, "upstream called", y.Upstream.Begun(), false)
	}
}

// sizes is what Batches returns, as a text.
func (c *crowd) sizes() string { return fmt.Sprint(c.Manager.Batches()) }
