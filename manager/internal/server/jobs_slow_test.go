package server

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// TestWorkerThatLeavesInTheMiddleOfItsClaim: the kernel could take the whole answer. The jobs are queued again, and the
// attempt does not count.
func TestWorkerThatLeavesInTheMiddleOfItsClaim(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a","payload":"`+strings.Repeat("x", jobs.MaxPayloadBytes-2)+`"}`)
	c, err := net.Dial("tcp", j.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST /v1/jobs/claim HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n"+`{"worker":"w"}`); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if got := j.call(200, "GET", "/v1/jobs/a", ""); got["state"] != "active" {
		t.Fatalf("it is not claimed: %v", got["state"])
	}
	_ = c.Close()
	j.Eventually("the job is queued again", func() bool { return j.call(200, "GET", "/v1/jobs/a", "")["state"] == "queued" })
	if got := j.call(200, "GET", "/v1/jobs/a", ""); got["attempt"] != 0.0 {
		t.Errorf("attempt %v", got["attempt"])
	}
	if want := "path=/v1/jobs/claim"; !strings.Contains(j.log.String(), want) {
		t.Errorf("logged %q, want %q in it", j.log, want)
	}
}
