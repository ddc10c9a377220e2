package ports_test

import (
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// TestHeldPortIsNobodysButItsServers: connections are refused while nobody listens, the server gets the port again and
// again, and nobody who wants any port gets it in between.
func TestHeldPortIsNobodysButItsServers(t *testing.T) {
	for name, hold := range map[string]func() (*ports.Port, error){"any": ports.Hold, "lasting": ports.HoldLasting} {
		t.Run(name, func(t *testing.T) {
			p, err := hold()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			isItsServers(t, p)
		})
	}
}

// TestLastingPortsDiffer: of a thousand ports that are chosen at random from 15,000, some thirty would be another one's.
func TestLastingPortsDiffer(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing keeps them
	}
	all := map[string]bool{}
	for len(all) < 1000 {
		p, err := ports.HoldLasting()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		if all[p.Address] {
			t.Fatal("one port was held twice")
		}
		all[p.Address] = true
	}
}

func isItsServers(t *testing.T, p *ports.Port) {
	t.Helper()
	for range 3 {
		if c, err := net.Dial("tcp", p.Address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("while nobody listens: %v, %v", c, err)
		}
		l, err := net.Listen("tcp", p.Address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", p.Address)
		if err != nil {
			t.Fatal(err)
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = in.Close(), c.Close(), l.Close() // the server's side first, whose port then rests
	}
	if runtime.GOOS != "linux" {
		return // nothing keeps it there
	}
	// More than there are ports to choose from.
	for range 100_000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		taken := l.Addr().String() == p.Address
		_ = l.Close()
		if taken {
			t.Fatal("somebody else got the port")
		}
	}
}

// TestReleaseTwice: the second call must not close what has the first one's number by now.
func TestReleaseTwice(t *testing.T) {
	p, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	next, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	p.Release()
	if runtime.GOOS != "linux" {
		return
	}
	exclusive := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) })
	}}
	if l, err := exclusive.Listen(t.Context(), "tcp", next.Address); err == nil {
		_ = l.Close()
		t.Error("the other port is not held any more")
	}
}
