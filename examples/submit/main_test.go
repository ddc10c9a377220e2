package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/managertest"
)

func TestRepeatedSubmissionMakesOneJob(t *testing.T) {
	url := managertest.Start(t, managertest.Options{}).URL
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	idFile := filepath.Join(t.TempDir(), "id")
	submit := func(want int, args ...string) []client.Job {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"--url", url, "--client-id-file", idFile}, args...), &stdout, &stderr); code != want {
			t.Fatalf("submit %v: exit code %d, want %d: %s", args, code, want, &stderr)
		}
		var out []client.Job
		for d := json.NewDecoder(&stdout); d.More(); {
			var j client.Job
			if err := d.Decode(&j); err != nil {
				t.Fatal(err)
			}
			out = append(out, j)
		}
		return out
	}
	got := submit(0, "--count", "3", "--key", "k%d", "f", `{"n":%d}`)
	if len(got) != 3 || got[2].PayloadBytes != len(`{"n":3}`) || got[2].Key != "k3" || got[2].State != "queued" {
		t.Errorf("three jobs: %+v", got)
	}
	submit(1, "--key", "k1", "f", "1") // refused: the key is held
	one := submit(0, "--idempotency-key", "x", "--delay", "1h", "f", "1")
	two := submit(0, "--idempotency-key", "x", "--delay", "1h", "f", "1")
	if one[0].ID != two[0].ID || one[0].State != "scheduled" {
		t.Errorf("%+v, then %+v", one, two)
	}
	for state, want := range map[client.State]int{"": 4, client.StateQueued: 3, client.StateScheduled: 1} {
		if page, err := admin.New(c).List(t.Context(), admin.ListQuery{State: state}); err != nil || len(page.Jobs) != want {
			t.Errorf("jobs %q: %+v, %v; want %d", state, page, err, want)
		}
	}

	// Results come back, good and bad.
	w, err := c.NewWorker(client.WorkerOptions{Handlers: map[string]client.Handler{
		"good": func(context.Context, *client.Job) (any, error) { return 42, nil },
		"bad":  func(context.Context, *client.Job) (any, error) { return nil, client.Permanent(io.ErrUnexpectedEOF) },
	}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	if j := submit(0, "--wait", "good", "null"); string(j[0].Result) != "42" {
		t.Errorf("job %+v", j)
	}
	if j := submit(1, "--wait", "bad", "null"); j[0].State != "failed" {
		t.Errorf("job %+v", j)
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "must be FUNCTION PAYLOAD"},
		{[]string{"f"}, "must be FUNCTION PAYLOAD"},
		{[]string{"f", "{"}, "must be JSON"},
		{[]string{"--count", "0", "f", "1"}, "--count 0"},
		{[]string{"--count", "2", "--idempotency-key", "x", "f", "1"}, "--idempotency-key"},
		{[]string{"--timeout", "0", "f", "1"}, "--timeout"},
		{[]string{"--delay", "-1s", "f", "1"}, "--delay"},
		{[]string{"--url", "x", "f", "1"}, "--url"},
		{[]string{"--nope"}, "not defined"},
	} {
		var stderr bytes.Buffer
		args := append([]string{"--client-id-file", filepath.Join(t.TempDir(), "id")}, c.args...)
		if code := run(t.Context(), args, io.Discard, &stderr); code != 2 || !strings.Contains(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, %s", c.args, code, &stderr)
		}
	}
	if code := run(t.Context(), []string{"--help"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("--help: exit code %d", code)
	}
	if code := run(t.Context(), []string{"--client-id-file", t.TempDir(), "f", "1"}, io.Discard, io.Discard); code != 1 {
		t.Errorf("a directory as id file: exit code %d", code)
	}
}
