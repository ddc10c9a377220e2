package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

// link is the network from one data centre to another.
type link struct {
	t    *testing.T
	port *ports.Port
	// lossy: calls at homes and their answers get lost, calls arrive twice, and pages of the change feed lose their changes
	// or are old ones.
	lossy  atomic.Bool
	faults atomic.Int64 // that lossy made
	client http.Client
	served sync.WaitGroup

	mu      sync.Mutex
	state   linkState
	changed chan struct{} // closed when state changes
	target  string
	server  *http.Server // nil while connections are refused
	pages   [][]byte     // of the change feed that arrived lately
}

type linkState int

const (
	refused linkState = iota // connections are
	silent                   // calls and answers go nowhere, and no connection breaks
	open
)

// newLink returns a link that refuses connections.
func newLink(t *testing.T) *link {
	t.Helper()
	port, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	l := &link{t: t, port: port, changed: make(chan struct{})}
	l.client.Transport = &http.Transport{}
	t.Cleanup(func() {
		l.set(refused)
		l.served.Wait()
		l.client.CloseIdleConnections()
		port.Release()
	})
	return l
}

// lead sets where the link leads to.
func (l *link) lead(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// set changes the state. Calls that are under way break when connections are refused.
func (l *link) set(to linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == to {
		return
	}
	l.state = to
	close(l.changed)
	l.changed = make(chan struct{})
	if to == refused {
		_ = l.server.Close()
		l.server = nil
		return
	}
	if l.server != nil {
		return
	}
	ln, err := net.Listen("tcp", l.port.Address)
	if err != nil {
		l.t.Errorf("a link: %v", err)
		return
	}
	server := &http.Server{Handler: http.HandlerFunc(l.serve)}
	l.server = server
	l.served.Go(func() { _ = server.Serve(ln) })
}

// pass returns where a message goes. While the link is silent, it waits, and the message is lost.
func (l *link) pass(r *http.Request) (target string, ok bool) {
	l.mu.Lock()
	state, changed, target := l.state, l.changed, l.target
	l.mu.Unlock()
	if state == silent {
		select {
		case <-changed:
		case <-r.Context().Done():
		}
	}
	return target, state == open
}

func (l *link) fault(one int) bool {
	if !l.lossy.Load() || rand.IntN(one) != 0 {
		return false
	}
	l.faults.Add(1)
	return true
}

func (l *link) serve(w http.ResponseWriter, r *http.Request) {
	l.served.Add(1)
	defer l.served.Done()
	body, err := io.ReadAll(r.Body)
	target, ok := l.pass(r)
	atHome := strings.HasPrefix(r.URL.Path, api.PathHome)
	if err != nil || !ok || atHome && l.fault(10) {
		panic(http.ErrAbortHandler)
	}
	status, header, answer := l.forward(r, target, body)
	// The second copy of a release is fenced if another call has reserved the key since the first.
	if atHome && !strings.HasSuffix(r.URL.Path, "/release") && l.fault(10) {
		status, header, answer = l.forward(r, target, body)
	}
	if _, ok := l.pass(r); !ok || status == 0 || atHome && l.fault(10) {
		panic(http.ErrAbortHandler)
	}
	if status == 200 && r.URL.Path == "/v1/ledger/changes" && !r.URL.Query().Has("from_ms") {
		answer = l.page(answer)
	}
	for name, values := range header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// forward makes the call at the manager. status is 0 without an answer.
func (l *link) forward(r *http.Request, target string, body []byte) (status int, header http.Header, answer []byte) {
	q, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil
	}
	q.Header = r.Header.Clone()
	resp, err := l.client.Do(q)
	if err != nil {
		return 0, nil, nil
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, nil
	}
	return resp.StatusCode, resp.Header, answer
}

// page is what arrives of a page of the change feed.
func (l *link) page(answer []byte) []byte {
	var page map[string]json.RawMessage
	if err := json.Unmarshal(answer, &page); err != nil {
		l.t.Errorf("a page of changes: %v", err)
		return answer
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pages) > 0 && l.fault(10) {
		return l.pages[rand.IntN(len(l.pages))]
	}
	if string(page["changes"]) == "[]" {
		return answer
	}
	l.pages = append(l.pages[max(len(l.pages)-20, 0):], answer)
	if !l.fault(5) {
		return answer
	}
	page["changes"] = json.RawMessage("[]")
	lost, err := json.Marshal(page)
	if err != nil {
		l.t.Errorf("a page of changes: %v", err)
	}
	return lost
}
