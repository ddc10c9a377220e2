package envoydiff

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A row of hostsim's conformance table is marked as shown in Envoy if, and only if, a case has its number.
func TestConformanceTableMarksWhatIsCompared(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compared := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`fact: "(\d+)"`).FindAllSubmatch(text, -1) {
			compared[string(m[1])] = true
		}
	}
	table, err := os.ReadFile(filepath.Join("..", "..", "hostsim", "CONFORMANCE.md"))
	if err != nil {
		t.Fatal(err)
	}
	facts := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+)(E?) \|`).FindAllSubmatch(table, -1) {
		number, marked := string(m[1]), len(m[2]) > 0
		facts[number] = true
		if marked != compared[number] {
			t.Errorf("fact %s is marked as shown in Envoy: %v, has cases: %v", number, marked, compared[number])
		}
	}
	for number := range compared {
		if !facts[number] {
			t.Errorf("there are cases for fact %s, which has no row", number)
		}
	}
}
