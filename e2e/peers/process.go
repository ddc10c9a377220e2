package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const readyTimeout = time.Minute

// process is a child that ends with stop.
type process struct {
	cmd    *exec.Cmd
	addr   string
	exited chan struct{}
	dir    string // removed with it
}

// startLogged starts a program that says where it listens in a JSON log line
// {"msg":"listening","listener":"api","addr":"..."} and waits for that line.
func startLogged(dir, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{}), dir: dir}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = p.cmd.Start()
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	found := make(chan string, 1)
	go func() {
		defer r.Close()
		var tail bytes.Buffer
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			var line struct{ Msg, Listener, Addr string }
			if json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "listening" && line.Listener == "api" {
				found <- line.Addr
				_, _ = io.Copy(io.Discard, r)
				return
			}
			if tail.Len() < 1<<16 {
				tail.Write(append(sc.Bytes(), '\n'))
			}
		}
		found <- "\n" + tail.String()
	}()
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	select {
	case addr := <-found:
		if strings.HasPrefix(addr, "\n") {
			p.stop()
			return nil, fmt.Errorf("%s ended before it listened:%s", path, addr)
		}
		p.addr = addr
		return p, nil
	case <-time.After(readyTimeout):
		p.stop()
		return nil, fmt.Errorf("%s did not say where it listens", path)
	}
}

// startListening starts a program on a given address and waits until it accepts
// connections.
func startListening(ctx context.Context, dir, addr, path string, args ...string) (*process, error) {
	var log bytes.Buffer
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{}), dir: dir, addr: addr}
	p.cmd.Stdout, p.cmd.Stderr = &log, &log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close()
			return p, nil
		}
		select {
		case <-p.exited:
			p.stop()
			return nil, fmt.Errorf("%s ended at once:\n%s", path, log.String())
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s does not accept connections: %w", path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// freeAddr returns a loopback address that was free a moment ago, for programs
// that cannot be told to choose one.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// tool runs a client program and returns what it printed.
func tool(ctx context.Context, name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed; `make bench-peers` installs it: %w", name, err)
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", name, err), errors.New(string(out)))
	}
	return string(out), nil
}

// version returns the first line that a program prints about itself.
func version(ctx context.Context, name string, args ...string) string {
	out, err := tool(ctx, name, args...)
	if err != nil && out == "" {
		return name + " (version unknown)"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return line
}
