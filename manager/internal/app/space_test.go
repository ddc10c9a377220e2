package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// What the server does not report is absent, so that no alert compares with zero.
func TestSpaceMetrics(t *testing.T) {
	for _, c := range []struct {
		space store.Space
		want  string
	}{
		{store.Space{}, "oncegate_store_majority 0\n"},
		{store.Space{Majority: true, Bytes: 5}, "oncegate_store_full 0\noncegate_store_majority 1\noncegate_store_size_bytes 5\n"},
		{store.Space{Full: true, Bytes: 5, Quota: 6}, "oncegate_store_full 1\noncegate_store_majority 0\noncegate_store_quota_bytes 6\noncegate_store_size_bytes 5\n"},
	} {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(newSpaceCollector(func(context.Context) store.Space { return c.space }))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, f := range families {
			fmt.Fprintf(&got, "%s %v\n", f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
		if got.String() != c.want {
			t.Errorf("%+v:\n%s", c.space, got.String())
		}
	}
}

func TestClockMetric(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(clockCollector(func() time.Duration { return 90 * time.Second }))
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(families, err)
	}
	if name, v := families[0].GetName(), families[0].GetMetric()[0].GetGauge().GetValue(); name != "oncegate_store_clock_behind_seconds" || v != 90 {
		t.Errorf("%s %v", name, v)
	}
}
