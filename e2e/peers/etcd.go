package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func measureEtcd(ctx context.Context, s settings) ([]float64, error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("etcd is not installed; `make bench-peers` installs it: %w", err)
	}
	client, err := freeAddr()
	if err != nil {
		return nil, err
	}
	peer, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "oncegate-peers")
	if err != nil {
		return nil, err
	}
	p, err := startListening(ctx, dir, client, path, "--data-dir", dir, "--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer, "--log-level", "error")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	const connections = 4
	clients := make([]*clientv3.Client, connections)
	for i := range clients {
		if clients[i], err = clientv3.New(clientv3.Config{Endpoints: []string{client}, DialTimeout: readyTimeout}); err != nil {
			return nil, err
		}
		defer clients[i].Close()
	}
	value := strings.Repeat("x", 256)
	return forCallers(s, func(callers int) (float64, error) {
		return timedCalls(ctx, s.duration, callers, func(ctx context.Context, caller, n int) error {
			key := fmt.Sprintf("%d/%d/%d", callers, caller, n)
			_, err := clients[caller%connections].Txn(ctx).
				If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, value)).Commit()
			return err
		})
	})
}

// timedCalls lets callers goroutines call op until the duration is over and
// returns calls per second.
func timedCalls(ctx context.Context, d time.Duration, callers int, op func(ctx context.Context, caller, n int) error) (float64, error) {
	var done atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, callers)
	start := time.Now()
	stop := start.Add(d)
	for c := range callers {
		wg.Go(func() {
			for n := 0; time.Now().Before(stop); n++ {
				if err := op(ctx, c, n); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return float64(done.Load()) / elapsed.Seconds(), errors.Join(all...)
}
