package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest"
)

// The worker in Python does the same jobs as the one in Go.
func TestPythonWorks(t *testing.T) {
	m := managertest.Start(t, managertest.Options{BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	c, err := client.New(client.Options{URL: m.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	outbox := filepath.Join(t.TempDir(), "outbox")
	cmd := exec.CommandContext(ctx, "python3", "worker.py", m.URL, outbox)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join("..", "..", "manager", "client", "python"))
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		s      client.Submission
		state  client.State
		result string
	}{
		{client.Submission{ID: "mail", Function: "mail.send", Payload: map[string]string{"to": "ann"}}, client.StateComplete, `"mail.json"`},
		{client.Submission{Function: "math.double", Payload: 21}, client.StateComplete, `42`},
		{client.Submission{Function: "math.double", Payload: "21"}, client.StateFailed, ``},
		{client.Submission{Function: "demo.flaky", Payload: map[string]int{"failures": 2}}, client.StateComplete, `"at last"`},
	} {
		if j, err := c.WaitIdempotent(ctx, want.s); err != nil || j.State != want.state || string(j.Result) != want.result {
			t.Errorf("%+v: %+v, %v", want.s, j, err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker ended: %v\n%s", err, &output)
	}
	files, err := filepath.Glob(filepath.Join(outbox, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the outbox has %q, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	var mail map[string]string
	if err != nil || json.Unmarshal(b, &mail) != nil || mail["to"] != "ann" {
		t.Errorf("the mail: %s, %v", b, err)
	}
}
