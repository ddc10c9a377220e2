package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

// fakeLog keeps a log as a manager does, and loses what the test wants lost.
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
	// MaxAttempts does not bound what a writer sends.
	c, err := client.New(client.Options{URL: s.URL, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond, MaxAttempts: 1})
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

// Callers that wait for some messages and only queue others: each caller's are in the log in its order.
func TestWriterKeepsTheOrderOfEachCaller(t *testing.T) {
	f := &fakeLog{byID: make(map[string]int), lose: func(n int) (bool, bool) { return n%5 == 1, n%5 == 2 }}
	w := openWriter(t, f, client.WriterOptions{MaxBatch: 3})
	const callers, each = 4, 60
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range each {
				m := client.WriteMessage{IdempotencyID: fmt.Sprint(caller, "-", n)}
				if n%3 == caller%3 {
					w.WriteAsync(t.Context(), m)
				} else if r := w.Write(t.Context(), m); r.Err != nil || r.ID != m.IdempotencyID {
					t.Errorf("%+v", r)
				}
			}
		}()
	}
	wg.Wait()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var next [callers]int
	for _, id := range f.ids {
		var caller, n int
		if _, err := fmt.Sscanf(id, "%d-%d", &caller, &n); err != nil || n != next[caller] {
			t.Fatalf("%q is where %d of that caller belongs", id, next[caller])
		}
		next[caller]++
	}
	if len(f.ids) != callers*each {
		t.Errorf("%d entries", len(f.ids))
	}
}

// A caller whose message is on its way leaves when its context ends, and Close ends it when its own context
// does. What is written meanwhile waits for it.
func TestWriterEndsAMessageOnItsWay(t *testing.T) {
	stuck := func() (w *client.IdempotentWriter, entered, open chan struct{}) {
		f := &fakeLog{byID: make(map[string]int)}
		entered, open = make(chan struct{}, 100), make(chan struct{})
		return openWriter(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-open
			f.ServeHTTP(rw, r)
		}), client.WriterOptions{}), entered, open
	}
	w, entered, open := stuck()
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan client.WriteResult, 1)
	go func() { results <- w.Write(ctx, client.WriteMessage{IdempotencyID: "a"}) }()
	<-entered
	second := w.WriteAsync(t.Context(), client.WriteMessage{IdempotencyID: "b"})
	cancel()
	if r := <-results; !errors.Is(r.Err, context.Canceled) || r.ID != "a" {
		t.Errorf("one whose context ended: %+v", r)
	}
	close(open)
	if r := <-second; r.Err != nil {
		t.Errorf("the next: %v", r.Err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}

	w, entered, open = stuck()
	defer close(open)
	go func() { results <- w.Write(t.Context(), client.WriteMessage{IdempotencyID: "c"}) }()
	<-entered
	ended, end := context.WithCancel(t.Context())
	end()
	for range 2 {
		if err := w.Close(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Close: %v", err)
		}
	}
	if err := w.Close(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("Close once more: %v", err)
	}
	if r := <-results; !errors.Is(r.Err, client.ErrWriterClosed) {
		t.Errorf("a message that Close gave up: %v", r.Err)
	}
}

// JSON has no bytes that are not UTF-8: two ids that differ in such bytes would be one entry. Neither is sent, and the
// others of their batch do not suffer.
func TestWriterRefusesWhatIsNotUTF8(t *testing.T) {
	f := &fakeLog{byID: make(map[string]int)}
	w := openWriter(t, f, client.WriterOptions{})
	for _, m := range []client.WriteMessage{
		{IdempotencyID: "k\x80"},
		{IdempotencyID: "k\x81"},
		{IdempotencyID: "a", Properties: map[string]string{"\xff": ""}},
		{IdempotencyID: "a", Properties: map[string]string{"k": "\xff"}},
	} {
		good := w.WriteAsync(t.Context(), client.WriteMessage{IdempotencyID: "é"})
		if r := w.Write(t.Context(), m); r.Err == nil || r.ID != m.IdempotencyID || !strings.Contains(r.Err.Error(), "must be UTF-8") {
			t.Errorf("%+v: %+v", m, r)
		}
		if r := <-good; r.Err != nil {
			t.Errorf("beside %+v: %v", m, r.Err)
		}
	}
	if len(f.ids) != 1 {
		t.Errorf("the log has %q", f.ids)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A batch for which nobody waits any more is given up, though the manager does not answer.
func TestWriterGivesUpABatchThatNobodyWaitsFor(t *testing.T) {
	entered, open := make(chan struct{}, 100), make(chan struct{})
	defer close(open)
	f := &fakeLog{byID: make(map[string]int)}
	var calls atomic.Int64
	w := openWriter(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if calls.Add(1) < 3 {
			<-open
		}
		f.ServeHTTP(rw, r)
	}), client.WriterOptions{})
	one, leave := context.WithCancel(t.Context())
	w.WriteAsync(one, client.WriteMessage{IdempotencyID: "first"})
	<-entered
	two, leaveToo := context.WithCancel(t.Context())
	second, third := w.WriteAsync(two, client.WriteMessage{IdempotencyID: "second"}), w.WriteAsync(two, client.WriteMessage{IdempotencyID: "third"})
	leave()
	<-entered
	leaveToo()
	for _, c := range []<-chan client.WriteResult{second, third} {
		if r := <-c; !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%+v", r)
		}
	}
	if r := w.Write(t.Context(), client.WriteMessage{IdempotencyID: "fourth"}); r.Err != nil {
		t.Errorf("the next: %v", r.Err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Write returns when its context ends, though the message may be on its way: its caller uses the memory again.
func TestWriterKeepsNothingOfACallerThatLeft(t *testing.T) {
	release := make(chan struct{})
	w := openWriter(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-release }), client.WriterOptions{})
	t.Cleanup(func() { _ = w.Close(context.Background()) })
	t.Cleanup(func() { close(release) })
	m := client.WriteMessage{Payload: []byte("a payload"), Properties: map[string]string{"a": "property"}, IdempotencyID: "id"}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := w.Write(ctx, m); !errors.Is(r.Err, context.DeadlineExceeded) {
		t.Fatalf("write: %+v", r)
	}
	m.Payload[0] = 'A' // the race detector reports if the writer has read these
	m.Properties["a"] = "thing"
}
