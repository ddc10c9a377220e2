package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// TestAdapter plays the harness's part: it starts the adapter on a database, reads its lines, and ends it with SIGTERM.
func TestAdapter(t *testing.T) {
	dir := t.TempDir()
	for program, from := range map[string]string{"peers-bench": ".", "oncegate": "../../manager/cmd/oncegate"} {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, program), ".")
		build.Dir = from
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", build, err, out)
		}
	}
	pg := servers.Postgres(t)
	db, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	start := func(t *testing.T, database string, env ...string) *json.Decoder {
		if _, err := db.Exec(t.Context(), "CREATE DATABASE "+database); err != nil {
			t.Fatal(err)
		}
		adapter := exec.Command(filepath.Join(dir, "peers-bench"), "adapter")
		adapter.Env = append(os.Environ(), append(env, "SAMPLE_EVERY_S=1", "DATABASE_URL="+strings.Replace(pg.URL, "dbname=postgres", "dbname="+database, 1))...)
		adapter.Stderr = os.Stderr
		stdout, err := adapter.StdoutPipe()
		if err == nil {
			err = adapter.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			began := time.Now()
			_ = adapter.Process.Signal(syscall.SIGTERM)
			for in := bufio.NewReader(stdout); err == nil; {
				_, err = in.ReadString('\n')
			}
			if err := adapter.Wait(); err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("the adapter ended after %v: %v", time.Since(began), err)
			}
		})
		lines := json.NewDecoder(stdout)
		var descriptor, file map[string]any
		if err := lines.Decode(&descriptor); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(manifest, &file); err != nil {
			t.Fatal(err)
		}
		if descriptor["kind"] != "descriptor" || descriptor["db_name"] != database || descriptor["system"] != file["system"] {
			t.Errorf("the descriptor is %v", descriptor)
		}
		return lines
	}
	// until reads samples until those of one time are as wanted.
	until := func(t *testing.T, lines *json.Decoder, wanted func(samples map[string]float64) bool) {
		samples, at := map[string]float64{}, ""
		for deadline := time.Now().Add(time.Minute); ; {
			var l struct {
				Kind, System, Metric, T string
				Value                   *float64
				Window                  *float64 `json:"window_s"`
				Instance                *int     `json:"instance_id"`
			}
			if err := lines.Decode(&l); err != nil {
				t.Fatal(err)
			}
			if _, err := time.Parse(time.RFC3339, l.T); err != nil || l.Kind != "adapter" || l.System != "oncegate" || l.Value == nil || l.Window == nil || l.Instance == nil {
				t.Fatalf("%+v is no sample: %v", l, err)
			}
			if l.T != at {
				if wanted(samples) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("the samples are %v", samples)
				}
				samples, at = map[string]float64{}, l.T
			}
			samples[l.Metric] = *l.Value
		}
	}
	t.Run("fixed rate", func(t *testing.T) {
		control := filepath.Join(t.TempDir(), "rate")
		lines := start(t, "fixed", "SCENARIO=long_horizon", "PRODUCER_RATE=50", "WORKER_COUNT=8", "PRODUCER_RATE_CONTROL_FILE="+control)
		until(t, lines, func(s map[string]float64) bool {
			_, depth := s["queue_depth"]
			return depth && s["producer_target_rate"] == 50 && s["enqueue_rate"] > 0 && s["completion_rate"] > 0 &&
				s["claim_p50_ms"] > 0 && s["claim_p95_ms"] >= s["claim_p50_ms"] && s["claim_p99_ms"] >= s["claim_p95_ms"] &&
				s["end_to_end_p50_ms"] >= s["claim_p50_ms"] && s["end_to_end_p99_ms"] >= s["end_to_end_p50_ms"]
		})
		if err := os.WriteFile(control, []byte("150\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		until(t, lines, func(s map[string]float64) bool { return s["producer_target_rate"] == 150 && s["enqueue_rate"] > 75 })
		// The tables and indexes that the harness looks at are those of the queue.
		var file struct {
			Tables  []string `json:"event_tables"`
			Indexes []string `json:"event_indexes"`
		}
		if err := json.Unmarshal(manifest, &file); err != nil {
			t.Fatal(err)
		}
		own, err := pgx.Connect(t.Context(), strings.Replace(pg.URL, "dbname=postgres", "dbname=fixed", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close(t.Context())
		for _, name := range append(file.Tables, file.Indexes...) {
			var size int
			if err := own.QueryRow(t.Context(), "SELECT pg_relation_size($1::text)", name).Scan(&size); err != nil || size == 0 {
				t.Errorf("%s: %d bytes, %v", name, size, err)
			}
		}
	})
	t.Run("depth", func(t *testing.T) {
		lines := start(t, "depth", "PRODUCER_MODE=depth-target", "TARGET_DEPTH=200", "WORKER_COUNT=1", "JOB_WORK_MS=100")
		until(t, lines, func(s map[string]float64) bool {
			if s["queue_depth"] > 200 {
				t.Fatalf("the depth is %v", s["queue_depth"])
			}
			return s["queue_depth"] > 190
		})
	})
}

// TestAdapterRefuses what it cannot serve.
func TestAdapterRefuses(t *testing.T) {
	for _, name := range []string{"SCENARIO", "WORKER_COUNT"} {
		t.Setenv(name, "0")
		if err := serveAdapter(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=0: %v", name, err)
		}
		t.Setenv(name, "")
	}
}

// TestQuantiles of the last thirty seconds, with three digits.
func TestQuantiles(t *testing.T) {
	var w window
	if got := w.quantile(50); got != 0 {
		t.Errorf("without durations: %v", got)
	}
	for i := range windowSeconds {
		w.second[i], w.counts[i] = time.Now().Unix()-windowSeconds, map[time.Duration]int{time.Hour: 1e6}
	}
	for i := range 1000 {
		w.add(time.Duration(i+1) * time.Millisecond)
	}
	w.add(-time.Second)
	for percent, want := range map[int]float64{50: 500, 95: 950, 99: 990} {
		if got := w.quantile(percent); got != want {
			t.Errorf("%d: %v, want %v", percent, got, want)
		}
	}
}
