// Package ports reserves ports of the loopback interface for servers that tests start later, or stop and start again.
//
// A port that a listener has given back can be anybody's: another test's listener gets it before the server is back, and
// the server cannot start.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// HoldLasting reserves a free port below those that outgoing connections get, for an address that later processes use again.
// The caller must call Release.
func HoldLasting() (p *Port, err error) {
	for range 1000 {
		if p, err = hold(15_000+rand.IntN(15_000), false); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return p, err
}

// HoldNumber reserves the port with this number, even if another process holds it; 0 is any free one. The error is
// syscall.EADDRINUSE when a program listens there. The caller must call Release.
func HoldNumber(number int) (*Port, error) { return hold(number, true) }

// hold reserves a port. Unless shared, no other socket may have it, not even one whose connections ended a moment ago.
func hold(number int, shared bool) (*Port, error) {
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
	if err := p.bind(number, shared); err != nil {
		p.Release()
		return nil, err
	}
	if runtime.GOOS != "linux" {
		p.Release() // a bound socket would keep the server out as well
	}
	return p, nil
}

func (p *Port) bind(number int, shared bool) error {
	share := func() error {
		return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(p.fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	}
	if shared {
		if err := share(); err != nil {
			return err
		}
	}
	loopback := syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(p.fd, &loopback); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if !shared { // the caller's server has to get it
		if err := share(); err != nil {
			return err
		}
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
