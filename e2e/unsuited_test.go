package e2e

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"
)

// streaming is an upstream that answers a request with x-events with a stream: of two events ("2"), of which the second waits
// for a value in next ("held"), or of one, after which it hangs up ("cut"). Others get as many bytes as x-bytes says.
type streaming struct{ next chan struct{} }

func (u streaming) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	events := r.Header.Get("X-Events")
	if events == "" {
		n, _ := strconv.Atoi(r.Header.Get("X-Bytes"))
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "data: 1\n\n")
	_ = http.NewResponseController(w).Flush()
	switch events {
	case "cut":
		panic(http.ErrAbortHandler)
	case "held":
		select {
		case u.next <- struct{}{}:
		case <-r.Context().Done():
		}
	}
	_, _ = io.WriteString(w, "data: 2\n\n")
}

// wantEvents sends a call and wants the first event while upstream waits with the second.
func (u streaming) wantEvents(t *testing.T, p *proxy, c call) {
	t.Helper()
	c.headers["x-events"] = "held"
	req, err := c.request(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len("data: 1\n\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: 1\n\n" || resp.StatusCode != 200 {
		t.Fatalf("%d %q, %v", resp.StatusCode, first, err)
	}
	<-u.next
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "data: 2\n\n" {
		t.Fatalf("the rest is %q, %v", rest, err)
	}
}

// Streams reach clients that do not announce them event by event, although the gate calls the upstream itself: the first time
// where the body asks for a stream, else from the second request of a path on.
func TestStreamsReachClientsThatDoNotAnnounceThem(t *testing.T) {
	eachWay(t, func(t *testing.T, target envoyTarget, plugin map[string]any) {
		u := streaming{next: make(chan struct{})}
		server := serveBoth(u)
		t.Cleanup(server.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: plugin, workers: 1, paymentsAddr: server.Listener.Addr().String()}
		s.stopAtEnd(t)
		s.startManager(t)
		p := s.startProxy(t)

		asks := pay(newKey())
		asks.path, asks.body = "/asks", `{"model": "m", "stream": true}`
		u.wantEvents(t, p, asks)

		for _, tt := range []struct {
			path, header, value string
			status              int
		}{
			{"/payments", "x-events", "2", 200},
			{"/cut", "x-events", "cut", 502},
			{"/large", "x-bytes", strconv.Itoa(16<<20 + 1), 410},
			{"/beyond-the-proxys-limit", "x-bytes", strconv.Itoa(33 << 20), 502},
		} {
			first, second := pay(newKey(), tt.header, tt.value), pay(newKey())
			first.path, second.path = tt.path, tt.path
			if a := send(t, p, first); a.status != tt.status {
				t.Fatalf("%s: %v", tt.path, a)
			}
			u.wantEvents(t, p, second)
		}
		largest := pay(newKey(), "x-bytes", strconv.Itoa(16<<20))
		largest.path = "/largest"
		if whole := send(t, p, largest); whole.status != 200 || len(whole.body) != 16<<20 {
			t.Errorf("%d bytes, status %d", len(whole.body), whole.status)
		}
	})
}
