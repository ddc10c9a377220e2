package cli

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

func (c *operatorCall) limitFlags(fs *flag.FlagSet) {
	fs.Func("max-running", "jobs that workers have at the same time, 1 to 1000000", settings.Number(1, jobs.MaxLimitCount, &c.limits.MaxRunning))
	fs.Func("max-running-per-key", "those with the same concurrency key, 1 to 1000000", settings.Number(1, jobs.MaxLimitCount, &c.limits.MaxRunningPerKey))
	fs.Func("rate-count", "deliveries in --rate-per-seconds, 1 to 1000000", settings.Number(1, jobs.MaxLimitCount, &c.rate.Count))
	fs.Func("rate-per-seconds", "time of --rate-count deliveries, 1 to 86400", settings.Seconds(1, 86400, &c.rate.Per))
}

func jobsLimit(ctx context.Context, c *operatorCall) error {
	l := c.limits
	if c.rate != (admin.Rate{}) {
		if l.Rate = &c.rate; l.Rate.Count == 0 || l.Rate.Per == 0 {
			return settings.Usagef("limit: --rate-count and --rate-per-seconds go together")
		}
	}
	if err := c.admin.SetLimits(ctx, c.args[0], l); err != nil || c.json {
		return err
	}
	text := limitsText(&l)
	if text == "" {
		text = "no limits"
	}
	fmt.Fprintf(c.out, "%s: %s\n", printable(c.args[0]), text)
	return nil
}

// limitsText shows limits, "" for none.
func limitsText(l *admin.Limits) string {
	var parts []string
	if l != nil && l.MaxRunning > 0 {
		parts = append(parts, fmt.Sprintf("%d running", l.MaxRunning))
	}
	if l != nil && l.MaxRunningPerKey > 0 {
		parts = append(parts, fmt.Sprintf("%d per key", l.MaxRunningPerKey))
	}
	if l != nil && l.Rate != nil {
		parts = append(parts, fmt.Sprintf("%d in %s", l.Rate.Count, l.Rate.Per))
	}
	return strings.Join(parts, ", ")
}
