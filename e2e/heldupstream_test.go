package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// heldUpstream counts its requests, and holds those with x-hold until release. Other headers
// choose its answer: x-hints sends 103 first, x-status is the status instead of 201, and x-more is how many bytes are added.
type heldUpstream struct {
	address string
	release func()

	answered atomic.Int64

	mu     sync.Mutex
	counts map[string]int
}

func newHeldUpstream(t *testing.T) *heldUpstream {
	held := make(chan struct{})
	u := &heldUpstream{counts: map[string]int{}, release: sync.OnceFunc(func() { close(held) })}
	server := serveBoth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		key := r.Header.Get("Idempotency-Key")
		u.mu.Lock()
		u.counts[key]++
		n := u.counts[key]
		u.mu.Unlock()
		if r.Header.Get("X-Hold") != "" {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		if r.Header.Get("X-Hints") != "" {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.Header().Set("Etag", `"paid"`)
		status, err := strconv.Atoi(r.Header.Get("X-Status"))
		if err != nil {
			status = http.StatusCreated
		}
		answer := fmt.Sprintf("execution %d of %s with %d bytes", n, key, len(body))
		if more, err := strconv.Atoi(r.Header.Get("X-More")); err == nil {
			answer += strings.Repeat("x", more)
		}
		if r.Method == "HEAD" {
			w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer) // some have no body
		u.answered.Add(1)
	}))
	u.address = server.Listener.Addr().String()
	t.Cleanup(func() {
		u.release()
		server.Close()
	})
	return u
}

// serveBoth starts a server that speaks HTTP/1 and HTTP/2, which the caller closes.
func serveBoth(h http.Handler) *httptest.Server {
	server := unstartedBoth(h)
	server.Start()
	return server
}

// unstartedBoth is serveBoth for a server that is started later.
func unstartedBoth(h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	return server
}

func (u *heldUpstream) count(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts[key]
}
