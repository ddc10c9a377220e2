package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// root is the repository, seen from this package.
const root = "../.."

// notRun are the command blocks that no test runs, by page and first line, each with the reason. Their paths, flags, make targets
// and chart values are still checked (TestCommandsOfPagesExist), and make says what it would do for them
// (TestBlocksThatAreNotRunCouldBe). TestPages runs all others.
var notRun = map[string]string{
	"README.md: make run     # manager": "the other blocks of the page run it, and this test is a part of make test",

	"CONTRIBUTING.md: make build":                                      "builds everything, and runs until Ctrl-C",
	"CONTRIBUTING.md: go test ./plugin/gate ./manager/internal/ledger": "runs all tests; docs/refs_test.go checks that those with names exist",

	"docs/istio.md: istioctl proxy-config cluster": "reaches into the gateway's pod by way of a kubelet; the tests have none",
}

// measured are the command blocks that a test in e2e/peers runs with the shortest measurements (make test-benches), and not TestPages.
var measured = []string{
	"docs/benchmarks.md: make bench-envoy",
	"docs/benchmarks.md: make peers-bench",
}

// inCluster are the command blocks that the tests in e2e/cluster run with the programs of a cluster (make test-cluster), and not TestPages.
var inCluster = []string{
	"docs/kubernetes.md: make release VERSION=",
	"docs/kubernetes.md: kubectl create namespace oncegate",
	"docs/kubernetes.md: helm template oncegate charts/oncegate",
	"docs/kubernetes.md: helm install oncegate charts/oncegate",
	"docs/istio.md: helm install oncegate charts/oncegate",
	"docs/istio.md: sed -n 's/ gate$//p' tokens",
	"docs/istio.md: kubectl -n istio-system create configmap",
	"docs/istio.md: kubectl apply -f envoy/istio/body-mode",
	"docs/envoy-gateway.md: helm upgrade eg",
	"docs/envoy-gateway.md: sed -n 's/ gate$//p' tokens",
	"docs/envoy-gateway.md: kubectl apply -f envoy/gateway/oncegate",
	"docs/envoy-gateway.md: kubectl -n payments patch gateway public",
	"docs/envoy-gateway.md: kubectl -n payments get envoypatchpolicy",
}

// inFilter are the command blocks that TestFilterOfTheHostsimPage runs in a folder of a user, and not TestPages.
var inFilter = []string{
	"docs/hostsim.md: tinygo build -target=wasip1 ",
	"docs/hostsim.md: tinygo build -target=../../plugin/toolchain/wasip1-gate.json",
}

// notRunBlocks is how many there are, so that a review sees the number grow.
const notRunBlocks = 4

// block is a block of commands in a page.
type block struct {
	page string
	line int
	// console blocks have commands after "$ " and what they print; others have commands only.
	console bool
	text    string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// id is the page and the first command.
func (b block) id() string {
	first, _, _ := strings.Cut(b.text, "\n")
	return b.page + ": " + strings.TrimPrefix(first, "$ ")
}

// skipped returns the entry of notRun, inCluster, inFilter or measured for the block, or "".
func (b block) skipped() string {
	for _, id := range slices.AppendSeq(slices.Concat(inCluster, inFilter, measured), maps.Keys(notRun)) {
		if strings.HasPrefix(b.id(), id) {
			return id
		}
	}
	return ""
}

var (
	fenceLine = regexp.MustCompile("^( *)```([a-z]*)$")
	// What looks like a command where no block is marked as one.
	looksLikeCommand = regexp.MustCompile(`^ *(?:\$ |(?:sudo )?(?:make|go (?:run|test|build)|curl|kubectl|helm|(?:build/)?oncegate|envoy -c|build/\S+|export \w+=) ?\S)`)
)

// pages are the documents for users, by their path in the repository, with their text.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/reference/*.md", "examples/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			all[filepath.ToSlash(name)] = string(text)
		}
	}
	return all
}

// blocksOf returns the command blocks of a page. It reports blocks of YAML and JSON that cannot be read, and commands outside of
// blocks marked as sh or console.
func blocksOf(t *testing.T, page, text string) (blocks []block) {
	t.Helper()
	open, indent, lang, from := false, "", "", 0
	var inside []string
	for i, line := range strings.Split(text, "\n") {
		m := fenceLine.FindStringSubmatch(line)
		switch {
		case m != nil && !open:
			open, indent, lang, from, inside = true, m[1], m[2], i+1, nil
		case m != nil:
			open = false
			content := strings.Join(inside, "\n")
			switch lang {
			case "sh", "console":
				blocks = append(blocks, block{page, from, lang == "console", content})
			case "yaml":
				for doc := range strings.SplitSeq(content, "\n---\n") {
					if err := yaml.Unmarshal([]byte(doc), new(any)); err != nil {
						t.Errorf("%s:%d: %v", page, from, err)
					}
				}
			case "json":
				if err := json.Unmarshal([]byte(content), new(any)); err != nil && !strings.Contains(content, "...") {
					t.Errorf("%s:%d: %v", page, from, err)
				}
			}
		case open:
			inside = append(inside, strings.TrimPrefix(line, indent))
		}
		if (open && lang == "" || !open && strings.HasPrefix(line, "    ")) && looksLikeCommand.MatchString(line) {
			t.Errorf("%s:%d: mark the block of this command as sh or console: %s", page, i+1, strings.TrimSpace(line))
		}
	}
	return blocks
}

func allBlocks(t *testing.T) (all []block) {
	t.Helper()
	for page, text := range pages(t) {
		all = append(all, blocksOf(t, page, text)...)
	}
	return all
}

// TestBlocksAreRunOrListed: the list has the blocks that are not run, and nothing else.
func TestBlocksAreRunOrListed(t *testing.T) {
	unused := map[string]bool{}
	for id, reason := range notRun {
		unused[id] = true
		if reason == "" {
			t.Errorf("%s: why is it not run?", id)
		}
	}
	var tests strings.Builder
	files, err := filepath.Glob(filepath.Join(root, "e2e", "cluster", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	for _, id := range inCluster {
		unused[id] = true
		page, begin, _ := strings.Cut(strings.TrimPrefix(id, "docs/"), ": ")
		if !strings.Contains(tests.String(), fmt.Sprintf("readPage(t, %q).block(t, %q)", page, begin)) {
			t.Errorf("e2e/cluster does not run %q of %s", begin, page)
		}
	}
	benches, err := os.ReadFile(filepath.Join(root, "e2e", "peers", "pages_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range measured {
		unused[id] = true
		if page, _, _ := strings.Cut(strings.TrimPrefix(id, "docs/"), ": "); !strings.Contains(string(benches), fmt.Sprintf("%q", page)) {
			t.Errorf("e2e/peers does not run the blocks of %s", page)
		}
	}
	for _, id := range inFilter {
		unused[id] = true
	}
	run := 0
	for _, b := range allBlocks(t) {
		if id := b.skipped(); id != "" {
			delete(unused, id)
		} else {
			run++
		}
	}
	for id := range unused {
		t.Errorf("there is no block %q", id)
	}
	if len(notRun) != notRunBlocks {
		t.Errorf("%d blocks are not run, and the test says %d", len(notRun), notRunBlocks)
	}
	t.Logf("%d blocks are run, %d in a cluster, %d as short measurements, %d are not", run, len(inCluster), len(measured), len(notRun))
}

var (
	makeCall = regexp.MustCompile(`(?m)^(?:\$ )?make ([^#\n]*)`)
	testCall = regexp.MustCompile(`(?m)\bgo test \./(\S+) -run (\w+)`)
)

// TestBlocksThatAreNotRunCouldBe: make knows what to do for the targets of the blocks that no test runs, and their tests are in the
// packages that they name.
func TestBlocksThatAreNotRunCouldBe(t *testing.T) {
	calls := 0
	for _, b := range allBlocks(t) {
		if notRun[b.skipped()] == "" {
			continue
		}
		for _, m := range makeCall.FindAllStringSubmatch(b.text, -1) {
			calls++
			cmd := exec.CommandContext(t.Context(), "make", append([]string{"-n"}, strings.Fields(m[1])...)...)
			cmd.Dir = root
			// Nothing of the make that runs this test.
			cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
			if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
				t.Errorf("%s: make -n %s: %v\n%s", b, m[1], err, out)
			}
		}
		for _, m := range testCall.FindAllStringSubmatch(b.text, -1) {
			calls++
			files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(files, func(name string) bool {
				text, err := os.ReadFile(name)
				return err == nil && strings.Contains(string(text), "\nfunc "+m[2]+"(t *testing.T)")
			}) {
				t.Errorf("%s: %s has no test %s", b, m[1], m[2])
			}
		}
	}
	if calls < 8 {
		t.Errorf("only %d calls of make and go test were found", calls)
	}
}

var (
	oncegateCall = regexp.MustCompile(`(?m)(?:^|[;&|(]|^\$|\buntil|\bdo)\s*(?:build/)?oncegate ([a-z]+(?: [a-z][a-z-]*)?)([^|;#>\n]*)`)
	flagOf       = regexp.MustCompile(`(?:^|\s)--?([a-z][a-z0-9-]*)`)
	flagHelp     = regexp.MustCompile(`(?m)(?:^\s+-|\s-)-?([a-z][a-z0-9-]*)\b`)
	pathOf       = regexp.MustCompile(`(?:^|[\s='"])\.?/?((?:\.ci|charts|docs|envoy|examples|manager|plugin)/[\w./-]*\w)`)
	targetOf     = regexp.MustCompile(`(?m)(?:^|[;&] *)(?:\$ )?(?:[A-Z_]+=\S+ )*make ((?:[a-z][a-z0-9/-]* ?)+)`)
	setOf        = regexp.MustCompile(`--set ([\w.]+)=`)
	codeSpan     = regexp.MustCompile("`((?:build/)?oncegate [^`\n]+)`")
)

// flagsOf returns the flags of a command of the program, by its own help; nil if there is no such command.
var flagsOf = func() func(t *testing.T, command string) map[string]bool {
	var mu sync.Mutex
	known := map[string]map[string]bool{}
	return func(t *testing.T, command string) map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		if flags, ok := known[command]; ok {
			return flags
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(root, "build", "oncegate"), append(strings.Fields(command), "--help")...).CombinedOutput()
		if err == nil {
			known[command] = map[string]bool{"help": true}
			for _, m := range flagHelp.FindAllStringSubmatch(string(out), -1) {
				known[command][m[1]] = true
			}
		} else {
			known[command] = nil
		}
		return known[command]
	}
}()

// TestCommandsOfPagesExist: the paths, make targets, chart values, and commands and flags of oncegate in the pages' blocks are
// there, also in those that are not run; in code spans, those of oncegate.
func TestCommandsOfPagesExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	chart, err := os.ReadFile(filepath.Join(root, "charts", "oncegate", "values.yaml"))
	if err == nil {
		err = yaml.Unmarshal(chart, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkCalls := func(where, text string) (calls int) {
		for _, m := range oncegateCall.FindAllStringSubmatch(strings.ReplaceAll(text, "\\\n", " "), -1) {
			calls++
			command, rest := m[1], m[2]
			flags := flagsOf(t, command)
			if flags == nil { // the second word is an argument
				command, _, _ = strings.Cut(command, " ")
				flags = flagsOf(t, command)
			}
			if flags == nil {
				t.Errorf("%s: oncegate has no command %s", where, m[1])
				continue
			}
			for _, f := range flagOf.FindAllStringSubmatch(rest, -1) {
				if !flags[f[1]] {
					t.Errorf("%s: oncegate %s has no flag %s", where, command, f[1])
				}
			}
		}
		return calls
	}
	calls := 0
	for page, text := range pages(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			calls += checkCalls(page, m[1])
		}
		for _, b := range blocksOf(t, page, text) {
			calls += checkCalls(b.String(), b.text)
			for _, m := range pathOf.FindAllStringSubmatch(b.text, -1) {
				if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
					t.Errorf("%s: there is no %s", b, m[1])
				}
			}
			for _, m := range targetOf.FindAllStringSubmatch(b.text, -1) {
				for _, target := range strings.Fields(m[1]) {
					if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
						t.Errorf("%s: the Makefile has no target %s", b, target)
					}
				}
			}
			for _, m := range setOf.FindAllStringSubmatch(b.text, -1) {
				at, ok := any(values), true
				for name := range strings.SplitSeq(m[1], ".") {
					in, isMap := at.(map[string]any)
					if at, ok = in[name]; !ok || !isMap {
						break
					}
				}
				if !ok && !slices.Contains([]string{"config.envoyGateway.extensionApis.enableEnvoyPatchPolicy"}, m[1]) {
					t.Errorf("%s: the chart has no value %s", b, m[1])
				}
			}
		}
	}
	if calls < 40 {
		t.Errorf("only %d commands of oncegate were found", calls)
	}
}
