package hostsim_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every row of the conformance table names tests that exist, and no fact is missing.
func TestConformanceTableNamesItsTests(t *testing.T) {
	defined := map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				defined[fn.Name.Name] = true
			}
		}
	}
	text, err := os.ReadFile("CONFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	testName := regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	facts := map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		names := testName.FindAllStringSubmatch(line, -1)
		for _, n := range names {
			if !defined[n[1]] {
				t.Errorf("line %d names %s, which does not exist", i+1, n[1])
			}
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.HasPrefix(line, "|---") || strings.Contains(line, "| tests |") {
			continue
		}
		if len(names) == 0 {
			t.Errorf("line %d names no test: %s", i+1, line)
		}
		facts[strings.TrimSuffix(strings.TrimSpace(cells[1]), "E")] = true
	}
	for n := 1; n <= 30; n++ {
		if !facts[fmt.Sprint(n)] {
			t.Errorf("fact %d has no row", n)
		}
	}
}
