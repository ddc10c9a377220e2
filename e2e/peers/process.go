package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const readyTimeout = time.Minute

// process is a child that ends with stop.
type process struct {
	cmd    *exec.Cmd
	addr   string
	exited chan struct{}
	log    tail
}

// tail keeps the end of what a program prints.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b = append(t.b, p...); len(t.b) > 1<<16 {
		t.b = append(t.b[:0], t.b[len(t.b)-1<<15:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// startLogged starts a program that says where it listens in a JSON log line
// {"msg":"listening","listener":"api","addr":"..."} and waits for that line.
func startLogged(path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{})}
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
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			var line struct{ Msg, Listener, Addr string }
			if json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "listening" && line.Listener == "api" {
				found <- line.Addr
				_, _ = io.Copy(&p.log, r)
				return
			}
			_, _ = p.log.Write(append(sc.Bytes(), '\n'))
		}
		found <- "\n" + p.log.String()
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
func startListening(ctx context.Context, addr, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{}), addr: addr}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	for end := time.Now().Add(readyTimeout); time.Now().Before(end) && ctx.Err() == nil; {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return p, conn.Close()
		}
		select {
		case <-p.exited:
			return nil, fmt.Errorf("%s ended at once:\n%s", path, p.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	p.stop()
	return nil, fmt.Errorf("%s does not accept connections:\n%s", path, p.log.String())
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
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

func (p *process) pid() int { return p.cmd.Process.Pid }
