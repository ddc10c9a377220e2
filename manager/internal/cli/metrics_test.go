package cli

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

var metricName = regexp.MustCompile(`\boncegate_[a-z0-9_]+`)

// A manager with everything turned on has metrics with names by Prometheus' rules, and the references name each of them.
func TestMetricsHaveGoodNames(t *testing.T) {
	cert, key := ownCertificate(t)
	dir := t.TempDir()
	addresses := jobsManager(t, "--store", "wal", "--data-dir", filepath.Join(dir, "data"), "--admin", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key,
		"--encryption-key-file", keyFile(t), "--ship-to", "file://"+filepath.Join(dir, "bucket"), "--shard", "a", "--shards", "a,b",
		"--origin", "dc1", "--peer", "dc2=http://127.0.0.1:1")
	_, admin, _ := strings.Cut(addresses, "\nadmin ")
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v %s", resp.StatusCode, err, text)
	}
	problems, err := promlint.New(strings.NewReader(string(text))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	documented := map[string]bool{}
	for _, name := range []string{"reference/LEDGER.md", "reference/JOBS.md", "reference/LOGS.md", "backup.md", "datacenters.md"} {
		page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(page)) {
			if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), " |"); ok && strings.HasPrefix(line, "| `oncegate_") {
				for _, name := range metricName.FindAllString(cell, -1) {
					documented[name] = true
				}
			}
		}
	}
	families := 0
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "# TYPE oncegate_")
		if !ok {
			continue
		}
		families++
		if name := "oncegate_" + strings.Fields(rest)[0]; !documented[name] {
			t.Errorf("no reference has %s", name)
		}
	}
	if families < 50 {
		t.Errorf("there are only %d metrics", families)
	}
}
