package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// TestFilterOfTheHostsimPage: the test that docs/hostsim.md shows is the one in examples/filter. It passes in a folder outside of
// the repository, with the module that one of the page's command blocks builds there: the block for the TinyGo that builds the gate.
func TestFilterOfTheHostsimPage(t *testing.T) {
	deep.Only(t) // it builds a filter, and its tests
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	page := pages(t)["docs/hostsim.md"]
	example := filepath.Join(top, "examples", "filter")
	shown := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(page)
	theTest, err := os.ReadFile(filepath.Join(example, "main_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	if shown == nil || !strings.Contains(string(theTest), shown[1]) {
		t.Errorf("the page does not show the test of examples/filter")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // ends what hangs
	defer cancel()
	run := func(dir string, env []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(example)); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(dir, "filter.wasm")) // of somebody who followed the page
	run(dir, nil, "go", "mod", "edit", "-replace=github.com/oncegate/oncegate/hostsim="+filepath.Join(top, "hostsim"))

	tools := strings.Split(run(top, nil, "bash", "-c",
		`. build/toolchain/env.sh && printf '%s\n' "$TINYGO" "${TINYGOROOT:-}" "${TINYGO_ARGS[*]}"`), "\n")
	tinygo, tinygoRoot, flags := tools[0], tools[1], tools[2]
	bin := t.TempDir()
	if err := os.Symlink(tinygo, filepath.Join(bin, "tinygo")); err != nil {
		t.Fatal(err)
	}
	flags = strings.ReplaceAll(flags, top+"/", "../../") // as the page has it
	for _, b := range blocksOf(t, "docs/hostsim.md", page) {
		if !strings.Contains(b.text, flags+" -no-debug -opt=s ") {
			continue
		}
		env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "GOPROXY=off", "GOWORK=off"}
		if tinygoRoot != "" {
			env = append(env, "TINYGOROOT="+tinygoRoot)
		}
		out := run(dir, env, "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(b.text, "../..", top))
		if !strings.Contains(out, "ok  \tgithub.com/oncegate/oncegate/examples/filter") {
			t.Errorf("no test ran:\n%s", out)
		}
		return
	}
	t.Errorf("no block of the page builds with %s", flags)
}
