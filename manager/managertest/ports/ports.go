// Package ports reserves ports of the loopback interface for servers that tests start later, or stop and start again.
//
// A port that a listener has given back can be anybody's: another test's listener gets it before the server is back, and
// the server cannot start.
package ports

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

// Port is a port that the system gives to no other caller who asks for any free one, nor to an outgoing connection.
// Connections to it are refused until a server listens at Address, which takes SO_REUSEADDR, as Go's net.Listen and
// Envoy set it. Beyond Linux it is only a port that was free.
type Port struct {
	// Address is "127.0.0.1:" and Number.
	Address string
	Number  int

	fd int
}

// Hold reserves a free port. The caller must call Release.
func Hold() (*Port, error) { return HoldNumber(0) }

// HoldNumber reserves the port with this number; 0 is any free one. The error is syscall.EADDRINUSE when a program
// listens there. The caller must call Release.
func HoldNumber(number int) (*Port, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &Port{fd: fd}
	if err := p.bind(number); err != nil {
		p.Release()
		return nil, err
	}
	if runtime.GOOS != "linux" {
		p.Release() // a bound socket would keep the server out as well
	}
	return p, nil
}

func (p *Port) bind(number int) error {
	if err := syscall.SetsockoptInt(p.fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	loopback := syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(p.fd, &loopback); err != nil {
		return os.NewSyscallError("bind", err)
	}
	got, err := syscall.Getsockname(p.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	bound, ok := got.(*syscall.SockaddrInet4)
	if !ok {
		return fmt.Errorf("bound to %v", got)
	}
	p.Number = bound.Port
	p.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number))
	return nil
}

// Release gives the port back. A server that listens there keeps it. Later calls do nothing.
func (p *Port) Release() {
	if p.fd >= 0 {
		_ = syscall.Close(p.fd)
	}
	p.fd = -1
}
