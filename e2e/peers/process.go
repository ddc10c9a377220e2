package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"

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
	return servers.StartProgram(ctx, func(ctx context.Context, _ string) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}, path, args...)
}

// startRedis starts a Redis on a TCP address, which fsyncs before it answers.
func startRedis(ctx context.Context, args ...string) (srv *servers.Server, addr string, err error) {
	if addr, err = freeAddr(); err != nil {
		return nil, "", err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", err
	}
	srv, err = servers.StartRedis(ctx, append(args, "--bind", host, "--port", port)...)
	return srv, addr, err
}

// freeAddr returns a loopback address that was free a moment ago, for programs
// that cannot choose one.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
