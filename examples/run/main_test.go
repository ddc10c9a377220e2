package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

func TestParse(t *testing.T) {
	cfg, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := stack.Ports{Manager: 8090, ManagerAdmin: 8091, Payments: 9000, Gateway: 10000, GatewayAdmin: 10001}
	if cfg.Ports != want {
		t.Errorf("ports %+v, want %+v", cfg.Ports, want)
	}
	if !cfg.HoldHeaders || string(cfg.Plugin) != `{"mode":"body"}` {
		t.Errorf("holding headers %t, gate's configuration %s: want body mode and what it needs", cfg.HoldHeaders, cfg.Plugin)
	}

	cfg, err = parse([]string{"--mode", "headers", "--gateway-port", "0", "--manager-port", "65535", "--workers", "64"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.HoldHeaders || string(cfg.Plugin) != `{"mode":"headers"}` {
		t.Errorf("holding headers %t, gate's configuration %s: want plain headers mode", cfg.HoldHeaders, cfg.Plugin)
	}
	if cfg.Ports.Gateway != 0 || cfg.Ports.Manager != 65535 || cfg.Workers != 64 {
		t.Errorf("%+v: the flags were not taken", cfg)
	}
}

func TestRunRefusesBadCommandLines(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--manager-port", "65536"}, "--manager-port is 65536, it must be from 0 to 65535"},
		{[]string{"--payments-port", "-1"}, "--payments-port is -1"},
		{[]string{"--gateway-port", "http"}, `"http"`},
		{[]string{"--workers", "0"}, "--workers is 0, it must be from 1 to 64"},
		{[]string{"--workers", "65"}, "--workers is 65"},
		{[]string{"--mode", "fast"}, `--mode is "fast", it must be body or headers`},
		{[]string{"now"}, `unexpected argument "now"`},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), tt.args, io.Discard, &stderr); code != 2 {
			t.Errorf("%q: exit code %d, want 2", tt.args, code)
		}
		if !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%q: %q, want it to contain %q", tt.args, stderr.String(), tt.want)
		}
	}
}

func TestRunTellsWhatKeepsItFromStarting(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"--bin", t.TempDir(), "--dir", t.TempDir()}
	if code := run(t.Context(), args, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(stderr.String(), "make build") || stdout.Len() > 0 {
		t.Errorf("stdout %q, stderr %q: want only that make build is missing", stdout.String(), stderr.String())
	}
}

func TestRunTellsHowToChooseAnotherPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bin := t.TempDir()
	for _, file := range []string{"manager", "gateway", "payments", "oncegate.wasm"} {
		if err := os.WriteFile(filepath.Join(bin, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--bin", bin, "--dir", t.TempDir(), "--manager-port", port, "--manager-admin-port", "0",
		"--payments-port", "0", "--gateway-port", "0", "--gateway-admin-port", "0"}
	var stderr bytes.Buffer
	if code := run(t.Context(), args, io.Discard, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{"port taken: " + port + ", for the manager", "MANAGER_PORT=N"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr %q, want it to contain %q", stderr.String(), want)
		}
	}
}

func TestRunStoppedBeforeItStarted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if code := run(ctx, []string{"--bin", t.TempDir(), "--dir", t.TempDir()}, io.Discard, io.Discard); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestWelcomeHasTheSameCallTwice(t *testing.T) {
	s := &stack.Stack{Ports: stack.Ports{Manager: 1, ManagerAdmin: 2, Payments: 3, Gateway: 4, GatewayAdmin: 5}}
	text := welcome(s, "dir", "KEY")
	call := `curl -i http://127.0.0.1:4/payments -H 'Idempotency-Key: try-KEY' -d '{"amount": 100}'`
	if n := strings.Count(text, call+"\n"); n != 2 {
		t.Errorf("the call is there %d times, want 2, in\n%s", n, text)
	}
	if !strings.Contains(text, "curl http://127.0.0.1:3/executions\n") {
		t.Errorf("no way to see the executions in\n%s", text)
	}
}

// fakeStack is a stack whose processes end when the test says so.
type fakeStack struct {
	failed  chan error
	started chan struct{}
	err     error
}

func (f *fakeStack) Failed() <-chan error { return f.failed }

func (f *fakeStack) StartManager(context.Context) error {
	f.started <- struct{}{}
	return f.err
}

func TestSupervise(t *testing.T) {
	killed := &stack.EndedError{Process: "manager", How: "signal: killed"}
	crashed := &stack.EndedError{Process: "manager", How: "exit status 1"}
	gateway := &stack.EndedError{Process: "gateway", How: "signal: killed"}
	noStart := errors.New("no start")
	for _, tt := range []struct {
		name   string
		ends   []error // one after the other
		err    error   // of StartManager
		starts int
		want   error
	}{
		{"interrupted", nil, nil, 0, nil},
		{"manager killed twice", []error{killed, killed}, nil, 2, nil},
		{"manager crashed", []error{crashed}, nil, 0, crashed},
		{"gateway killed", []error{gateway}, nil, 0, gateway},
		{"gateway killed after the manager", []error{killed, gateway}, nil, 1, gateway},
		{"manager does not start", []error{killed}, noStart, 1, noStart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			f := &fakeStack{failed: make(chan error), started: make(chan struct{}, len(tt.ends)), err: tt.err}
			result := make(chan error, 1)
			go func() { result <- supervise(ctx, f, 0, io.Discard) }()
			for _, end := range tt.ends {
				f.failed <- end
			}
			for range tt.starts {
				<-f.started
			}
			if tt.want == nil {
				stop()
			}
			if err := <-result; !errors.Is(err, tt.want) {
				t.Errorf("supervise: %v, want %v", err, tt.want)
			}
			if n := len(f.started); n > 0 {
				t.Errorf("the manager was started %d times more than expected", n)
			}
		})
	}
}
