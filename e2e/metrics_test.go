package e2e

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

var gateMetricRow = regexp.MustCompile("(?m)^\\| `(oncegate_gate_[a-z_]+)` \\| ")

// kindByName returns the kind that docs/reference/METRICS.md gives a metric by its ending.
func kindByName(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_microseconds"), strings.HasSuffix(name, "_milliseconds"):
		return "histogram"
	}
	return "gauge"
}

// Envoy's Prometheus endpoint has the gate's metrics under the names and with the kinds of the reference, and the names
// follow Prometheus' rules.
func TestEnvoyExportsTheMetrics(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, nil, func(w http.ResponseWriter, _ *http.Request) {}, nil)
		p := s.proxies[0]
		send(t, p, pay("k"))
		p.awaitMetric(t, "oncegate_gate_requests_miss_total", 1)
		text, err := fetch(p.admin + "/stats/prometheus")
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string]string{}
		var own strings.Builder
		for line := range strings.Lines(string(text)) {
			if name, kind, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "# TYPE ")), " "); ok && strings.HasPrefix(line, "# TYPE oncegate_") {
				kinds[name] = kind
			}
			if strings.Contains(line, "oncegate_gate_") && !strings.HasPrefix(line, "# HELP") {
				own.WriteString(line)
			}
		}
		page, err := os.ReadFile("../docs/reference/METRICS.md")
		if err != nil {
			t.Fatal(err)
		}
		metrics, _, _ := strings.Cut(string(page), "## Recorded metrics")
		rows := gateMetricRow.FindAllStringSubmatch(metrics, -1)
		if len(rows) < 40 {
			t.Fatalf("the reference has only %d metrics", len(rows))
		}
		for _, row := range rows {
			if name, kind := row[1], kindByName(row[1]); kinds[name] != kind {
				// A metric that nothing has changed yet may be absent.
				if _, there := kinds[name]; there || kind != "histogram" {
					t.Errorf("%s: Envoy says %q, the reference %q", name, kinds[name], kind)
				}
			}
		}
		problems, err := promlint.New(strings.NewReader(own.String())).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			// Envoy gives no help texts. It counts whole numbers only, so the histograms are in smaller units than seconds.
			whole := strings.HasSuffix(p.Metric, "_microseconds") || strings.HasSuffix(p.Metric, "_milliseconds")
			if p.Text != "no help text" && !(whole && strings.HasPrefix(p.Text, "use base unit")) {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}
