package hostsimtest

import (
	"net"
	"testing"
)

// RefusingAddress returns a loopback address that refuses connections until the test ends. Its port is the local port
// of a client connection, so no other program can listen there meanwhile.
func RefusingAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}
