package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestCutsAreSeenByTheServer checks each cut from the other side: how much of the request arrived, and that the client
// left.
func TestCutsAreSeenByTheServer(t *testing.T) {
	type seen struct {
		bytes int
		err   error
	}
	requests := make(chan seen, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil && r.Header.Get("x-demo-drop") == "wait" {
			<-r.Context().Done()
		}
		requests <- seen{len(b), err}
		io.WriteString(w, "an answer")
	}))
	defer srv.Close()

	body := []byte("0123456789")
	for _, tt := range []struct {
		name  string
		a     attempt
		bytes int
		whole bool
	}{
		{"sending", attempt{cut: cutSending}, 5, false},
		{"waiting", attempt{cut: cutWaiting, wait: 10 * time.Millisecond, drop: "wait"}, 10, true},
		{"answer", attempt{cut: cutAnswer}, 10, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.a.url, tt.a.key, tt.a.body = srv.URL, "k", body
			if _, err := tt.a.send(t.Context(), newHTTPClient()); !errors.Is(err, errCut) {
				t.Errorf("send: %v, want errCut", err)
			}
			got := <-requests
			if got.bytes != tt.bytes || (got.err == nil) != tt.whole {
				t.Errorf("the server got %d bytes, %v; want %d, the whole: %t", got.bytes, got.err, tt.bytes, tt.whole)
			}
		})
	}
}

func TestSendReadsTheAnswer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "k" || r.Header.Get("x-demo-delay-ms") != "30" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusConflict)
		io.Copy(w, r.Body)
	}))
	defer srv.Close()
	a := attempt{url: srv.URL, key: "k", body: []byte("payment"), delay: 30 * time.Millisecond}
	got, err := a.send(t.Context(), newHTTPClient())
	if err != nil {
		t.Fatal(err)
	}
	if got.status != http.StatusConflict || !got.replayed || got.retryAfter != 7*time.Second || string(got.body) != "payment" {
		t.Errorf("answer %+v", got)
	}
}

func TestSendIsNotCutByAnError(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer srv.Close()
	for _, c := range []cut{cutNot, cutWaiting} {
		a := attempt{url: srv.URL, key: "k", body: []byte("payment"), cut: c, wait: time.Hour}
		if _, err := a.send(t.Context(), newHTTPClient()); err == nil || errors.Is(err, errCut) {
			t.Errorf("cut %d: send: %v, want the connection's error", c, err)
		}
	}
}

// TestOnlyDuplicatesAreCutWhileTheyWait guards the storm's own rule: a request that may be the first of its key is never cut while it waits.
func TestOnlyDuplicatesAreCutWhileTheyWait(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cuts := map[cut]int{}
	for range 2000 {
		for try := range 4 {
			for _, kind := range []kind{plain, dropBefore, dropAfter} {
				first := submitter{rand: r, kind: kind}
				first.chooseTrouble(try)
				if first.attempt.cut == cutWaiting {
					t.Fatalf("kind %d, attempt %d: a client that may be first is cut while it waits", kind, try)
				}
				if want := kind != plain && try == 0; (first.attempt.drop != "") != want {
					t.Fatalf("kind %d, attempt %d: drop %q", kind, try, first.attempt.drop)
				}
				cuts[first.attempt.cut]++
				again := submitter{rand: r, kind: kind, duplicate: true}
				again.chooseTrouble(try)
				if again.attempt.drop != "" {
					t.Fatalf("kind %d, attempt %d: a duplicate asks for a drop", kind, try)
				}
				cuts[again.attempt.cut]++
				if try > 1 && (first.attempt.cut != cutNot || again.attempt.cut != cutNot) {
					t.Fatalf("attempt %d is cut: the storm might not end", try)
				}
			}
		}
	}
	for _, c := range []cut{cutNot, cutSending, cutWaiting, cutAnswer} {
		if cuts[c] == 0 {
			t.Errorf("cut %d was never chosen", c)
		}
	}
}
