package server

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReferenceListsEveryRoute: LEDGER.md names the routes that there are, and
// no others.
func TestReferenceListsEveryRoute(t *testing.T) {
	text, err := os.ReadFile("LEDGER.md")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile(`(?m)^(GET|POST|DELETE) +(/[^?\n]*)`).FindAllStringSubmatch(string(text), -1) {
		told = append(told, m[1]+" "+m[2])
	}
	slices.Sort(told)
	told = slices.Compact(told)
	var there []string
	for _, r := range append(LedgerRoutes(nil, nil), new(Server).healthRoutes()...) {
		there = append(there, r.Method+" "+r.Path)
	}
	slices.Sort(there)
	if !slices.Equal(told, there) {
		t.Errorf("told are\n%s\nthere are\n%s", strings.Join(told, "\n"), strings.Join(there, "\n"))
	}
}
