package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/api"
)

func TestAdminListenerServesMetrics(t *testing.T) {
	s := newSite(t, siteOptions{})
	reg := prometheus.NewPedanticRegistry()
	for _, c := range append(s.server.Collectors(), NewLedgerCollector(s.ledger)) {
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	s.JSON("POST", api.PathReserve, `{"key":"k","token":"t"}`)
	s.JSON("POST", api.PathRelease, `{"key":"k","token":"superseded"}`)
	s.JSON("GET", "/nowhere", "")
	admin := httptest.NewServer(s.server.AdminHandler(reg, nil))
	defer admin.Close()
	get := func(path string) (int, string) {
		resp, err := admin.Client().Get(admin.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	_, text := get("/metrics")
	for _, line := range []string{
		`oncegate_ledger_calls_total{op="reserve",outcome="done"} 1`,
		`oncegate_ledger_entries{state="pending"} 1`,
		`oncegate_ledger_fenced_total{op="release"} 1`,
		`oncegate_ledger_fenced_total{op="commit"} 0`,
		`oncegate_ledger_fenced_total{op="reject"} 0`,
		`oncegate_ledger_fenced_total{op="unknown"} 0`,
		`oncegate_ledger_fenced_total{op="renew"} 0`,
		`oncegate_http_requests_total{class="2xx",route="POST /v1/ledger/reserve"} 1`,
		`oncegate_http_requests_total{class="4xx",route="unmatched"} 1`,
		`oncegate_http_requests_in_flight 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
	if status, _ := get("/readyz"); status != 200 {
		t.Errorf("readyz %d", status)
	}
	s.server.SetReady("stopping")
	resp, err := admin.Client().Get(admin.URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("retry-after") != "1" || resp.Header.Get(api.HeaderManager) != "test-1" {
		t.Errorf("readyz %d %v", resp.StatusCode, resp.Header)
	}
	if status, body := get("/debug/pprof/"); status != 200 || !strings.Contains(body, "goroutine") {
		t.Errorf("pprof %d", status)
	}
	if status, _ := get("/debug/pprof/cmdline"); status == 200 {
		t.Error("the command line, which may hold a password, is shown")
	}
}

// TestAdminAddressLeadsToThePage: the bare address leads to the pages, also below a prefix that a proxy takes away. Without pages there is nothing.
func TestAdminAddressLeadsToThePage(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, c := range []struct {
		pages    http.Handler
		path     string
		status   int
		location string
	}{{http.NotFoundHandler(), "/", 303, "ui/"}, {http.NotFoundHandler(), "/nowhere", 404, ""}, {nil, "/", 404, ""}} {
		w := httptest.NewRecorder()
		s.server.AdminHandler(prometheus.NewPedanticRegistry(), c.pages).ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.status || w.Header().Get("Location") != c.location {
			t.Errorf("%s with pages %v: %d %q", c.path, c.pages != nil, w.Code, w.Header().Get("Location"))
		}
	}
}
