package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// example is a package with tests of each kind, as go test prints it.
const example = `package example

import "testing"

func TestPasses(t *testing.T) {
	t.Run("sub", func(t *testing.T) { t.Log("nobody wants to read this") })
}

func TestLeavesCells(t *testing.T) { t.Log("cells left to make test-deep: 3"); t.Log("cells left to make test-envoys: 2") }

func TestIsDeep(t *testing.T) { t.Skip("left to make test-deep") }
`

const failing = `
func TestFails(t *testing.T) {
	t.Run("sub", func(t *testing.T) { t.Error("this is why") })
	t.Run("other", func(t *testing.T) { t.Log("nobody wants to read this") })
}
`

// module makes a module of the files, and returns a command that tests it.
func module(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example\n\ngo 1.26\n", "example_test.go": strings.Join(files, "")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "cd " + dir + " && go test -json ./..."
}

func testRun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	errs, err := os.Create(filepath.Join(t.TempDir(), "stderr")) // as in main: commands write into the file themselves
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	code = run(t.Context(), args, &out, errs)
	text, err := os.ReadFile(errs.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, out.String(), string(text)
}

func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

// A run that passes prints the lines of packages, and a summary.
func TestPassingRun(t *testing.T) {
	code, out, _ := testRun(t, "a title", "one="+module(t, example))
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	want(t, out, "ok  \texample\t", "\na title: ", "s  one\n", "2 passed, 0 failed, 1 skipped\n",
		"         3    cells of tests that ran in others: left to make test-deep\n",
		"         2    cells of tests that ran in others: left to make test-envoys\n", "         1    left to make test-deep: example TestIsDeep\n")
	if strings.Contains(out, "nobody wants") {
		t.Errorf("the output of a test that passed is in\n%s", out)
	}
}

// A failure shows the output of the tests that failed, and later stages run.
func TestFailingRun(t *testing.T) {
	code, out, _ := testRun(t, "a title", "one="+module(t, example, failing), "two="+module(t, example))
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	want(t, out, "--- FAIL: TestFails", "this is why", "FAIL\texample", "ok  \texample\t", "FAIL\tstage one: exit status 1",
		"failed: example TestFails/sub\n", "5 passed, 1 failed, 2 skipped\n")
	if strings.Contains(out, "nobody wants") {
		t.Errorf("the output of a test that passed is in\n%s", out)
	}
}

// Stages after a + run beside the others: each of these waits for the other one.
func TestStagesBesideOthers(t *testing.T) {
	dir := t.TempDir()
	meet := func(own, other string) string {
		return fmt.Sprintf("touch %s/%s; until [ -e %s/%s ]; do sleep 0.01; done; ", dir, own, dir, other)
	}
	code, out, _ := testRun(t, "a title", "one="+meet("a", "b")+module(t, example), "two="+module(t, example),
		"+", "three="+meet("b", "a")+module(t, example, failing))
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	want(t, out, "s  one\n", "s  two\n", "s  three\n", "FAIL\tstage three: exit status 1", "7 passed, 1 failed, 3 skipped\n")
}

// What is no test result fails the run: code that does not compile, a command that tests nothing, one that is killed.
func TestBrokenStages(t *testing.T) {
	for name, c := range map[string]struct{ command, want string }{
		"does not compile": {module(t, example, "func broken() { return 1 }"), "too many return values"},
		"tests nothing":    {"true", "no package was tested"},
		"no command":       {"no-such-command", "exit status 127"},
		"killed": {module(t, strings.Replace(example, `import "testing"`, `import ("os"; "testing")`, 1),
			`func TestKilled(t *testing.T) { p, _ := os.FindProcess(os.Getpid()); p.Kill(); select {} }`), "FAIL"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := testRun(t, "a title", "one="+c.command)
			if code != 1 {
				t.Errorf("exit code %d", code)
			}
			want(t, out+errs, c.want, "FAIL\tstage one: ")
			if name == "killed" {
				want(t, out, "tests that did not end: 1, the first is example TestKilled\n")
			}
		})
	}
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{{}, {"title"}, {"title", "no command"}, {"title", "=x"}, {"title", "a b=x"}, {"title", "+", "a=b"}, {"title", "a=b", "+"}, {"title", "a=b", "+", "+", "c=d"}, {"-since", "now", "title", "a=b"}} {
		code, out, errs := testRun(t, args...)
		if code != 2 || out != "" || errs == "" {
			t.Errorf("%q: exit code %d, %q, %q", args, code, out, errs)
		}
	}
}

// A signal ends the command with all that it started, and no other stage runs.
func TestSignalEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	began := filepath.Join(t.TempDir(), "began")
	go func() {
		for {
			if _, err := os.Stat(began); err == nil {
				cancel()
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-t.Context().Done():
				return
			}
		}
	}()
	var out bytes.Buffer
	code := run(ctx, []string{"a title", "one=touch " + began + "; sleep 1000 | cat", "two=echo two"}, &out, &out)
	if code != 1 || strings.Contains(out.String(), "two") {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
}

// The time before the first stage is in the summary.
func TestSinceCountsWhatWasBuilt(t *testing.T) {
	_, out, _ := testRun(t, "-since", "1", "a title", "one=true")
	want(t, out, "s  setup and build\n")
}
