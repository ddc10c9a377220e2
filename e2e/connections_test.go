package e2e

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// What happens to the gate's connections to a manager while requests run.

// crowdClients is how many send at the same time.
const crowdClients = 64

// crowdOfKeys is a load of new keys on many connections. Its clients repeat a request until it is answered.
type crowdOfKeys struct {
	mu    sync.Mutex
	first map[string]answer
	sent  []string
	stop  chan struct{}
	wg    sync.WaitGroup
}

// load begins to send; ask sends one request, and says whether it was answered for good.
func (s *stack) load(t *testing.T, ask func(key string) (answer, bool)) *crowdOfKeys {
	c := &crowdOfKeys{first: map[string]answer{}, stop: make(chan struct{})}
	for range crowdClients {
		c.wg.Go(func() {
			for t.Context().Err() == nil {
				select {
				case <-c.stop:
					return
				default:
				}
				key := newKey()
				c.mu.Lock()
				c.sent = append(c.sent, key)
				c.mu.Unlock()
				for begun := time.Now(); t.Context().Err() == nil; {
					a, ok := ask(key)
					if ok {
						c.mu.Lock()
						c.first[key] = a
						c.mu.Unlock()
						break
					}
					if time.Since(begun) > patience || a.headers.Get("Idempotency-Status") == "outcome-unknown" { // which stays so
						t.Errorf("%s is not answered after %v: %v", key, time.Since(begun), a)
						return
					}
				}
			}
		})
	}
	return c
}

// await waits until n keys are answered.
func (c *crowdOfKeys) await(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the load does not continue", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.first) < n {
			return fmt.Errorf("%d of %d keys are answered", len(c.first), n)
		}
		return nil
	})
}

func (c *crowdOfKeys) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.first)
}

// end ends the load.
func (c *crowdOfKeys) end() {
	close(c.stop)
	c.wg.Wait()
}

// ask returns what load needs for clients of all proxies that repeat a request until it is paid.
func (s *stack) ask(t *testing.T) func(key string) (answer, bool) {
	return func(key string) (answer, bool) {
		a, err := do(t.Context(), s.proxies[int(key[len(key)-1])%len(s.proxies)], pay(key))
		return a, err == nil && a.status == 201
	}
}

// askOnce is ask for clients that must be served at the first try.
func (s *stack) askOnce(t *testing.T) func(key string) (answer, bool) {
	ask := s.ask(t)
	return func(key string) (answer, bool) {
		a, ok := ask(key)
		if !ok {
			t.Errorf("%s: %v", key, a)
		}
		return a, true
	}
}

// wantOnce checks that each key ran once, and that the ledger has the first answers.
func (c *crowdOfKeys) wantOnce(t *testing.T, s *stack) {
	t.Helper()
	other := s.startProxy(t) // knows only what the ledger knows
	for key, first := range c.first {
		wantReplay(t, other, pay(key), first)
	}
	ran := s.allExecutions(t)
	for key := range c.first {
		if ran[key] != 1 {
			t.Errorf("key %q was executed %d times, want once", key, ran[key])
		}
	}
	t.Logf("%d keys", len(c.first))
	for _, p := range s.proxies {
		p.wantNoTrap(t)
	}
}

// The manager is killed again and again under load: each key runs once, and what was answered is recorded.
func TestManagerIsKilledUnderLoad(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
		s.startProxy(t)
		c := s.load(t, s.ask(t))
		for range deep.Rounds(4, 20) {
			c.await(t, c.answered()+100)
			s.manager.kill()
			s.startManager(t)
		}
		c.await(t, c.answered()+100)
		c.end()
		c.wantOnce(t, s)
	})
}

// A deploy of the manager, which says goodbye to its connections: no client gets an error.
func TestManagerIsDeployedUnderLoad(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
		s.startProxy(t)
		c := s.load(t, s.askOnce(t))
		for range deep.Rounds(2, 10) {
			c.await(t, c.answered()+100)
			if err := s.manager.stop(); err != nil {
				t.Error(err)
			}
			s.startManager(t)
		}
		c.await(t, c.answered()+100)
		c.end()
		c.wantOnce(t, s)
	})
}

// limitCluster changes the limits of a cluster's connections.
func limitCluster(name string, limit func(*corev3.HttpProtocolOptions)) func(*bootstrapv3.Bootstrap) error {
	return func(b *bootstrapv3.Bootstrap) error {
		var failed error
		err := editCluster(b, name, func(c *clusterv3.Cluster) {
			options, packed := new(httpv3.HttpProtocolOptions), c.TypedExtensionProtocolOptions[protocolOptions]
			if failed = packed.UnmarshalTo(options); failed == nil {
				limit(options.CommonHttpProtocolOptions)
				failed = packed.MarshalFrom(options)
			}
		})
		return errors.Join(err, failed)
	}
}

// Envoy ends streams, or unused connections, after a time, while requests run and while none do: no client gets an error. Limits of
// connections do not end a stream.
func TestStreamsEndByTime(t *testing.T) {
	brief := durationpb.New(300 * time.Millisecond)
	limits := map[string]func(*corev3.HttpProtocolOptions){
		"max_stream_duration":     func(o *corev3.HttpProtocolOptions) { o.MaxStreamDuration = brief },
		"max_connection_duration": func(o *corev3.HttpProtocolOptions) { o.MaxConnectionDuration = brief },
		"idle_timeout":            func(o *corev3.HttpProtocolOptions) { o.IdleTimeout = brief },
	}
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		for _, name := range deep.Keys(t, limits) {
			t.Run(name, func(t *testing.T) {
				s := &stack{dir: t.TempDir(), target: target, mode: mode, bootstrap: limitCluster("oncegate_manager", limits[name]),
					plugin: map[string]any{"pending_wait_timeout": 60, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600}}
				ofStreams := name == "max_stream_duration"
				ended := "cluster.oncegate_manager.upstream_rq_active" // which is 0 when the limit has passed
				if !ofStreams {
					s.bootstrap = both(s.bootstrap, limitCluster("upstream", limits[name]))
					ended = "cluster.upstream.upstream_cx_active"
				}
				s.stopAtEnd(t)
				s.startManager(t)
				s.startPayments(t)
				p := s.startProxy(t)
				c := s.load(t, s.askOnce(t))
				if ofStreams {
					eventually(t, "streams do not end", func() error {
						if n, err := p.metric("oncegate_gate_connections_total"); err != nil || n < 10 {
							return fmt.Errorf("%d connections, %v", n, err)
						}
						return nil
					})
				}
				c.await(t, c.answered()+200)
				c.end()
				connections := p.stat(t, "cluster.oncegate_manager.upstream_cx_total")
				for range 5 {
					eventually(t, ended, func() error { return unequal(p.stat(t, ended), 0) })
					wantFirst(t, p, pay(newKey()), 201)
				}
				if n := p.stat(t, "cluster.oncegate_manager.upstream_cx_total"); !ofStreams && n != connections {
					t.Errorf("%d connections to the manager, and %d before", n, connections)
				}
				c.wantOnce(t, s)
			})
		}
	})
}

// The work of one key takes long, and its duplicates come to two proxies: one execution, and no connection for each waiter.
func TestManyDuplicatesHaveFewConnections(t *testing.T) {
	eachCrowd(t, func(t *testing.T, target envoyTarget, mode string) {
		duplicates := deep.Rounds(400, 2000)
		s, up := crowdStack(t, target, mode, map[string]any{"max_waiters": duplicates, "pending_ttl_seconds": 600, "pending_wait_timeout": 60})
		proxies := []*proxy{s.proxies[0], s.startProxy(t)}
		key := newKey()
		first := sendCrowd(t.Context(), proxies[0], 1, func(int) string { return key })
		up.awaitRun(t, key)
		var crowds []*crowdAnswers
		for _, p := range proxies {
			crowds = append(crowds, sendCrowd(t.Context(), p, duplicates/2, func(int) string { return key }))
		}
		for i, p := range proxies {
			// One of the other proxy's asks the manager.
			p.awaitMetric(t, "oncegate_gate_waiters", duplicates/2-i)
			if n := p.stat(t, "cluster.oncegate_manager.upstream_cx_active"); n > 2 {
				t.Errorf("%d connections to the manager", n)
			}
		}
		close(up.open)
		wantCounts(t, first.count(t), map[string]int{"201": 1})
		for _, c := range crowds {
			wantCounts(t, c.count(t), map[string]int{"201 true": duplicates / 2})
		}
		if n := up.ran(key); n != 1 {
			t.Errorf("executed %d times", n)
		}
		for _, p := range proxies {
			if n := p.stat(t, "cluster.oncegate_manager.upstream_cx_total"); n > 2 {
				t.Errorf("%d connections to the manager", n)
			}
			p.wantNoTrap(t)
		}
	})
}

// A proxy is killed under load: what it had begun may have run and does not run again, and the other one serves all else.
func TestProxyIsKilledUnderLoad(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newStack(t, target, mode, map[string]any{"pending_wait_timeout": 0.2, "pending_ttl_seconds": 600, "committed_ttl_seconds": 3600})
		doomed, other := s.proxies[0], s.startProxy(t)
		lost := 0
		c := s.load(t, func(key string) (answer, bool) {
			a, err := do(t.Context(), doomed, pay(key))
			if err == nil && a.status == 201 {
				return a, true
			}
			a, err = do(t.Context(), other, pay(key))
			return a, err == nil && (a.status == 201 || a.headers.Get("Idempotency-Status") == "request-pending")
		})
		c.await(t, 400)
		doomed.kill()
		c.await(t, c.answered()+400)
		c.end()
		for key, first := range c.first {
			if first.status != 201 {
				lost++ // its gate died with it
				if n := s.executions(t, key); n > 1 {
					t.Errorf("key %s was executed %d times", key, n)
				}
				continue
			}
			wantReplay(t, other, pay(key), first)
			s.wantExecutions(t, key, 1)
		}
		if lost > crowdClients {
			t.Errorf("%d keys were lost with a proxy that had %d requests", lost, crowdClients)
		}
	})
}
