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
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// restoreNamed restores the named logs of a destination whose ledger has this manifest into
// dir/NamedDir, and adds them to the report. An error names every log that cannot be restored, and all of its damage.
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
	if !o.nothing {
		if err := os.MkdirAll(top, 0o700); err != nil {
			return err
		}
	}
	var bad []error
	seen, taken := make(map[string]bool), make(map[string]bool) // names, and prefixes
	for i := range slices.Backward(c.Logs) {
		e := &c.Logs[i]
		if seen[e.Name] || !e.restorable(at) {
			continue
		}
		seen[e.Name], taken[e.Prefix] = true, true
		one := RestoreOptions{Store: o.Store, Log: e.Prefix, At: o.At, nothing: o.nothing}
		if o.CheckNamed != nil {
			one.newCheck = func() func(wal.Entry) error { return o.CheckNamed(e.Name) }
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
	for _, e := range c.Logs {
		if taken[e.Prefix] || e.Gone || e.Deleted != 0 && e.Deleted <= at {
			continue
		}
		var longest time.Duration
		switch m, _, err := readManifest(ctx, o.Store, e.Prefix); {
		case err == nil:
			longest = time.Duration(m.LongestTTL) * time.Millisecond
		case !errors.Is(err, object.ErrNotFound):
			bad = append(bad, fmt.Errorf("log %q: %w", e.Name, err))
		}
		// A log of this name that is not restored may have had a longer TTL than the one that is.
		all := &report.Logs
		if !seen[e.Name] {
			all = &report.Forgotten
		}
		i := slices.IndexFunc(*all, func(r NamedReport) bool { return r.Name == e.Name })
		if i < 0 {
			i = len(*all)
			*all = append(*all, NamedReport{Name: e.Name})
		}
		(*all)[i].LongestTTL = max((*all)[i].LongestTTL, longest)
	}
	if len(bad) > 0 {
		return errors.Join(bad...)
	}
	byName := func(a, b NamedReport) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(report.Logs, byName)
	slices.SortFunc(report.Forgotten, byName)
	if o.nothing {
		return nil
	}
	return syncDir(top)
}
