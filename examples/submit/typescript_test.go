package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/managertest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// The program in TypeScript submits a job once, too.
func TestTypeScriptSubmitsOnce(t *testing.T) {
	deep.Only(t) // its compiler takes long to install and to start
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	program := compile(ctx, t)
	m := managertest.Start(t, managertest.Options{})
	c, err := client.New(client.Options{URL: m.URL})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.NewWorker(client.WorkerOptions{Handlers: map[string]client.Handler{
		"good": func(_ context.Context, j *client.Job) (any, error) { return j.Payload, nil },
		"bad":  func(context.Context, *client.Job) (any, error) { return nil, client.Permanent(io.ErrUnexpectedEOF) },
	}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- w.Run(working) }()
	for _, run := range []struct {
		args   string
		code   int
		output string
	}{
		{`good {"n":1} k1`, 0, "complete {\"n\":1} new\n"},
		{`good {"n":1} k1`, 0, "complete {\"n\":1} replayed\n"},
		{`bad 1 k2`, 1, "failed undefined new\n"},
		{`good 2 k1`, 1, "fingerprint-mismatch"},
		{`good 2`, 2, "usage: "},
	} {
		cmd := exec.CommandContext(ctx, "node", append([]string{program}, strings.Fields(run.args)...)...)
		cmd.Env = append(os.Environ(), "ONCEGATE_URL="+m.URL)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != run.code || !strings.Contains(string(out), run.output) {
			t.Errorf("%s: %v, it printed %q; want exit code %d and %q", run.args, err, out, run.code, run.output)
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if page, err := admin.New(c).List(ctx, admin.ListQuery{}); err != nil || len(page.Jobs) != 2 {
		t.Errorf("jobs %+v, %v; want 2", page, err)
	}
}

// compile makes a program of submit.ts with the pinned compiler of build/node, in a folder where the client that make built is
// found by its name.
func compile(ctx context.Context, t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join("..", "..", "build"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Join(built, "typescript"), "submit-")
	if err != nil {
		t.Fatalf("%v: make build/typescript", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	source, err := os.ReadFile("submit.ts")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "submit.ts"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"files": []string{"submit.ts"}, "compilerOptions": map[string]any{
		"strict": true, "target": "es2022", "module": "nodenext", "types": []string{"node"}, "typeRoots": []string{filepath.Join(built, "node/node_modules/@types")},
		"paths": map[string][]string{"@oncegate/client": {filepath.Join(built, "typescript/lib/index.d.ts")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tsconfig.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join(built, "node/node_modules/typescript/bin/tsc"), "--project", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tsc: %v\n%s", err, out)
	}
	return filepath.Join(dir, "submit.js")
}
