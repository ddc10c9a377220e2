package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest"
)

// TestMain is the writer when the test's program is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "--write" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestOutboxHasNeitherGapsNorDoubles(t *testing.T) {
	url := managertest.Start(t, managertest.Options{}).URL
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--url", url, "--messages", "1500", "--kills", "6"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if got := stdout.String(); !strings.HasPrefix(got, "1500 messages, each once and in order") {
		t.Errorf("it says %q", got)
	}
	t.Log(stdout.String())

	// A double would be seen.
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.OpenLog("outbox")
	if err != nil {
		t.Fatal(err)
	}
	w, err := l.OpenIdempotentWriter(t.Context(), client.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r := w.Write(t.Context(), client.WriteMessage{IdempotencyID: "1500 ", Payload: []byte("message 1500")}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), l, 1500); err == nil {
		t.Error("the check does not see a double")
	}
}

// TestOutboxGoesOnBehindALateCall: the call by which a killed writer opened its epoch reaches the manager when the next
// writer is at work, and fences it.
func TestOutboxGoesOnBehindALateCall(t *testing.T) {
	url := managertest.Start(t, managertest.Options{}).URL
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.OpenLog("outbox")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	late := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			page, err := l.Writers(ctx, 10, "")
			if err == nil && len(page.Writers) > 0 && page.Writers[0].Epoch == 2 { // the second writer's
				w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{Writer: "outbox"})
				if err == nil {
					err = w.Close(ctx)
				}
				late <- err
				return
			}
			time.Sleep(time.Millisecond)
		}
		late <- ctx.Err()
	}()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--url", url, "--messages", "20000", "--kills", "1"}, &stdout, &stderr)
	cancel()
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	if code != 0 || !strings.Contains(stdout.String(), "killed 1 times and fenced 1 times") {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}
