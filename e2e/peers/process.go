package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"

	"github.com/oncegate/oncegate/manager/managertest/ports"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// startLogged starts a program that says where it listens in a JSON log line
// {"msg":"listening","listener":"api","addr":"..."} and waits for that line. The URL of the result is that address.
func startLogged(ctx context.Context, path string, args ...string) (*servers.Server, error) {
	var line struct{ Msg, Listener, Addr string }
	p, err := servers.StartProgram(ctx, func(_ context.Context, printed string) error {
		for text := range strings.Lines(printed) {
			if json.Unmarshal([]byte(text), &line) == nil && line.Msg == "listening" && line.Listener == "api" {
				return nil
			}
		}
		return errors.New("it has not said where it listens")
	}, path, args...)
	if err == nil {
		p.URL = line.Addr
	}
	return p, err
}

// startListening starts a program on a given address and waits until it accepts connections.
func startListening(ctx context.Context, addr, path string, args ...string) (*servers.Server, error) {
	p, err := servers.StartProgram(ctx, func(ctx context.Context, _ string) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}, path, args...)
	if err == nil {
		p.URL = addr
	}
	return p, err
}

// address reserves a port until the end, for a program that cannot choose one.
func (t *table) address() (string, error) {
	port, err := ports.Hold()
	if err != nil {
		return "", err
	}
	t.onStop(port.Release)
	return port.Address, nil
}

// startRedis starts a Redis on a TCP address until the end. It fsyncs before it answers.
func (t *table) startRedis(ctx context.Context, args ...string) (pid int, addr string, err error) {
	if addr, err = t.address(); err != nil {
		return 0, "", err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, "", err
	}
	srv, err := servers.StartRedis(ctx, append(args, "--bind", host, "--port", port)...)
	if err != nil {
		return 0, "", err
	}
	t.onStop(srv.Close)
	return srv.PID(), addr, nil
}
