package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/workertest"
	"github.com/oncegate/oncegate/manager/managertest"
)

func lines(t testing.TB, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

func TestSendIsIdempotent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outbox")
	box, err := openOutbox(file)
	if err != nil {
		t.Fatal(err)
	}
	defer box.close()
	workertest.Idempotent(t, box.send, map[string]string{"to": "ann", "text": "hello", "job": "forged"}, func(t testing.TB) []string {
		return lines(t, file)
	})
	if got := lines(t, file); len(got) != 1 || got[0] != `{"job":"workertest-1","to":"ann","text":"hello"}` {
		t.Errorf("outbox %q", got)
	}
}

// The program may crash between any two deliveries, and in the middle of a line.
func TestSendIsIdempotentOverCrashes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outbox")
	restarted := func(ctx context.Context, j *client.Job) (any, error) {
		box, err := openOutbox(file)
		if err != nil {
			return nil, err
		}
		defer func() {
			_, _ = box.file.WriteString(`{"job":"half`)
			box.close()
		}()
		return box.send(ctx, j)
	}
	workertest.Idempotent(t, restarted, map[string]string{"to": "ann"}, func(t testing.TB) string { return lines(t, file)[0] })
	if got := lines(t, file); len(got) != 2 || got[1] != `{"job":"half` {
		t.Errorf("outbox %q", got)
	}
}

func TestHandlersRefuseBadPayloads(t *testing.T) {
	nothing := func(testing.TB) int { return 0 }
	workertest.Idempotent(t, double, 21, nothing)
	job := func(payload string, attempt int) *client.Job {
		return &client.Job{ID: "j", Payload: json.RawMessage(payload), Attempt: attempt}
	}
	if got, err := double(t.Context(), job("21", 1)); err != nil || got != 42.0 {
		t.Errorf("double(21) = %v, %v", got, err)
	}
	for attempt, fails := range map[int]bool{1: true, 2: true, 3: false} {
		if _, err := flaky(t.Context(), job(`{"failures":2}`, attempt)); (err != nil) != fails {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	box, err := openOutbox(filepath.Join(t.TempDir(), "outbox"))
	if err != nil {
		t.Fatal(err)
	}
	defer box.close()
	for name, h := range handlers(box) {
		for _, payload := range []string{`"x"`, `{"to":3}`, `{"failures":"x"}`} {
			if _, err := h(t.Context(), job(payload, 1)); err == nil && !(name == "demo.flaky" && payload == `{"to":3}`) {
				t.Errorf("%s accepts %s", name, payload)
			}
		}
	}
}

func TestForeignFileIsNoOutbox(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(file, []byte("my notes\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openOutbox(file); err == nil || !strings.Contains(err.Error(), "line 1 is not of this program") {
		t.Errorf("a file of something else: %v", err)
	}
	if got := lines(t, file); len(got) != 2 {
		t.Errorf("the file was changed: %q", got)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"--nope"}, {"--manager", "localhost"}, {"--concurrency", "0x"}, {"--concurrency", "2000", "--outbox", filepath.Join(t.TempDir(), "outbox")}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, &stderr); code != 2 || !strings.HasPrefix(stderr.String(), "worker: ") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, %s", args, code, &stderr)
		}
	}
	if code := run(t.Context(), []string{"--help"}, io.Discard); code != 0 {
		t.Errorf("--help: exit code %d", code)
	}
	if code := run(t.Context(), []string{"--outbox", t.TempDir()}, io.Discard); code != 1 {
		t.Errorf("a directory as outbox: exit code %d", code)
	}
}

func TestWorkerWithAManager(t *testing.T) {
	url := managertest.Start(t, managertest.Options{BackoffBase: time.Millisecond, BackoffMax: time.Millisecond}).URL
	file := filepath.Join(t.TempDir(), "outbox")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"--manager", url, "--outbox", file}, io.Discard) }()
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, s := range []struct {
		function string
		payload  any
		result   string
	}{{"mail.send", map[string]string{"to": "ann"}, "1"}, {"math.double", 1.5, "3"}, {"demo.flaky", map[string]int{"failures": 3}, `"at last"`}} {
		j, err := c.WaitIdempotent(wait, client.Submission{Function: s.function, Payload: s.payload})
		if err != nil || string(j.Result) != s.result {
			t.Errorf("%s: %+v, %v", s.function, j, err)
		}
	}
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d", code)
	}
}
