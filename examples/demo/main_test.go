package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

func TestFlagsOfTheDemo(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("ENVOY_BIN", "")
	opts, err := parse(t.Context(), nil, io.Discard)
	if err != nil || opts.keys != 100 || opts.clients != 20 || opts.bin != "build" {
		t.Errorf("defaults %+v, %v: want 100 keys, 20 clients each", opts, err)
	}
	opts, err = parse(t.Context(), []string{"--proxy", "gateway", "--keys", "5", "--clients", "3", "--seed", "9", "--timeout", "10s", "--bin", "x"}, io.Discard)
	if want := (options{bin: "x", keys: 5, clients: 3, seed: 9, timeout: 10 * time.Second}); err != nil || opts != want {
		t.Errorf("options %+v, %v; want %+v", opts, err, want)
	}
}

func TestRunRefusesBadCommandLines(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--keys", "0"}, "--keys is 0, it must be from 1 to 10000"},
		{[]string{"--keys", "10001"}, "--keys is 10001"},
		{[]string{"--clients", "101"}, "--clients is 101, it must be from 1 to 100"},
		{[]string{"--timeout", "1ms"}, "--timeout is 1ms, it must be from 1s to 1h"},
		{[]string{"--seed", "x"}, `"x"`},
		{[]string{"--proxy", "nginx"}, `--proxy is "nginx", it must be envoy or gateway`},
		{[]string{"more"}, `unexpected argument "more"`},
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

func TestRunFailsWithoutABuild(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // where it keeps what a failure leaves
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"--bin", t.TempDir()}, io.Discard, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(stderr.String(), "make build") {
		t.Errorf("stderr %q does not say what to do", stderr.String())
	}
}

func TestReportNamesWhatRanTwice(t *testing.T) {
	r := report{
		keys: 100, dropBefore: 8, dropAfter: 7, executions: 101, ranTwice: 1, held: 7, elapsed: 23400 * time.Millisecond,
		observed: observed{submissions: 2000, requests: 3100, cuts: 411, lost: 3, replays: 1800,
			statuses: map[int]int{201: 1900, 409: 120, 503: 65, 502: 15}, faults: []string{"key storm-001 was executed 2 times"}},
	}
	var out strings.Builder
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(out.String()) {
		// A row is its name, its number and a remark.
		for _, name := range []string{
			"submissions", "retries", "cut", "executions", "ran twice", "replays", "held", "409", "503", "502", "201", "no answer", "seconds",
		} {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
				rows[name] = strings.Fields(rest)[0]
			}
		}
	}
	for name, want := range map[string]string{
		"submissions": "2000", "retries": "1100", "cut": "411", "executions": "101", "ran twice": "1", "replays": "1800",
		"held": "7", "409": "120", "503": "65", "502": "15", "201": "1900", "no answer": "3", "seconds": "23.4",
	} {
		if rows[name] != want {
			t.Errorf("row %q says %q, want %q, in\n%s", name, rows[name], want, out.String())
		}
	}
	if !strings.Contains(out.String(), "FAULT: key storm-001 was executed 2 times\n") || r.ok() {
		t.Errorf("the fault is not shown in\n%s", out.String())
	}
}

// A small storm over the real processes, in each proxy. It is too small for keys whose upstream closes the connection,
// which would take their pending TTL.
func TestStormInEachProxy(t *testing.T) {
	for _, proxy := range []string{"envoy", "gateway"} {
		t.Run(proxy, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := []string{"--bin", filepath.Join("..", "..", "build"), "--proxy", proxy, "--keys", "12", "--clients", "8"}
			if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, stdout.String(), stderr.String())
			}
			first, _, _ := strings.Cut(stdout.String(), "\n")
			t.Log(first)
			if !strings.HasPrefix(first, "proxy: "+proxy) && (proxy == "gateway" || envoybin.Required()) {
				t.Errorf("the first line is %q, want it to name %s", first, proxy)
			}
		})
	}
}
