package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// Replays and refusals keep an HTTP/1.1 client's connection in both modes, as long as a request comes in one packet:
// counted in the client and in Envoy.
func TestRepliesKeepTheConnection(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := dialRaw(t, p)
		c.send(t, key, "text/plain", amount)
		c.answer(t, 201)
		kept := 0
		again := func(r *http.Response) {
			if !r.Close {
				kept++
				return
			}
			c = dialRaw(t, p) // the proxy stood still for longer than a reply waits
		}
		for range 50 {
			c.send(t, key, "text/plain", amount)
			r := c.answer(t, 201)
			if r.Header.Get("Idempotent-Replayed") != "true" {
				t.Fatalf("replay: %v", r.Header)
			}
			again(r)
			c.send(t, key, "text/html", amount)
			again(c.answer(t, 422))
		}
		if kept < 90 {
			t.Errorf("%d of 100 replies kept the connection", kept)
		}
	})
}

// A replay waits for a body that comes after the headers' packet, and not forever.
func TestReplayWaitsForASecondPacket(t *testing.T) {
	t.Parallel()
	// In body mode the whole body is read first.
	sideBySide(t, []string{"headers"}, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		key := newKey()
		c := dialRaw(t, p)
		c.send(t, key, "text/plain", amount)
		c.answer(t, 201)
		kept := 0
		for range 20 {
			c.write(t, head(key, "text/plain", len(amount)))
			c.write(t, amount[:3])
			c.write(t, amount[3:])
			if r := c.answer(t, 201); !r.Close {
				kept++
				continue
			}
			c = dialRaw(t, p) // the machine was too busy to send it in time
		}
		if kept == 0 {
			t.Error("no replay waited for the rest of its request")
		}
		c.write(t, head(key, "text/plain", len(amount)))
		if r := c.answer(t, 201); !r.Close {
			t.Error("a replay came before its request's end and left the connection open")
		}
		// A client that asks before it sends gets an answer before its body.
		c = dialRaw(t, p)
		c.write(t, strings.Replace(head(key, "text/plain", len(amount)), "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1))
		c.answer(t, 201)
	})
}

// A client that sends a large body before it reads gets its replay, and keeps its connection.
func TestReplayWaitsForALargeBody(t *testing.T) {
	t.Parallel()
	sideBySide(t, []string{"headers", "body"}, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(201)
		}, nil)
		p := s.proxies[0]
		const hits = "oncegate_gate_requests_hit_committed_total"
		count := func() int {
			n, err := p.metric(hits)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		key, body := newKey(), strings.Repeat("a", 700_000) // more than max_request_body_bytes
		c := dialRaw(t, p)
		c.send(t, key, "text/plain", body)
		c.answer(t, 201)
		kept := false
		for range 20 {
			c, before := dialRaw(t, p), count()
			c.write(t, head(key, "text/plain", len(body)))
			c.write(t, body[:600_000])
			eventually(t, "the gate does not decide", func() error {
				if count() == before {
					return errors.New(hits + " does not grow")
				}
				return nil
			})
			c.write(t, body[600_000:])
			if r := c.answer(t, 201); r.Header.Get("Idempotent-Replayed") != "true" {
				t.Fatalf("%v", r.Header)
			} else if kept = !r.Close; kept {
				break
			}
			// The machine was too busy to send the rest within a second.
		}
		if !kept {
			t.Error("no replay waited for the rest of its request")
		}
	})
}

const amount = `{"amount": 1}`

// raw is a client's connection.
type raw struct {
	net.Conn
	r *bufio.Reader
}

func dialRaw(t *testing.T, p *proxy) *raw {
	t.Helper()
	c := dial(t, p)
	return &raw{c, bufio.NewReader(c)}
}

func head(key, contentType string, length int) string {
	return fmt.Sprintf("POST /payments HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s\r\nContent-Type: %s\r\nContent-Length: %s\r\n\r\n",
		host, key, contentType, strconv.Itoa(length))
}

func (c *raw) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func (c *raw) send(t *testing.T, key, contentType, body string) {
	t.Helper()
	c.write(t, head(key, contentType, len(body))+body)
}

// answer reads a final response.
func (c *raw) answer(t *testing.T, status int) *http.Response {
	t.Helper()
	for {
		r, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode == 100 {
			continue
		}
		if r.StatusCode != status {
			t.Fatalf("status %d, want %d: %s", r.StatusCode, status, text)
		}
		return r
	}
}

// A client gets the replay of a slow upload that fills each buffer on the way, even if it sends all of it before it reads. A reply
// before the end would lose it: Envoy then reads no more, and resets the connection after a second.
func TestSlowUploadGetsItsReplay(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	sideBySide(t, []string{"headers", "body"}, func(t *testing.T, target envoyTarget, mode string) {
		p := newSurface(t, target, mode, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(201)
		}, nil).proxies[0]
		key, body := newKey(), strings.Repeat("a", 30_000_000)
		c := dialRaw(t, p)
		c.send(t, key, "text/plain", body)
		c.answer(t, 201)
		c = dialRaw(t, p)
		c.write(t, head(key, "text/plain", len(body)))
		const pieces = 30
		for i := range pieces { // 3 s, longer than Envoy's delay
			c.write(t, body[i*len(body)/pieces:(i+1)*len(body)/pieces])
			<-time.After(100 * time.Millisecond)
		}
		if r := c.answer(t, 201); r.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%v", r.Header)
		}
	})
}
