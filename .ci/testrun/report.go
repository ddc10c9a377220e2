package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json, see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// report prints what go test would print without -json: a line for each package, and the output of tests that failed.
type report struct {
	stage    string
	stdout   io.Writer
	summary  *summary
	packages int
	open     map[string]*pkg
}

// pkg is a package whose tests run.
type pkg struct {
	own   []string             // output of no test
	tests map[string]*testCase // by name
	order []string
}

type testCase struct {
	output []string
	ended  string // the action that ended it; "" while it runs
	parent bool   // of other tests
	took   time.Duration
}

func newReport(stage string, stdout io.Writer, s *summary) *report {
	return &report{stage: stage, stdout: stdout, summary: s, open: map[string]*pkg{}}
}

// line takes a line of the command's output. Lines that are no events are passed on.
func (r *report) line(text []byte) {
	r.summary.mu.Lock()
	defer r.summary.mu.Unlock()
	var e event
	if !bytes.HasPrefix(text, []byte("{")) || json.Unmarshal(text, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.stdout, "%s\n", text)
		return
	}
	if e.Package == "" {
		if e.Action == "build-output" {
			fmt.Fprint(r.stdout, e.Output)
		}
		return
	}
	p := r.open[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*testCase{}}
		r.open[e.Package] = p
	}
	if e.Test == "" {
		r.packageEvent(p, e)
		return
	}
	t := p.tests[e.Test]
	if t == nil {
		t = new(testCase)
		p.tests[e.Test] = t
		p.order = append(p.order, e.Test)
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 && p.tests[e.Test[:i]] != nil {
			p.tests[e.Test[:i]].parent = true
		}
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass", "fail", "skip":
		t.ended, t.took = e.Action, seconds(e.Elapsed)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (r *report) packageEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.own = append(p.own, e.Output)
	case "pass", "fail", "skip":
		r.close(e.Package, p, e.Action == "fail", seconds(e.Elapsed))
	}
}

// close prints a package that has ended and adds it to the summary.
func (r *report) close(name string, p *pkg, failed bool, took time.Duration) {
	delete(r.open, name)
	r.packages++
	for _, test := range p.order {
		t := p.tests[test]
		if failed && t.ended != "pass" && t.ended != "skip" {
			fmt.Fprint(r.stdout, strings.Join(slices.DeleteFunc(t.output, progress), ""))
		}
		r.summary.countCells(t.output)
		if !t.parent {
			r.summary.test(name, test, t)
		}
	}
	for _, line := range p.own {
		if failed || strings.HasPrefix(line, "ok  \t") || strings.Contains(line, "[no test files]") {
			fmt.Fprint(r.stdout, line)
		}
	}
	r.summary.pkg(r.stage, name, took)
}

// progress reports whether go test prints the line only with -v.
func progress(line string) bool {
	for _, prefix := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME"} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// end prints the packages whose end was not reported: go test was killed.
func (r *report) end() {
	r.summary.mu.Lock()
	defer r.summary.mu.Unlock()
	names := make([]string, 0, len(r.open))
	for name := range r.open {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		r.close(name, r.open[name], true, 0)
		fmt.Fprintf(r.stdout, "FAIL\t%s [did not end]\n", name)
	}
}
