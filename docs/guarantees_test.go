package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// aTest is a test function: the folder of its file, and whether it leaves itself to make test-deep.
type aTest struct {
	folder string
	deep   bool
}

var testStart = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n(\tdeep\.Only\(t\)\n)?`)

// TestGuaranteesAreShown: each row of the table in CONTRIBUTING.md names tests that are there, and commands that run them.
func TestGuaranteesAreShown(t *testing.T) {
	tests := map[string][]aTest{}
	eachFile(t, func(name string, content []byte) {
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
	_, table, found := strings.Cut(string(text), "| guarantee | shown by | in |\n|---|---|---|\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no table of guarantees")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			t.Errorf("%d cells, want 3: %s", len(cells), line)
			continue
		}
		rows++
		in := strings.TrimSpace(cells[2])
		for name := range strings.SplitSeq(strings.TrimSpace(cells[1]), ", ") {
			name = strings.Trim(name, "`")
			if len(tests[name]) == 0 {
				t.Errorf("there is no test %s: %s", name, line)
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
