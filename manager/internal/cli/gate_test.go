package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGateExplain: the gate's own reader decides, and what it says is one line with exit code 2.
func TestGateExplain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gate.json")
	if err := os.WriteFile(file, []byte(`{"mode": "body"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	explain := func(config []byte) ([]byte, error) {
		if bytes.Contains(config, []byte("no")) {
			return nil, errors.New(`mode: "no"; allowed: "headers", "body"`)
		}
		return append([]byte("explained "), config...), nil
	}
	for _, c := range []struct {
		args  string
		stdin string
		code  int
		want  string // the beginning of what is printed
	}{
		{"gate explain " + file, "", 0, `explained {"mode": "body"}`},
		{"gate explain -", "{}", 0, "explained {}"},
		{"gate explain -", `{"mode": "no"}`, 2, `oncegate gate: explain -: mode: "no"; allowed: "headers", "body"` + "\n"},
		{"gate explain -", strings.Repeat(" ", maxGateConfigBytes+1), 2, "oncegate gate: explain -: more than 4194304 bytes\n"},
		{"gate explain " + file + ".none", "", 2, "oncegate gate: explain: open "},
		{"gate explain", "", 2, "oncegate gate: explain: must have one argument, the name of a file or - for the standard input\n"},
		{"gate explain a b", "", 2, "oncegate gate: explain: must have one argument"},
		{"gate show x", "", 2, "oncegate gate: command \"show\": must be explain\n"},
		{"gate", "", 2, "oncegate gate: a command is missing: must be explain\n"},
		{"gate --help", "", 0, "usage: oncegate gate explain FILE\n"},
		{"gate explain --help", "", 0, "usage: oncegate gate explain FILE\n"},
	} {
		var out bytes.Buffer
		env := Environment{Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &out, Getenv: func(string) (string, bool) { return "", false }, ExplainGate: explain}
		if code := Run(context.Background(), env, strings.Fields(c.args)); code != c.code || !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%s: exit code %d, printed %q; want %d and %q...", c.args, code, &out, c.code, c.want)
		}
	}
}
