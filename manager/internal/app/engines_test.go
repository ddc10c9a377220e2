package app

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

func TestEveryEngineCanBeOpened(t *testing.T) {
	if got, want := slices.Sorted(maps.Keys(openers)), settings.EngineNames(); !slices.Equal(got, want) {
		t.Errorf("package app opens %v, --store takes %v", got, want)
	}
}

// TestEnginesDoNotShareADirectory: a manager that is started with another engine
// on the directory it had would have forgotten every key.
func TestEnginesDoNotShareADirectory(t *testing.T) {
	for _, c := range [][2]string{{"wal", "sqlite"}, {"sqlite", "wal"}} {
		dir := t.TempDir()
		o := &settings.Settings{DataDir: dir, CacheBytes: 8 << 20}
		log := slog.New(slog.DiscardHandler)
		first, err := openers[c[0]](t.Context(), o, log, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		other, err := openers[c[1]](t.Context(), o, log, prometheus.NewRegistry())
		var usage *settings.UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), "of the engine "+c[0]) {
			t.Errorf("%s where there was %s: %v", c[1], c[0], err)
		}
		if err == nil {
			_ = other.Close()
		}
		again, err := openers[c[0]](t.Context(), o, log, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Close()
	}
}
