package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// noData are panels that a stack without faults leaves empty, by board and title, each with the reason.
var noData = map[string]string{
	"oncegate-ledger: Synchronous standbys of Postgres": "the stack's store is a log",
	"oncegate-ledger: Unreadable records":               "every record can be read",
}

// boardPanel is a panel of a board with its queries, for all jobs and instances.
type boardPanel struct {
	name    string
	queries []string
}

func boardPanels(t *testing.T) (all []boardPanel) {
	t.Helper()
	files, err := filepath.Glob("../charts/oncegate/files/grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		for _, p := range board.Panels {
			panel := boardPanel{name: strings.TrimSuffix(filepath.Base(file), ".json") + ": " + p.Title}
			for _, target := range p.Targets {
				panel.queries = append(panel.queries, strings.NewReplacer("$job", ".+", "$instance", ".+", "$__rate_interval", "1m").Replace(target.Expr))
			}
			if len(panel.queries) > 0 { // else a row
				all = append(all, panel)
			}
		}
	}
	return all
}

// shows asks a Prometheus whether each query of a panel has a value that can be drawn.
func (p boardPanel) shows(prometheus string) error {
	for _, query := range p.queries {
		body, err := fetch(prometheus + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return err
		}
		drawn := false
		for _, r := range answer.Data.Result {
			drawn = drawn || r.Value[1] != "NaN"
		}
		if !drawn {
			return fmt.Errorf("%s: no data", query)
		}
	}
	return nil
}

// TestBoardsShowData: each query of each Grafana board has data in a real Prometheus with the shipped rules, which scrapes a real
// manager and a real Envoy under load.
func TestBoardsShowData(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		s := &stack{dir: t.TempDir(), target: target, mode: "body"}
		// No process listens at the peer's address.
		s.settings = []string{"--admin", "127.0.0.1:0", "--ship-to", "file://" + filepath.Join(s.dir, "shipped"), "--origin", "dc1", "--peer", "dc2=http://127.0.0.1:1"}
		s.stopAtEnd(t)
		s.startManager(t)
		s.endQuarantine(t, s.managerAddr)
		s.startPayments(t)
		p := s.startProxy(t)
		prometheus := s.startPrometheus(t, p)
		missing := boardPanels(t)
		if len(missing) < 40 {
			t.Fatalf("the boards have only %d panels", len(missing))
		}
		eventually(t, "a panel is empty", func() error {
			s.everyKindOfCall(t, p)
			var errs []error
			var left []boardPanel
			for _, panel := range missing {
				if noData[panel.name] != "" {
					continue
				}
				if err := panel.shows(prometheus); err != nil {
					left, errs = append(left, panel), append(errs, fmt.Errorf("%s: %w", panel.name, err))
				}
			}
			missing = left
			return errors.Join(errs...)
		})
		for _, panel := range boardPanels(t) {
			if noData[panel.name] != "" && panel.shows(prometheus) == nil {
				t.Errorf("%s has data", panel.name)
			}
		}
	})
}

// startPrometheus scrapes the manager and a proxy.
func (s *stack) startPrometheus(t *testing.T, p *proxy) (url string) {
	t.Helper()
	admin, err := s.manager.addr("admin")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("../charts/oncegate/files/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%[1]s/recording.yaml, %[1]s/alerts.yaml]
scrape_configs:
- {job_name: oncegate, static_configs: [{targets: ["%[2]s"]}]}
- {job_name: envoy, metrics_path: /stats/prometheus, static_configs: [{targets: ["%[3]s"]}]}
`, rules, admin, strings.TrimPrefix(p.admin, "http://"))
	file := filepath.Join(s.dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	var address string
	if err := s.hold(&address); err != nil {
		t.Fatal(err)
	}
	started, err := startProcess("prometheus", "prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(s.dir, "prometheus"),
		"--web.listen-address", address, "--log.level", "warn")
	if err != nil {
		t.Fatalf("%v; make test-deps installs it", err)
	}
	s.started = append(s.started, started)
	if err := poll(started.done, func() error {
		_, err := fetch("http://" + address + "/-/ready")
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, started.tail(20))
	}
	return "http://" + address
}

// everyKindOfCall makes a new key, a retry, another request with the same key, and a job that fails once.
func (s *stack) everyKindOfCall(t *testing.T, p *proxy) {
	t.Helper()
	c := pay(newKey())
	send(t, p, c)
	send(t, p, c)
	c.body = `{"amount": 999}`
	send(t, p, c)
	post := func(path, body string) (answer struct {
		Jobs []struct {
			ID    string
			Lease struct{ Token string }
		}
	}) {
		resp, err := http.Post("http://"+s.managerAddr+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode >= 300 {
			t.Fatalf("%s %s: status %d, %v", path, body, resp.StatusCode, err)
		}
		return answer
	}
	post("/v1/jobs", `{"function": "f", "payload": 1}`)
	post("/v1/jobs", `{"function": "waits", "payload": 1}`)
	for _, j := range post("/v1/jobs/claim", `{"worker": "w", "functions": ["f"]}`).Jobs {
		post("/v1/jobs/"+j.ID+"/finish", fmt.Sprintf(`{"lease_token": %q, "status": "failed", "error": "x"}`, j.Lease.Token))
	}
}
