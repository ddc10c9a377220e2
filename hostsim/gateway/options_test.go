package main

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// files makes a module and a configuration that only have to be readable.
func files(t *testing.T) (wasm, conf string) {
	t.Helper()
	dir := t.TempDir()
	wasm, conf = filepath.Join(dir, "f.wasm"), filepath.Join(dir, "f.json")
	for name, content := range map[string]string{wasm: "not a module", conf: "{}"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return wasm, conf
}

func TestOptionsReachTheGateway(t *testing.T) {
	wasm, conf := files(t)
	t.Setenv("GATEWAY_TEST_A", "a=1")
	t.Setenv("GATEWAY_TEST_EMPTY", "")
	o, err := parseOptions([]string{"--wasm", wasm, "--config", conf, "--listen", "127.0.0.1:0", "--upstream", "up:80",
		"--cluster", "a=h:1", "--cluster", "b=[::1]:2", "--cluster", "c=h2c://[::1]:3", "--workers", "3", "--allow-on-headers-stop-iteration",
		"--buffer-limit", "2048", "--admin", ":0", "--failure-policy", "open", "--idle-timeout", "7s",
		"--env", "GATEWAY_TEST_A", "--env", "GATEWAY_TEST_EMPTY", "--env", "GATEWAY_TEST_MISSING"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(o.module) != "not a module" || string(o.config) != "{}" || o.upstream != "up:80" || o.workers != 3 ||
		!o.stopIteration || o.bufferLimit != 2048 || o.admin != ":0" || o.failure != hostsim.FailOpen ||
		o.idleTimeout != 7*time.Second || o.clusters["a"] != "h:1" || o.clusters["b"] != "[::1]:2" || o.clusters["c"] != "h2c://[::1]:3" {
		t.Errorf("%+v", o)
	}
	if want := map[string]string{"GATEWAY_TEST_A": "a=1", "GATEWAY_TEST_EMPTY": ""}; !maps.Equal(o.environment, want) {
		t.Errorf("environment %q, want %q", o.environment, want)
	}
}

// Every mistake is one line on standard error that names the flag and the value,
// and exit code 2.
func TestBadCommandLines(t *testing.T) {
	wasm, conf := files(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := []string{"--wasm", wasm, "--config", conf, "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1"}
	with := func(more ...string) []string { return append(append([]string{}, good...), more...) }
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"--listen is missing"}},
		{[]string{"--listen", ":0"}, []string{"--upstream is missing"}},
		{[]string{"--listen", ":0", "--upstream", "h:1"}, []string{"--wasm is missing"}},
		{with("--listen", "nowhere"), []string{"--listen", `"nowhere"`, "host:port"}},
		{with("--listen", "h:65536"), []string{"--listen", `"h:65536"`, "65535"}},
		{with("--upstream", "h:0"), []string{"--upstream", `"h:0"`}},
		{with("--upstream", ":80"), []string{"--upstream", `":80"`, "host"}},
		{with("--upstream", "h:http"), []string{"--upstream", `"h:http"`}},
		{with("--admin", "x"), []string{"--admin", `"x"`}},
		{with("--cluster", "a"), []string{"-cluster", `"a"`, "NAME=host:port"}},
		{with("--cluster", "=h:1"), []string{"-cluster", "NAME=host:port"}},
		{with("--cluster", "a=h"), []string{"-cluster", "host:port"}},
		{with("--cluster", "a=h2c://"), []string{"-cluster", `"a=h2c://"`, "missing", "h2c://host:port"}},
		{with("--cluster", "a=h2c://h"), []string{"-cluster", `"a=h2c://h"`, "h2c://host:port"}},
		{with("--cluster", "a=h2c://:1"), []string{"-cluster", `"a=h2c://:1"`, "must name a host"}},
		{with("--cluster", "a=h2c://h:0"), []string{"-cluster", `"a=h2c://h:0"`, "65535"}},
		{with("--cluster", "a=h2c://h:1/"), []string{"-cluster", `"a=h2c://h:1/"`, "65535"}},
		{with("--cluster", "a=h2c://u@h:1"), []string{"-cluster", `"a=h2c://u@h:1"`, "a name or an IP address"}},
		{with("--cluster", "a=H2C://h:1"), []string{"-cluster", `"a=H2C://h:1"`, "h2c://host:port"}},
		{with("--cluster", "a=http://h:1"), []string{"-cluster", `"a=http://h:1"`, "h2c://host:port"}},
		{with("--cluster", "a=h2c://h2c://h:1"), []string{"-cluster", "h2c://host:port"}},
		{with("--upstream", "h2c://h:1"), []string{"--upstream", `"h2c://h:1"`, "host:port"}},
		{with("--upstream", "a/b:1"), []string{"--upstream", `"a/b:1"`, "a name or an IP address"}},
		{with("--cluster", "a=h:1", "--cluster", "a=h:2"), []string{"-cluster", "twice"}},
		{with("--env", "A=b"), []string{"-env", "NAME", "without a value"}},
		{with("--env", ""), []string{"-env", "NAME"}},
		{with("--workers", "0"), []string{"--workers 0", "1 to 256"}},
		{with("--workers", "257"), []string{"--workers 257"}},
		{with("--workers", "two"), []string{"-workers", `"two"`}},
		{with("--buffer-limit", "1"), []string{"--buffer-limit 1"}},
		{with("--max-clients", "0"), []string{"--max-clients 0"}},
		{with("--max-connections", "0"), []string{"--max-connections 0"}},
		{with("--max-connections", "65537"), []string{"--max-connections 65537", "1 to 65536"}},
		{with("--max-pending", "-1"), []string{"--max-pending -1"}},
		{with("--max-pending", "65537"), []string{"--max-pending 65537", "1 to 65536"}},
		{with("--max-header-bytes", "1"), []string{"--max-header-bytes 1"}},
		{with("--idle-timeout", "1ms"), []string{"--idle-timeout 1ms"}},
		{with("--upstream-timeout", "-1s"), []string{"--upstream-timeout -1s"}},
		{with("--connect-timeout", "0"), []string{"--connect-timeout 0s"}},
		{with("--drain-timeout", "25h"), []string{"--drain-timeout 25h"}},
		{with("--failure-policy", "shrug"), []string{"--failure-policy", `"shrug"`, "closed, open or reload"}},
		{with("--vm-id", strings.Repeat("x", 256)), []string{"--vm-id", "255"}},
		{with("--log-level", "loud"), []string{"-log-level", `"loud"`}},
		{with("--nonsense"), []string{"-nonsense"}},
		{with("extra"), []string{`"extra"`}},
		{with("--wasm", empty), []string{"--wasm", "empty"}},
		{with("--wasm", wasm+"x"), []string{"--wasm", "no such file"}},
		{with("--config", t.TempDir()), []string{"--config", "directory"}},
		{with("--code-cache", wasm), []string{"--code-cache", wasm}}, // a file
		{good, []string{"the filter did not start"}},                 // the module is no module
	} {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		code := run(ctx, ctx, tc.args, &stdout, &stderr)
		text := stderr.String()
		lines := strings.Count(text, "\n")
		if code != exitUsage || lines != 1 || stdout.Len() != 0 {
			t.Errorf("%q: exit code %d, %d lines on standard error: %q", tc.args, code, lines, text)
		}
		for _, w := range tc.want {
			if !strings.Contains(text, w) {
				t.Errorf("%q: %q does not name %q", tc.args, text, w)
			}
		}
	}
}

func TestHelpNamesTheFlags(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), t.Context(), []string{"-h"}, &stdout, &stderr); code != exitOK || stderr.Len() != 0 {
		t.Errorf("exit code %d, standard error %q", code, stderr.String())
	}
	for _, w := range []string{"usage: gateway", "-wasm", "-cluster", "-drain-timeout"} {
		if !strings.Contains(stdout.String(), w) {
			t.Errorf("usage lacks %q", w)
		}
	}
}
