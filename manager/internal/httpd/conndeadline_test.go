package httpd

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// scriptedConn does what it is told to, call by call, and notes the deadlines
// that it is given.
type scriptedConn struct {
	net.Conn
	steps  []step
	reads  []time.Time
	writes []time.Time
	refuse error
}

type step struct {
	n   int
	err error
}

func (c *scriptedConn) next(b []byte) (int, error) {
	s := c.steps[0]
	c.steps = c.steps[1:]
	if s.n > len(b) {
		return 0, errors.New("more than there is")
	}
	return s.n, s.err
}

func (c *scriptedConn) Read(b []byte) (int, error)  { return c.next(b) }
func (c *scriptedConn) Write(b []byte) (int, error) { return c.next(b) }

func (c *scriptedConn) SetReadDeadline(t time.Time) error {
	c.reads = append(c.reads, t)
	return c.refuse
}

func (c *scriptedConn) SetWriteDeadline(t time.Time) error {
	c.writes = append(c.writes, t)
	return c.refuse
}

func TestDeadlinesThatMoveAway(t *testing.T) {
	inner := &scriptedConn{}
	c := &limitConn{Conn: inner}
	now := time.Now()
	for i, s := range []struct {
		deadline time.Time
		sets     int
	}{
		{now.Add(10 * time.Second), 1},
		{now.Add(20 * time.Second), 1},
		{now.Add(10 * time.Second), 1},
		{time.Time{}, 1},
		{now.Add(5 * time.Second), 2},
		{now.Add(-time.Second), 3},
		{now.Add(5 * time.Second), 3},
	} {
		if err := c.SetDeadline(s.deadline); err != nil {
			t.Fatal(err)
		}
		if len(inner.reads) != s.sets || len(inner.writes) != s.sets {
			t.Fatalf("step %d: set %d and %d times, want %d", i, len(inner.reads), len(inner.writes), s.sets)
		}
	}
	// What somebody else did to the connection is not relied on.
	c.read.forget()
	if err := c.SetReadDeadline(now.Add(30 * time.Second)); err != nil || len(inner.reads) != 4 {
		t.Errorf("%v, set %d times", err, len(inner.reads))
	}
	// Neither is what the connection refused.
	inner.refuse = net.ErrClosed
	for n := 5; n < 7; n++ {
		if err := c.SetReadDeadline(now.Add(time.Second)); !errors.Is(err, net.ErrClosed) || len(inner.reads) != n {
			t.Errorf("%v, set %d times", err, len(inner.reads))
		}
	}
}

func TestEarlyTimersAreNotToldToAnybody(t *testing.T) {
	early := os.ErrDeadlineExceeded
	inner := &scriptedConn{}
	c := &limitConn{Conn: inner}
	wanted := time.Now().Add(time.Hour)
	for _, d := range []time.Time{time.Now().Add(time.Minute), wanted} {
		if err := c.SetDeadline(d); err != nil {
			t.Fatal(err)
		}
	}
	inner.steps = []step{{0, early}, {4, nil}}
	if n, err := c.Read(make([]byte, 8)); n != 4 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	inner.steps = []step{{3, early}, {0, early}, {5, nil}}
	if n, err := c.Write(make([]byte, 8)); n != 8 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if n := len(inner.reads); n != 2 || !inner.reads[1].Equal(wanted) {
		t.Errorf("read deadlines %v, want the last to be %v", inner.reads, wanted)
	}
	if n := len(inner.writes); n != 3 || !inner.writes[2].Equal(wanted) {
		t.Errorf("write deadlines %v, want the last to be %v", inner.writes, wanted)
	}
	// No deadline any more: the timer that still runs means nothing.
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	inner.steps = []step{{0, early}, {0, io.EOF}}
	if _, err := c.Read(make([]byte, 8)); err != io.EOF {
		t.Errorf("read: %v", err)
	}
	if last := inner.reads[len(inner.reads)-1]; !last.IsZero() {
		t.Errorf("the last deadline is %v, want none", last)
	}
}

func TestDeadlinesThatAreOver(t *testing.T) {
	inner := &scriptedConn{}
	c := &limitConn{Conn: inner}
	for _, d := range []time.Time{time.Now().Add(time.Minute), time.Unix(1, 0)} {
		if err := c.SetDeadline(d); err != nil {
			t.Fatal(err)
		}
	}
	inner.steps = []step{{0, os.ErrDeadlineExceeded}, {3, os.ErrDeadlineExceeded}, {0, io.ErrClosedPipe}}
	if n, err := c.Read(make([]byte, 8)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d, %v", n, err)
	}
	if n, err := c.Write(make([]byte, 8)); n != 3 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if _, err := c.Write(make([]byte, 8)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write: %v", err)
	}
}

// TestDeadlineEndsARead: another goroutine ends a read with a deadline in the
// past, as net/http does.
func TestDeadlineEndsARead(t *testing.T) {
	inner, other := net.Pipe()
	defer other.Close()
	c := &limitConn{Conn: inner}
	if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		done := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			done <- err
		}()
		if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	go other.Write([]byte("x"))
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
}
