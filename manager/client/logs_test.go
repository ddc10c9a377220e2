package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

// fakeLog keeps a log as a manager does, and loses what it is told to lose.
type fakeLog struct {
	mu      sync.Mutex
	ids     []string
	byID    map[string]int
	batches int
	lose    func(batch int) (request, answer bool)
}

func (f *fakeLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Entries []struct {
			ID      string
			Payload []byte
		}
	}
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, &in)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches++
	var request, answer bool
	if f.lose != nil {
		request, answer = f.lose(f.batches)
	}
	if request {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var results []string
	for _, e := range in.Entries {
		if string(e.Payload) == "bad" {
			results = append(results, `{"status":422,"code":"payload-mismatch","title":"no"}`)
			continue
		}
		n, again := f.byID[e.ID]
		if !again {
			f.ids = append(f.ids, e.ID)
			n = len(f.ids)
			f.byID[e.ID] = n
		}
		results = append(results, fmt.Sprintf(`{"status":%d,"log":"l","segment":1,"entry":%d,"id":%q,"duplicate":%v}`, map[bool]int{true: 200, false: 201}[again], n, e.ID, again))
	}
	if answer {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	fmt.Fprint(w, `{"results":[`)
	for i, s := range results {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		fmt.Fprint(w, s)
	}
	fmt.Fprint(w, `]}`)
}

func openWriter(t *testing.T, h http.Handler, o client.WriterOptions) *client.IdempotentWriter {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(client.Options{URL: s.URL, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.OpenLog("l")
	if err != nil {
		t.Fatal(err)
	}
	w, err := l.OpenIdempotentWriter(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Requests and answers get lost, and each message is there once, in order.
func TestIdempotentWriterWritesEachMessageOnce(t *testing.T) {
	f := &fakeLog{byID: make(map[string]int), lose: func(n int) (bool, bool) { return n%3 == 1, n%3 == 2 }}
	w := openWriter(t, f, client.WriterOptions{MaxBatch: 7})
	var results []<-chan client.WriteResult
	for i := range 100 {
		results = append(results, w.WriteAsync(t.Context(), client.WriteMessage{Payload: fmt.Append(nil, i), IdempotencyID: fmt.Sprint("id-", i)}))
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, c := range results {
		if r := <-c; r.Err != nil || r.LogMessageID.Entry != uint64(i)+1 || r.ID != fmt.Sprint("id-", i) {
			t.Errorf("message %d: %+v", i, r)
		}
	}
	if len(f.ids) != 100 || f.batches > 100 {
		t.Errorf("%d entries in %d batches", len(f.ids), f.batches)
	}
	if r := w.Write(t.Context(), client.WriteMessage{}); !errors.Is(r.Err, client.ErrWriterClosed) {
		t.Errorf("a write after Close: %v", r.Err)
	}
}

// TestWriterDerivesIDs: equal payloads without an id are one entry, and one refusal is not another's.
func TestWriterDerivesIDs(t *testing.T) {
	w := openWriter(t, &fakeLog{byID: make(map[string]int)}, client.WriterOptions{})
	defer func() {
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	first, again := w.Write(t.Context(), client.WriteMessage{Payload: []byte("hello")}), w.Write(t.Context(), client.WriteMessage{Payload: []byte("hello")})
	if first.Err != nil || first.ID != "5d41402abc4b2a76b9719d911017c592" || first.Duplicate || !again.Duplicate || again.LogMessageID != first.LogMessageID {
		t.Errorf("the results are %+v and %+v", first, again)
	}
	bad := w.WriteAsync(t.Context(), client.WriteMessage{Payload: []byte("bad")})
	good := w.WriteAsync(t.Context(), client.WriteMessage{Payload: []byte("good")})
	if r := <-bad; !client.HasCode(r.Err, api.CodePayloadMismatch) {
		t.Errorf("a message that is refused: %v", r.Err)
	}
	if r := <-good; r.Err != nil {
		t.Errorf("its neighbour: %v", r.Err)
	}
}

// A message whose caller left is not sent, one on its way is not waited for, and
// Close ends when its context does.
func TestWriterRespectsContexts(t *testing.T) {
	entered, open := make(chan struct{}, 100), make(chan struct{})
	f := &fakeLog{byID: make(map[string]int)}
	w := openWriter(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-open
		f.ServeHTTP(rw, r)
	}), client.WriterOptions{MaxQueue: 2})
	first := w.WriteAsync(t.Context(), client.WriteMessage{IdempotencyID: "a"})
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	second := w.WriteAsync(ctx, client.WriteMessage{IdempotencyID: "b"})
	third := w.WriteAsync(t.Context(), client.WriteMessage{IdempotencyID: "c"})
	cancel()
	if r := w.Write(ctx, client.WriteMessage{IdempotencyID: "d"}); !errors.Is(r.Err, context.Canceled) {
		t.Errorf("a write without room: %v", r.Err)
	}
	close(open)
	if r := <-first; r.Err != nil {
		t.Errorf("the first: %v", r.Err)
	}
	if r := <-second; !errors.Is(r.Err, context.Canceled) {
		t.Errorf("one whose caller left: %v", r.Err)
	}
	if r := <-third; r.Err != nil || r.LogMessageID.Entry != 2 {
		t.Errorf("the next: %+v", r)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}

	down := openWriter(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(503) }), client.WriterOptions{})
	stuck := down.WriteAsync(t.Context(), client.WriteMessage{})
	ended, end := context.WithCancel(t.Context())
	end()
	if err := down.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Close with a manager that is away: %v", err)
	}
	if r := <-stuck; !errors.Is(r.Err, client.ErrWriterClosed) {
		t.Errorf("a message that Close gave up: %v", r.Err)
	}
}
