package e2e

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSignalsWhileStarting: a manager that still waits for its store survives
// SIGHUP, and SIGTERM ends it in order.
func TestSignalsWhileStarting(t *testing.T) {
	t.Parallel()
	// A database that takes the connection and then says nothing.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	p := spawn(t, environ(nil).command(t, "serve", "--listen", "127.0.0.1:0", "--store", "postgres",
		"--store-dsn", "postgres://u:p@"+mute.Addr().String()+"/d?sslmode=disable"))
	if err := mute.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c, err := mute.Accept()
	if err != nil {
		t.Fatalf("%v: %s", err, p.stderr)
	}
	defer c.Close()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t); code != 0 || p.err != nil {
		t.Errorf("exit code %d, %v: %s", code, p.err, p.stderr)
	}
	if got := p.stderr.String(); !strings.Contains(got, `"msg":"stopping"`) || strings.Contains(got, "cancel") {
		t.Errorf("it said %s", got)
	}
}

// TestSilentClientsDoNotFailTheStop: a request of which only a part has come is
// nothing that a stop could cut off.
func TestSilentClientsDoNotFailTheStop(t *testing.T) {
	t.Parallel()
	p := startManager(t, "--store", "memory", "--read-timeout-seconds", "3600")
	c, err := net.Dial("tcp", p.addr["api"])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /v1/ledger/reserve HTTP/1.1\r\nhost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}
