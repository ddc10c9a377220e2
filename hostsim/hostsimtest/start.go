package hostsimtest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// Epoch is a good start for a virtual clock.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Patience bounds every wait of this package. It is far longer than any healthy step, so a busy machine fails no test.
const Patience = 2 * time.Minute

// Start starts a host and closes it when the test ends. If the test failed, it writes the host's state to the test's
// log. See Healthy for whether the filter behaved.
func Start(tb testing.TB, cfg hostsim.Config) *hostsim.Host {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = Logger(tb)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	h, err := hostsim.Start(ctx, cfg)
	if err != nil {
		tb.Fatalf("hostsim.Start: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(Dump(h))
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			tb.Errorf("closing the host: %v", err)
		}
	})
	return h
}

// Logger writes to the test's log.
func Logger(tb testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.tb.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// Healthy fails the test when a VM trapped or the filter did something that is
// undefined in Envoy.
func Healthy(tb testing.TB, h *hostsim.Host) {
	tb.Helper()
	for _, t := range h.Traps() {
		tb.Errorf("trap on %s in %s: %v", t.Thread, t.Callback, t.Err)
	}
	for _, v := range h.Violations() {
		tb.Errorf("violation on %s, context %d: %s", v.Thread, v.Context, v.What)
	}
}

// Settle waits until the host has handled everything that was fed.
func Settle(tb testing.TB, h *hostsim.Host) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := h.Settle(ctx); err != nil {
		tb.Fatalf("the host does not settle: %v", err)
	}
}

// Dump describes a host's state: traps, violations, warnings, open streams, shared
// data and metrics.
func Dump(h *hostsim.Host) string {
	var b strings.Builder
	b.WriteString("host state:\n")
	for _, t := range h.Traps() {
		fmt.Fprintf(&b, "  trap %s %s: %v\n", t.Thread, t.Callback, t.Err)
	}
	for _, v := range h.Violations() {
		fmt.Fprintf(&b, "  violation %s #%d: %s\n", v.Thread, v.Context, v.What)
	}
	for _, l := range h.Warnings() {
		fmt.Fprintf(&b, "  guest log %s level %d: %s\n", l.Thread, l.Level, l.Message)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for _, s := range h.DumpStreams(ctx) {
		b.WriteString("  stream " + s + "\n")
	}
	const mostKeys, mostBytes = 200, 64
	data := h.SharedData()
	for i, e := range data {
		if i == mostKeys {
			fmt.Fprintf(&b, "  ... %d more keys\n", len(data)-i)
			break
		}
		v := e.Value
		if len(v) > mostBytes {
			v = v[:mostBytes]
		}
		fmt.Fprintf(&b, "  shared data %q = %q (%d bytes, cas %d)\n", e.Key, v, len(e.Value), e.CAS)
	}
	for _, m := range h.Process().Metrics() {
		fmt.Fprintf(&b, "  metric %s = %d\n", m.Name, m.Value)
	}
	return b.String()
}
