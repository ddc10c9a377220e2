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
	facts, compared := map[string]bool{}, comparedFacts(t)
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
		number, inEnvoy := strings.CutSuffix(strings.TrimSpace(cells[1]), "E")
		facts[number] = true
		if inEnvoy != compared[number] {
			t.Errorf("line %d: marked as shown in Envoy: %v, has cases in envoydiff: %v", i+1, inEnvoy, compared[number])
		}
	}
	for number := range compared {
		if !facts[number] {
			t.Errorf("envoydiff has cases for fact %s, which has no row", number)
		}
	}
	for n := 1; n <= 30; n++ {
		if !facts[fmt.Sprint(n)] {
			t.Errorf("fact %d has no row", n)
		}
	}
}

// comparedFacts are the numbers of the facts that have cases in envoydiff.
func comparedFacts(t *testing.T) map[string]bool {
	files, err := filepath.Glob(filepath.Join("envoydiff", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	facts := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`fact: "(\d+)"`).FindAllStringSubmatch(string(text), -1) {
			facts[m[1]] = true
		}
	}
	return facts
}
