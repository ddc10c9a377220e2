package server

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/home"
)

// TestReferenceListsEveryRoute: docs/reference/LEDGER.md names the routes that there are, and
// no others.
func TestReferenceListsEveryRoute(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/LEDGER.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^(GET|POST|DELETE) +(/[^?\n]*)`).FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	slices.Sort(documented)
	documented = slices.Compact(documented)
	there := []string{"GET /healthz", "GET /readyz"} // the HTTP server's own
	for _, r := range slices.Concat(LedgerRoutes(nil, nil, nil, home.Reach{}), UnreadableRoutes(nil, nil, nil, nil, nil), OriginRoutes(nil, nil, nil, nil), QuarantineRoutes(nil), DescriptionRoutes()) {
		there = append(there, r.Method+" "+r.Path)
	}
	slices.Sort(there)
	if !slices.Equal(documented, there) {
		t.Errorf("documented are\n%s\nthere are\n%s", strings.Join(documented, "\n"), strings.Join(there, "\n"))
	}
}

// TestReferenceStartsAManager: the calls that docs/reference/LEDGER.md begins with do what it
// says.
func TestReferenceStartsAManager(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/LEDGER.md")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{})
	want := []struct {
		status int
		state  string
	}{{201, "reserved"}, {200, "committed"}, {200, "committed"}}
	calls := regexp.MustCompile(`(?m)^curl -H 'content-type: application/json' -d '([^']*)' http://127.0.0.1:8090(/\S*)$`).FindAllStringSubmatch(string(text), -1)
	if len(calls) != len(want) {
		t.Fatalf("%d calls", len(calls))
	}
	for i, c := range calls {
		if a := s.JSON("POST", c[2], c[1]); a.Status != want[i].status || !strings.Contains(a.Body, `{"state":"`+want[i].state+`"`) {
			t.Errorf("%s: %d %s", c[0], a.Status, a.Body)
		}
	}
}
