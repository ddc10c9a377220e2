package httpd

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"
)

// countedReads counts the reads of a connection that has all its bytes already.
type countedReads struct {
	net.Conn
	from  *bytes.Reader
	reads int
}

func (c *countedReads) Read(b []byte) (int, error) {
	c.reads++
	return c.from.Read(b)
}

// What follows the preface of HTTP/2 is read ahead: small frames cost few system calls. Nothing is lost, whatever the sizes of reads.
func TestSmallFramesAreReadAhead(t *testing.T) {
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	for name, size := range map[string]func() int{
		"heads and small frames": func() int { return 9 + rand.IntN(200) },
		"frames of all sizes":    func() int { return 1 + rand.IntN(2*readAheadBytes) },
	} {
		inner := &countedReads{from: bytes.NewReader(append([]byte(preface), sent...))}
		c := &limitConn{Conn: inner, limiter: new(limiter), phase: connUsed}
		if _, err := io.ReadFull(c, make([]byte, len(preface))); err != nil {
			t.Fatal(err)
		}
		inner.reads = 0
		var got []byte
		reads := 0
		for len(got) < len(sent) {
			b := make([]byte, min(size(), len(sent)-len(got)))
			if _, err := io.ReadFull(c, b); err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
			reads++
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%s: other bytes came than were sent", name)
		}
		if most := max(2*len(sent)/readAheadBytes, reads*3); name == "heads and small frames" && inner.reads > 2*len(sent)/readAheadBytes || inner.reads > most {
			t.Errorf("%s: %d reads of %d reached the connection", name, inner.reads, reads)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: %v at the end", name, err)
		}
	}
}
