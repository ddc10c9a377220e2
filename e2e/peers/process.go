package main

import (
	"context"
	"net"

	"github.com/oncegate/oncegate/manager/managertest/ports"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// address reserves a port until the end.
func (t *table) address() (string, error) {
	port, err := ports.Hold()
	if err != nil {
		return "", err
	}
	t.onStop(port.Release)
	return port.Address, nil
}

// startProgram starts a program until the end, whose last argument is the address to listen on, and waits until it accepts
// connections. The URL of the result is that address.
func (t *table) startProgram(ctx context.Context, path string, args ...string) (*servers.Server, error) {
	addr, err := t.address()
	if err != nil {
		return nil, err
	}
	return t.startOn(ctx, addr, path, append(args, addr)...)
}

// startOn is startProgram for a program that knows its address already.
func (t *table) startOn(ctx context.Context, addr, path string, args ...string) (*servers.Server, error) {
	p, err := servers.StartProgram(ctx, func(ctx context.Context, _ string) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}, path, args...)
	if err != nil {
		return nil, err
	}
	t.onStop(p.Close)
	p.URL = addr
	return p, nil
}

// startManager starts one until the end, whose window is so large that it refuses no new key during the longest run.
func (t *table) startManager(ctx context.Context, flags ...string) (*servers.Server, error) {
	args := append([]string{"serve", "--max-entries", "20000000", "--max-bytes", "1099511627776", "--scope-share", "0"}, flags...)
	return t.startProgram(ctx, t.manager(), append(args, "--listen")...)
}

// startRedis starts a Redis on a TCP address, which is its URL, until the end. It fsyncs before it answers.
func (t *table) startRedis(ctx context.Context, args ...string) (*servers.Server, error) {
	addr, err := t.address()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	srv, err := servers.StartRedis(ctx, append(args, "--bind", host, "--port", port)...)
	if err != nil {
		return nil, err
	}
	t.onStop(srv.Close)
	srv.URL = addr
	return srv, nil
}

// startEtcd starts three members of etcd until the end.
func (t *table) startEtcd(ctx context.Context) (urls []string, pids []int, err error) {
	members, err := servers.StartEtcdMembers(ctx, 3)
	for _, m := range members {
		t.onStop(m.Close)
		urls, pids = append(urls, m.URL), append(pids, m.PID())
	}
	return urls, pids, err
}
