package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of the lists in a summary.
const (
	slowestTests  = 10
	slowPackage   = time.Second // packages that took less are only counted
	namedPerCause = 3           // tests that are named for each reason not to run
)

// summary is what the end of a run prints.
type summary struct {
	title string
	mu    sync.Mutex // held by the stage that prints or counts

	stages, packages, tests []timed
	passed, failed          int
	skipped                 map[string][]string // names by reason
	cells                   map[string]int      // of matrices, by the target that they are left to
	failures, unended       []string
}

type timed struct {
	name string
	took time.Duration
}

func newSummary(title string) *summary {
	return &summary{title: title, skipped: map[string][]string{}, cells: map[string]int{}}
}

// printf prints a line of its own.
func (s *summary) printf(w io.Writer, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, format, args...)
}

func (s *summary) stage(name string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stages = append(s.stages, timed{name, took})
}

func (s *summary) pkg(stage, name string, took time.Duration) {
	s.packages = append(s.packages, timed{stage + "\t" + name, took})
}

// test counts a test that has no subtests.
func (s *summary) test(pkg, name string, t *testCase) {
	full := pkg + " " + name
	switch t.ended {
	case "pass":
		s.passed++
		s.tests = append(s.tests, timed{full, t.took})
	case "skip":
		why := reason(t.output)
		s.skipped[why] = append(s.skipped[why], full)
	case "fail":
		s.failed++
		s.failures = append(s.failures, full)
		s.tests = append(s.tests, timed{full, t.took})
	default:
		s.unended = append(s.unended, full)
	}
}

// cellsLeft is the line in which package deep says how many cells of its matrix a test leaves to another target.
var cellsLeft = regexp.MustCompile(`cells left to (make [\w-]+): (\d+)`)

// countCells looks for those lines.
func (s *summary) countCells(output []string) {
	for _, line := range output {
		if m := cellsLeft.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[2]) // digits
			s.cells[m[1]] += n
		}
	}
}

var place = regexp.MustCompile(`^\s+\w+\.go:\d+: `)

// reason is the text of t.Skip, without its place.
func reason(output []string) string {
	for _, line := range output {
		if at := place.FindString(line); at != "" {
			return strings.TrimSpace(line[len(at):])
		}
	}
	return "no reason given"
}

// print prints the summary of a run that took so long.
func (s *summary) print(w io.Writer, total time.Duration) {
	fmt.Fprintf(w, "\n%s: %v\n", s.title, total.Round(time.Second))
	for _, st := range s.stages {
		fmt.Fprintf(w, "  %8.1f s  %s\n", st.took.Seconds(), st.name)
	}
	fast := 0
	slices.SortStableFunc(s.packages, longest)
	fmt.Fprintln(w, "packages, by the time of their tests:")
	for _, p := range s.packages {
		if p.took < slowPackage {
			fast++
			continue
		}
		fmt.Fprintf(w, "  %8.1f s  %s\n", p.took.Seconds(), p.name)
	}
	fmt.Fprintf(w, "  and %d that took less than %v each\n", fast, slowPackage)
	slices.SortStableFunc(s.tests, longest)
	fmt.Fprintln(w, "the slowest tests:")
	for _, t := range s.tests[:min(slowestTests, len(s.tests))] {
		fmt.Fprintf(w, "  %8.1f s  %s\n", t.took.Seconds(), t.name)
	}
	left := 0
	if len(s.skipped) > 0 || len(s.cells) > 0 {
		fmt.Fprintln(w, "what did not run:")
	}
	for _, target := range slices.Sorted(maps.Keys(s.cells)) {
		fmt.Fprintf(w, "  %8d    cells of tests that ran in others: left to %s\n", s.cells[target], target)
	}
	for _, why := range slices.Sorted(maps.Keys(s.skipped)) {
		names := s.skipped[why]
		left += len(names)
		fmt.Fprintf(w, "  %8d    %s", len(names), why)
		if len(names) <= namedPerCause {
			fmt.Fprintf(w, ": %s", strings.Join(names, ", "))
		}
		fmt.Fprintln(w)
	}
	for _, name := range s.failures {
		fmt.Fprintln(w, "failed:", name)
	}
	if n := len(s.unended); n > 0 {
		fmt.Fprintf(w, "tests that did not end: %d, the first is %s\n", n, s.unended[0])
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", s.passed, s.failed+len(s.unended), left)
}

func longest(a, b timed) int { return cmp.Compare(b.took, a.took) }
