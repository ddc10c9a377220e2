package ship

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// restoreNamed restores the named logs of a place whose ledger has this manifest into
// dir/NamedDir, and notes them in the report. An error names every log that cannot be restored.
func restoreNamed(ctx context.Context, o *RestoreOptions, m *manifest, dir string, report *Report) error {
	c, err := catalogOf(ctx, o.Store, m)
	if c == nil || err != nil {
		return err
	}
	at := int64(math.MaxInt64)
	if !o.At.IsZero() {
		at = o.At.UnixMilli()
	}
	top := filepath.Join(dir, NamedDir)
	if err := os.Mkdir(top, 0o700); err != nil {
		return err
	}
	var bad []error
	seen := make(map[string]bool)
	for i := range slices.Backward(c.Logs) {
		e := &c.Logs[i]
		if seen[e.Name] || !e.lives(at) {
			continue
		}
		seen[e.Name] = true
		one := RestoreOptions{Store: o.Store, Log: e.Place, At: o.At}
		if o.CheckNamed != nil {
			one.Check = o.CheckNamed(e.Name)
		}
		r, _, err := restoreLog(ctx, &one, filepath.Join(top, e.Name))
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			bad = append(bad, fmt.Errorf("log %q: %w", e.Name, err))
			continue
		}
		report.Logs = append(report.Logs, NamedReport{e.Name, *r})
	}
	if len(bad) > 0 {
		return errors.Join(bad...)
	}
	for _, e := range c.Logs {
		if seen[e.Name] || e.Gone || e.Deleted != 0 && e.Deleted <= at {
			continue
		}
		seen[e.Name] = true
		forgotten := NamedReport{Name: e.Name}
		switch m, _, err := readManifest(ctx, o.Store, e.Place); {
		case err == nil:
			forgotten.LongestTTL = time.Duration(m.LongestTTL) * time.Millisecond
		case !errors.Is(err, object.ErrNotFound):
			return fmt.Errorf("log %q: %w", e.Name, err)
		}
		report.Forgotten = append(report.Forgotten, forgotten)
	}
	byName := func(a, b NamedReport) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(report.Logs, byName)
	slices.SortFunc(report.Forgotten, byName)
	return syncDir(top)
}
