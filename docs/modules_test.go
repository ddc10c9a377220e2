package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Make knows each module that the top's go.mod takes from a folder, so that its packages are tested and checked with the
// others.
func TestMakeKnowsTheNestedModules(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var replaced []string
	for _, m := range regexp.MustCompile(`(?m)^(?:replace|\t)\s*(\S+) => \./(\S+)$`).FindAllStringSubmatch(string(goMod), -1) {
		if m[1] != module+m[2] {
			t.Errorf("%s is in %s", m[1], m[2])
		}
		replaced = append(replaced, m[2])
	}
	list := regexp.MustCompile(`(?m)^NESTED_MODULES := (.*)$`).FindStringSubmatch(string(makefile))
	if list == nil {
		t.Fatal("the Makefile has no NESTED_MODULES")
	}
	nested := strings.Fields(list[1])
	slices.Sort(nested)
	slices.Sort(replaced)
	if len(replaced) == 0 || !slices.Equal(nested, replaced) {
		t.Errorf("NESTED_MODULES of the Makefile are %q, go.mod replaces %q", nested, replaced)
	}
}
