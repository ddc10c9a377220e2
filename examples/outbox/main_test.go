package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
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
	epoch := func() (uint64, error) {
		page, err := admin.New(c).LogWriters(ctx, l.Name(), 1, "")
		if err != nil || len(page.Writers) == 0 {
			return 0, err
		}
		return page.Writers[0].Epoch, nil
	}
	late := make(chan error, 1)
	call := func(after uint64) error {
		for {
			switch now, err := epoch(); {
			case err != nil:
				return err
			case now > after: // the next writer's
				w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{Writer: "outbox"})
				if err != nil {
					return err
				}
				return w.Close(ctx)
			}
			time.Sleep(time.Millisecond)
		}
	}
	o := options{url: url, log: "outbox", messages: 20000, kills: 1}
	o.killed = func() { // it may not have opened its epoch yet
		after, err := epoch()
		if err != nil {
			late <- err
			return
		}
		go func() { late <- call(after) }()
	}
	var stdout, stderr bytes.Buffer
	err = supervise(ctx, o, &stdout, &stderr)
	cancel()
	if err != nil || !strings.Contains(stdout.String(), "killed 1 times and fenced 1 times") {
		t.Fatalf("%v: %s%s", err, &stdout, &stderr)
	}
	if err := <-late; err != nil {
		t.Fatal(err)
	}
}
