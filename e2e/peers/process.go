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
	"strconv"
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
	dir    string // removed with it
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
func startListening(ctx context.Context, dir, addr, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{}), dir: dir, addr: addr}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
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
			return nil, fmt.Errorf("%s ended at once:\n%s", path, p.log.String())
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

// cpu is the CPU time that the process has used, with that of children that have
// ended, in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// After the name, which may have spaces: state is field 3; utime, stime, cutime and
	// cstime are 14 to 17, in hundredths of a second.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", p.cmd.Process.Pid, text)
	}
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// rss is the memory that the process has resident, in bytes.
func (p *process) rss() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
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
