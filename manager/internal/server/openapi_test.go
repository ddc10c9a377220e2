package server

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/api/openapi/openapitest"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// routes are all that the manager has; their handlers are not called.
func routes() []httpd.Route {
	return slices.Concat(LedgerRoutes(nil, nil, nil, Reach{}), JobRoutes(nil, nil, nil), UnreadableRoutes(nil, nil, nil, nil, nil), LogRoutes(nil, nil), OriginRoutes(nil, nil, nil),
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
		name := r.Method + " " + r.Path
		if !slices.Contains(described, name) {
			t.Errorf("%s is not in manager/api/openapi", name)
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

func TestDescriptionIsServed(t *testing.T) {
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: tokens(t, "0123456789abcdef", "fedcba9876543210")}}, routes: DescriptionRoutes()})
	a := s.Do("GET", "/openapi.json", "", "")
	var doc struct{ OpenAPI string }
	if err := json.Unmarshal([]byte(a.Body), &doc); a.Status != 200 || err != nil || doc.OpenAPI != "3.1.0" {
		t.Errorf("%d, %v, version %q", a.Status, err, doc.OpenAPI)
	}
}
