package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
)

// protocol makes requests and knows when their answers are complete.
type protocol interface {
	// request appends the n-th request of a connection.
	request(dst []byte, conn, n int) []byte
	// answer returns the length of the answer that b begins with, 0 while it is not
	// complete. An answer that says no is an error.
	answer(b []byte) (int, error)
}

// leanClients is a load generator that costs as little as those written in C: one thread,
// one epoll loop, and per request one write and one read. The same one asks all systems, so that
// none is measured with a dearer client than another. Each of the callers has a connection and
// sends its next request when it has the answer to the one before. It returns
// requests per second and, with one caller, what each took.
func leanClients(ctx context.Context, d time.Duration, callers int, addr string, p protocol) (rate float64, took []time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ep, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return 0, nil, err
	}
	defer syscall.Close(ep)
	conns := make([]leanConn, callers)
	for i := range conns {
		c := &conns[i]
		if c.fd, err = dialLean(addr); err != nil {
			return 0, nil, err
		}
		defer syscall.Close(c.fd)
		c.number, c.in = i, make([]byte, 0, 256<<10)
		ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
		if err := syscall.EpollCtl(ep, syscall.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
			return 0, nil, err
		}
	}
	start := time.Now()
	end, done, last := start.Add(d), 0, start
	for i := range conns {
		if err := conns[i].send(p); err != nil {
			return 0, nil, err
		}
	}
	events := make([]syscall.EpollEvent, callers)
	for open := callers; open > 0; {
		// Raw: the runtime would take the thread for blocked, and hand its work to another one.
		n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 100, 0, 0)
		if errno != 0 && errno != syscall.EINTR {
			return 0, nil, errno
		}
		if errno != 0 {
			continue
		}
		if n == 0 && time.Since(end) > time.Minute {
			return 0, nil, errors.New("an answer does not come")
		}
		for _, ev := range events[:n] {
			c := &conns[ev.Fd]
			complete, err := c.receive(p)
			if err != nil {
				return 0, nil, err
			}
			if !complete {
				continue
			}
			done++
			now := time.Now()
			if callers == 1 {
				took = append(took, now.Sub(last))
				last = now
			}
			if now.After(end) || ctx.Err() != nil {
				open--
			} else if err := c.send(p); err != nil {
				return 0, nil, err
			}
		}
	}
	return float64(done) / time.Since(start).Seconds(), took, ctx.Err()
}

func dialLean(addr string) (int, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	c, err := net.Dial(network, addr)
	if err != nil {
		return -1, err
	}
	defer c.Close()
	f, err := c.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dup error
	if err := f.Control(func(old uintptr) { fd, dup = syscall.Dup(int(old)) }); err != nil {
		return -1, err
	}
	return fd, dup
}

type leanConn struct {
	fd, number, sent int
	out, in          []byte
}

func (c *leanConn) send(p protocol) error {
	c.out = p.request(c.out[:0], c.number, c.sent)
	c.sent++
	for rest := c.out; len(rest) > 0; {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)))
		switch errno {
		case 0:
			rest = rest[n:]
		case syscall.EAGAIN, syscall.EINTR: // larger than the socket's buffer, which the server empties
		default:
			return errno
		}
	}
	return nil
}

func (c *leanConn) receive(p protocol) (complete bool, err error) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(c.in[len(c.in):cap(c.in)]))), uintptr(cap(c.in)-len(c.in)))
	switch {
	case errno == syscall.EAGAIN || errno == syscall.EINTR:
		return false, nil
	case errno != 0:
		return false, errno
	case n == 0:
		return false, errors.New("the server closed the connection, or its answer is too large")
	}
	c.in = c.in[:len(c.in)+int(n)]
	size, err := p.answer(c.in)
	if err != nil || size == 0 {
		return false, err
	}
	c.in = append(c.in[:0], c.in[size:]...)
	return true, nil
}

// redisSets is SET NX PX, so many in a pipeline.
type redisSets struct {
	run      string
	pipeline int
	value    string
}

func (r *redisSets) request(dst []byte, conn, n int) []byte {
	for i := range r.pipeline {
		dst = append(dst, "*6\r\n$3\r\nSET\r\n$32\r\n"...)
		dst = appendKey(dst, r.run, conn, n*r.pipeline+i)
		dst = append(dst, "\r\n$256\r\n"...)
		dst = append(dst, r.value...)
		dst = append(dst, "\r\n$2\r\nNX\r\n$2\r\nPX\r\n$6\r\n300000\r\n"...)
	}
	return dst
}

func (r *redisSets) answer(b []byte) (int, error) {
	const ok = "+OK\r\n"
	want := len(ok) * r.pipeline
	for i := 0; i < min(len(b), want); i++ {
		if b[i] != ok[i%len(ok)] {
			return 0, fmt.Errorf("redis: %q", b)
		}
	}
	if len(b) < want {
		return 0, nil
	}
	return want, nil
}

// ledgerCalls reserves keys and commits answers of 256 bytes for them, in turns, as single calls over HTTP.
type ledgerCalls struct {
	run     string
	value   []byte
	scratch []byte
}

var (
	leanScope       = strings.Repeat("s", 43)
	leanFingerprint = strings.Repeat("f", 43)
)

// newLedgerCalls makes so many calls at a time on a stream, 0: single calls.
func newLedgerCalls(together int) protocol {
	calls := ledgerCalls{run: runName(), value: make([]byte, 256)}
	if together > 0 {
		return &ledgerStreams{calls: calls, together: together}
	}
	return &calls
}

// leanOp is what the n-th request of a connection asks for.
func leanOp(n int) api.Op {
	if n%2 == 1 {
		return api.OpCommit
	}
	return api.OpReserve
}

func (l *ledgerCalls) request(dst []byte, conn, n int) []byte {
	op := leanOp(n)
	l.scratch = l.message(l.scratch[:0], op, conn, n/2)
	dst = append(append(append(dst, "POST "...), op.Path()...), " HTTP/1.1\r\nhost: m\r\ncontent-type: "+api.ContentTypeRaw+"\r\ncontent-length: "...)
	return append(append(appendNumber(dst, len(l.scratch)), "\r\n\r\n"...), l.scratch...)
}

func (l *ledgerCalls) message(dst []byte, op api.Op, conn, n int) []byte {
	var key [32]byte
	k := string(appendKey(key[:0], l.run, conn, n))
	if op == api.OpReserve {
		return (&api.ReserveRequest{Key: k, Scope: leanScope, Token: k, Fingerprint: leanFingerprint}).AppendRaw(dst)
	}
	return (&api.FinishRequest{Key: k, Scope: leanScope, Token: k, Fingerprint: leanFingerprint, Result: api.Result{
		Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: l.value,
	}}).AppendRaw(dst)
}

var contentLength = []byte("\r\nContent-Length: ")

func (l *ledgerCalls) answer(b []byte) (int, error) {
	end, _, err := httpAnswer(b)
	return end, err
}

// httpAnswer returns the length and the body of the manager's answer that b begins with, 0 while it
// is not complete.
func httpAnswer(b []byte) (end int, body []byte, err error) {
	head := bytes.Index(b, []byte("\r\n\r\n"))
	if head < 0 {
		return 0, nil, nil
	}
	at := bytes.Index(b[:head], contentLength)
	if at < 0 || !bytes.HasPrefix(b, []byte("HTTP/1.1 20")) {
		return 0, nil, fmt.Errorf("manager: %q", b[:min(len(b), 1000)])
	}
	size := 0
	for _, c := range b[at+len(contentLength) : head] {
		if c == '\r' {
			break
		}
		size = size*10 + int(c-'0')
	}
	if end = head + 4 + size; len(b) < end {
		return 0, nil, nil
	}
	return end, b[head+4 : end], nil
}

// appendKey appends 32 bytes, another 32 for each run, connection and number.
func appendKey(dst []byte, run string, conn, n int) []byte {
	key := [32]byte([]byte(strings.Repeat("0", 32)))
	copy(key[:], run[:min(len(run), 16)])
	for i := len(key) - 1; n > 0; i-- {
		key[i] = byte('0' + n%10)
		n /= 10
	}
	for i := 21; conn > 0; i-- {
		key[i] = byte('0' + conn%10)
		conn /= 10
	}
	return append(dst, key[:]...)
}
