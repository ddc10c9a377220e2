package ports_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// TestHeldPortIsNobodysButItsServers: connections are refused while nobody listens, the server gets the port again and
// again, and nobody who wants any port gets it in between.
func TestHeldPortIsNobodysButItsServers(t *testing.T) {
	p, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
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
