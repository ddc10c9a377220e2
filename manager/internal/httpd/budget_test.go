package httpd

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
)

// TestBodiesShareABudget: large bodies never take more than the budget together. More wait for a while, and get 503; memory that
// is given back goes to the one that waits. Small bodies keep the other half.
func TestBodiesShareABudget(t *testing.T) {
	const limit = 1 << 20
	working, letGo := make(chan int, 8), make(chan struct{})
	s := newSite(t, siteOptions{
		server: Options{MaxBodyBytes: limit, MaxBodyMemory: 2 * limit, ReadTimeout: time.Hour},
		routes: []Route{{Method: "POST", Path: "/work", Roles: Plain, Handle: func(r *Request, w *Response) error {
			working <- len(r.Body)
			<-letGo
			answerNew(r, w)
			return nil
		}}},
	})
	taken := func(want int) {
		t.Helper()
		s.Eventually("so much memory is taken", func() bool { return int(s.server.bodies.bytes()) == want })
	}
	announce := func(path, framing string) net.Conn {
		t.Helper()
		c := s.Dial()
		s.send(c, "POST "+path+" HTTP/1.1\r\nhost: x\r\n"+framing+"\r\n\r\n")
		return c
	}
	status := func(c net.Conn) int {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == 503 && resp.Header.Get("retry-after") != "1" {
			t.Errorf("503 without a time: %v", resp.Header)
		}
		return resp.StatusCode
	}
	whole := fmt.Sprint("content-length: ", limit)
	patience := func(d time.Duration) {
		s.server.bodies.mu.Lock()
		defer s.server.bodies.mu.Unlock()
		s.server.bodies.patience = d
	}
	patience(time.Millisecond)
	// What is at work counts until it is answered, what has not arrived from its announcement on.
	first, second := announce("/work", whole), announce("/new", whole)
	s.send(first, strings.Repeat(" ", limit))
	if n := <-working; n != limit {
		t.Fatalf("%d bytes", n)
	}
	taken(2 * limit)
	for what, framing := range map[string]string{"announced": whole, "chunked": "transfer-encoding: chunked"} {
		if got := status(announce("/new", framing)); got != 503 {
			t.Errorf("%s, beyond the budget: %d", what, got)
		}
	}
	if a := s.JSON("POST", "/new", strings.Repeat(" ", firstPiece)); a.Status != 201 {
		t.Errorf("a small body: %d %s", a.Status, a.Body)
	}
	// One that waits gets what another gives back.
	patience(time.Hour)
	waiting := announce("/new", whole)
	s.Eventually("it waits", func() bool {
		s.server.bodies.mu.Lock()
		defer s.server.bodies.mu.Unlock()
		return len(s.server.bodies.waiting) == 1
	})
	close(letGo)
	if got := status(first); got != 201 {
		t.Errorf("the first: %d", got)
	}
	s.send(waiting, strings.Repeat(" ", limit))
	if got := status(waiting); got != 201 {
		t.Errorf("the one that waited: %d", got)
	}
	second.Close()
	taken(0)
	// Chunks take memory as they come, and those that cannot get more give back what they have.
	chunks := announce("/new", "transfer-encoding: chunked")
	taken(firstChunks)
	s.send(chunks, fmt.Sprintf("%x\r\n%s\r\n", firstChunks+1, strings.Repeat(" ", firstChunks+1)))
	taken(2 * firstChunks)
	chunks.Close()
	taken(0)
}

// TestBudgetGrantsInOrder: in the order in which they came, and nothing is lost when one gives up.
func TestBudgetGrantsInOrder(t *testing.T) {
	b := budget{max: 100, extra: 10, patience: time.Hour}
	if !b.take(50, true, false) || b.take(1, true, false) || !b.take(10, true, true) || b.take(1, true, true) || !b.take(40, false, false) || b.take(1, false, false) {
		t.Fatal("the halves are not kept")
	}
	b.give(40, false)
	ctx, cancel := context.WithCancel(t.Context())
	large, next := make(chan bool), make(chan bool)
	waits := func(n int) {
		for deadline := time.Now().Add(httpdtest.Patience); ; {
			b.mu.Lock()
			got := len(b.waiting)
			b.mu.Unlock()
			if got == n {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("never: %d wait", n)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	go func() { large <- b.wait(ctx, 60) }()
	waits(1)
	go func() { next <- b.wait(t.Context(), 30) }()
	waits(2)
	cancel()
	if <-large {
		t.Error("one that gave up has memory")
	}
	if !<-next {
		t.Error("the one after it got none")
	}
	b.give(30, false)
	b.give(60, true)
	if b.used != 0 || b.small != 0 || len(b.waiting) != 0 {
		t.Errorf("left: %+v", &b)
	}
}
