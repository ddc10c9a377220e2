// Command telemetry writes the Grafana boards into charts/oncegate/files/grafana. Run it from the root of the repository:
//
//	go run ./charts/telemetry
//
// The boards are generated so that they look alike and so that a test can compare every metric in them, in the alerts
// and in the recording rules with the references. The rules themselves are written by hand, in
// charts/oncegate/files/prometheus.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	for name, b := range boards {
		file := filepath.Join("charts", "oncegate", "files", "grafana", name+".json")
		if err := os.WriteFile(file, b.json(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
