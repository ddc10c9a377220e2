//go:build measure

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	commands = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	// The last of two equal flags counts.
	gateFlags  = regexp.MustCompile(`BENCH_ENVOY_FLAGS="([^"]*)"`)
	otherFlags = regexp.MustCompile(`(?m)build/peers-bench .*$`)
)

// TestPagesMeasure runs the commands of the pages about measurements, with the shortest measurements and another folder for the
// results. make test-benches runs it.
func TestPagesMeasure(t *testing.T) {
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for page, results := range map[string][]string{
		"benchmarks.md": {"gate.md", "engines.md", "logs.md"},
	} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(top, "docs", page))
			if err != nil {
				t.Fatal(err)
			}
			out := t.TempDir()
			doc := filepath.Join(t.TempDir(), page)
			if err := os.WriteFile(doc, text, 0o644); err != nil {
				t.Fatal(err)
			}
			blocks := commands.FindAllSubmatch(text, -1)
			if len(blocks) == 0 {
				t.Fatal("the page has no commands")
			}
			short := " -rounds 1 -duration 1s -out " + out
			for _, b := range blocks {
				script := gateFlags.ReplaceAllString(string(b[1]), `BENCH_ENVOY_FLAGS="${1}`+short+`"`)
				script = otherFlags.ReplaceAllString(script, "${0}"+short+" -jobs 50")
				if !strings.Contains(script, short) {
					t.Fatalf("%s measures nothing", script)
				}
				script = strings.ReplaceAll(script, "-doc docs/"+page, "-doc "+doc)
				before, err := os.ReadFile(doc)
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.CommandContext(t.Context(), "bash", "-ec", script)
				cmd.Dir = top
				if output, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", script, err, output)
				}
				after, err := os.ReadFile(doc)
				if err != nil || strings.Contains(script, "-doc ") == bytes.Equal(after, before) {
					t.Errorf("%s: the page has its result, or not: %v", script, err)
				}
			}
			for _, name := range results {
				if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
