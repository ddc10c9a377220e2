package server

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/openapi/openapitest"
)

// routes are all that the manager has; their handlers are not called.
func routes() []httpd.Route {
	return slices.Concat(LedgerRoutes(nil, nil, nil, home.Reach{}), JobRoutes(nil, nil), ScheduleRoutes(nil, nil, nil), UnreadableRoutes(nil, nil, nil, nil, nil), LogRoutes(nil), OriginRoutes(nil, nil, nil, nil), QuarantineRoutes(nil),
		DescriptionRoutes(), []httpd.Route{{Method: "GET", Path: "/healthz", Roles: httpd.Anyone}, {Method: "GET", Path: "/readyz", Roles: httpd.Anyone}})
}

// The answers of all other tests of this package are checked against the description as well, see described.
func TestDescriptionHasEveryRouteAndNoOther(t *testing.T) {
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Valid(); err != nil {
		t.Error(err)
	}
	described := d.Operations()
	for _, r := range routes() {
		if r.Stream != nil {
			continue // manager/api/oncegate.proto describes it
		}
		name := r.Method + " " + r.Path
		if !slices.Contains(described, name) {
			t.Errorf("%s is not in manager/internal/openapi", name)
		}
		if _, said := d.Status(r.Method, r.Path, 401); said == (r.Roles == httpd.Anyone) {
			t.Errorf("%s: answers 401: %v, open: %v", name, said, (r.Roles == httpd.Anyone))
		}
		described = slices.DeleteFunc(described, func(s string) bool { return s == name })
	}
	if len(described) > 0 {
		t.Errorf("no route serves %q", described)
	}
}

// Every code of package api is at the status that its comment says, and at no other.
func TestDescriptionHasEveryCode(t *testing.T) {
	d, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	// Codes that only the gate, items of a batch of entries, or calls on a stream have, and the one of a method that is not described.
	elsewhere := []string{
		"key-required", "unsupported-protocol", "scope-ambiguous", "encoding-not-accepted", "body-mode-unavailable", "manager-unavailable",
		"not-written", "large-answer", "method-not-allowed",
	}
	source, err := os.ReadFile("../../api/problem.go")
	if err != nil {
		t.Fatal(err)
	}
	statuses := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\tCode\w+\s+Code = "([^"]+)" +// ([0-9]{3})`).FindAllStringSubmatch(string(source), -1) {
		statuses[m[1]] = m[2]
	}
	seen := map[string]bool{}
	for _, name := range d.Operations() {
		method, path, _ := strings.Cut(name, " ")
		for status := 400; status < 600; status++ {
			response, declared := d.Status(method, path, status)
			codes := openapitest.Codes(response)
			if declared && len(codes) == 0 && status != 431 { // net/http refuses large headers, in plain text
				t.Errorf("%s: %d has no codes", name, status)
			}
			for _, code := range codes {
				seen[code] = true
				if statuses[code] != strconv.Itoa(status) && !(status == 408 && code == "invalid-request") {
					t.Errorf("%s: %q is at %d, and package api says %q", name, code, status, statuses[code])
				}
			}
		}
	}
	for code := range statuses {
		if seen[code] == slices.Contains(elsewhere, code) {
			t.Errorf("%q: described: %v", code, seen[code])
		}
	}
	if len(statuses) < 40 {
		t.Errorf("package api has %d codes", len(statuses))
	}
}

// Calls that need no credentials take no body into account, and answer as the description says whatever comes with them.
func TestOpenCallsReadNoBody(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: tokens(t, "0123456789abcdef", "fedcba9876543210")}}, routes: DescriptionRoutes()})
	large := strings.Repeat("x", 200_000)
	for path, want := range map[string]int{"/openapi.json": 200, "/healthz": 200, "/readyz": 200} {
		if a := s.Do("GET", path, "", large); a.Status != want {
			t.Errorf("%s with a body: %d, want %d", path, a.Status, want)
		}
	}
	s.server.Refuse("the store failed")
	for path, want := range map[string]int{"/openapi.json": 503, "/healthz": 200} {
		if a := s.Do("GET", path, "", ""); a.Status != want {
			t.Errorf("%s of a manager that refuses: %d, want %d", path, a.Status, want)
		}
	}
}

func TestDescriptionIsServed(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: tokens(t, "0123456789abcdef", "fedcba9876543210")}}, routes: DescriptionRoutes()})
	a := s.Do("GET", "/openapi.json", "", "")
	var doc struct{ OpenAPI string }
	if err := json.Unmarshal([]byte(a.Body), &doc); a.Status != 200 || err != nil || doc.OpenAPI != "3.1.0" {
		t.Errorf("%d, %v, version %q", a.Status, err, doc.OpenAPI)
	}
}
