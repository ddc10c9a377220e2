package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
)

// Without a gate each call runs.
func TestCallsWithoutAGate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"serve", "127.0.0.1:0"}, w, io.Discard) }()
	line := make([]byte, 100)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(strings.TrimPrefix(string(line[:n]), "listening on "))
	for _, want := range []string{"run 1 of \"pay\" [] trailer x-run: [1]\n", "run 2 of \"pay\" [] trailer x-run: [2]\n"} {
		var out, errs bytes.Buffer
		if code := run(ctx, []string{"call", address, "k", "pay"}, &out, &errs); code != 0 || out.String() != want {
			t.Errorf("exit code %d, %q, %q; want %q", code, out.String(), errs.String(), want)
		}
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("the server ended with %d", code)
	}
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"call"}, io.Discard, &errs); code != 2 || errs.String() != usage+"\n" {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
