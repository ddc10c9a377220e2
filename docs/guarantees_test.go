package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// aTest is a test function: the folder of its file, and whether it leaves itself to make test-deep.
type aTest struct {
	folder string
	deep   bool
}

// literal is a text in a Go file, as the name of a case is.
var literal = regexp.MustCompile(`"[^"\n]+"`)

// names are those in a cell: of tests, and of cases as Test/group/case.
var names = regexp.MustCompile("`([^`]+)`")

// hasCase reports whether each part of a case's name is a text in a file of the folder, or of one in it.
func hasCase(texts map[string]map[string]bool, folder, parts string) bool {
	for part := range strings.SplitSeq(parts, "/") {
		found := false
		for in, all := range texts {
			found = found || (in == folder || strings.HasPrefix(in, folder+"/")) && all[`"`+part+`"`]
		}
		if !found {
			return false
		}
	}
	return true
}

var testStart = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n(\tdeep\.Only\(t\)\n)?`)

// TestGuaranteesAreShown: each row of the tables in CONTRIBUTING.md names tests and cases that are there, and commands that
// run them.
func TestGuaranteesAreShown(t *testing.T) {
	tests := map[string][]aTest{}
	texts := map[string]map[string]bool{} // folder -> texts in its files
	eachFile(t, func(name string, content []byte) {
		if folder := path.Dir(name); strings.HasSuffix(name, "_test.go") || strings.HasSuffix(folder, "test") {
			if texts[folder] == nil {
				texts[folder] = map[string]bool{}
			}
			for _, m := range literal.FindAll(content, -1) {
				texts[folder][string(m)] = true
			}
		}
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range testStart.FindAllSubmatch(content, -1) {
				tests[string(m[1])] = append(tests[string(m[1])], aTest{path.Dir(name), len(m[2]) > 0})
			}
		}
	})
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, quick, _ := strings.Cut(string(makefile), "\ntest:")
	if quick, _, _ = strings.Cut(quick, "\n\n"); !strings.Contains(quick, " $(PACKAGES)'") {
		t.Errorf("make test does not run all packages: %s", quick)
	}
	_, stages, _ := strings.Cut(string(makefile), "\ntest-deep:")
	stages, _, _ = strings.Cut(stages, "\n\n")
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables := strings.Split(string(text), "| guarantee | shown by | in |\n|---|---|---|\n")[1:]
	if len(tables) == 0 {
		t.Fatal("CONTRIBUTING.md has no table of guarantees")
	}
	var lines []string
	for _, table := range tables {
		table, _, _ = strings.Cut(table, "\n\n")
		lines = append(lines, strings.Split(table, "\n")...)
	}
	rows := 0
	for _, line := range lines {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			t.Errorf("%d cells, want 3: %s", len(cells), line)
			continue
		}
		rows++
		in := strings.TrimSpace(cells[2])
		for _, m := range names.FindAllStringSubmatch(cells[1], -1) {
			name, parts, isCase := strings.Cut(m[1], "/")
			if len(tests[name]) == 0 {
				t.Errorf("there is no test %s: %s", name, line)
			}
			if isCase && !slices.ContainsFunc(tests[name], func(f aTest) bool { return hasCase(texts, f.folder, parts) }) {
				t.Errorf("%s has no case %s: %s", name, parts, line)
			}
			for _, f := range tests[name] {
				// What is not in this module is a stage of make test-deep.
				other := strings.HasPrefix(f.folder, ".ci/")
				if other && !strings.Contains(stages, "cd "+f.folder+" &&") {
					t.Errorf("no stage of make test-deep runs %s in %s", name, f.folder)
				}
				deep := other || f.deep
				switch in {
				case "both", "`make test`":
					if deep && len(tests[name]) == 1 {
						t.Errorf("%s runs in make test-deep only: %s", name, line)
					}
				case "`make test-deep`":
					if !deep {
						t.Errorf("%s runs in make test: %s", name, line)
					}
				default:
					t.Errorf("%q is neither `make test` nor `make test-deep` nor both: %s", in, line)
				}
			}
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}
