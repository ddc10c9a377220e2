package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// maxRefusals bounds how many refusals a bulk action prints.
const maxRefusals = 1000

// filtering parses a flag of a filter, and records that there is one.
func (c *operatorCall) filtering(parse func(string) error) func(string) error {
	return func(v string) error {
		c.filtered = true
		return parse(v)
	}
}

func (c *operatorCall) filterFlags(fs *flag.FlagSet) {
	text := func(to *string) func(string) error {
		return c.filtering(func(v string) error {
			if v == "" {
				return errors.New("must not be empty")
			}
			*to = v
			return nil
		})
	}
	states := []string{"scheduled", "queued", "active", "complete", "failed", "cancelled", "replayed", "expired"}
	fs.Func("function", "only jobs of this `function`", text(&c.function))
	fs.Func("state", "only jobs in this `state`: "+strings.Join(states, ", "), c.filtering(settings.Choice(states, &c.state)))
	fs.Func("submitter", "only jobs of this `submitter`, as get shows it", text(&c.filter.Submitter))
	fs.Func("key", "only jobs with this `key`", text(&c.filter.Key))
	fs.Func("concurrency-key", "only jobs with this concurrency `key`", text(&c.filter.ConcurrencyKey))
	fs.Func("older-than-seconds", "only jobs that ended, or have not ended and were submitted, this long ago, 0 to 31622400", c.filtering(settings.Seconds(0, settings.MaxSeconds, &c.filter.OlderThan)))
	fs.Func("newer-than-seconds", "only jobs for which that is less long ago, 0.001 to 31622400", c.filtering(settings.Seconds(0.001, settings.MaxSeconds, &c.filter.NewerThan)))
	fs.Func("error", "only jobs whose last `error` is of this kind: equal except for ids and long numbers", text(&c.filter.Error))
	fs.Func("error-text", "only jobs whose last error contains this `text`, in upper or lower case", text(&c.filter.ErrorText))
}

func (c *operatorCall) dryRunFlag(fs *flag.FlagSet) {
	fs.BoolVar(&c.dryRun, "dry-run", false, "print how many jobs it would be, and change nothing")
}

func (c *operatorCall) bulkFlags(fs *flag.FlagSet) {
	c.filterFlags(fs)
	c.dryRunFlag(fs)
}

func (c *operatorCall) retryFlags(fs *flag.FlagSet) {
	c.bulkFlags(fs)
	c.delayFlag(fs)
}

// eachOrBulk makes a call for every id, or does the action with all jobs of the filter.
func (c *operatorCall) eachOrBulk(ctx context.Context, action admin.Action, ids []string, one func(string) (*client.Job, error)) error {
	switch {
	case len(ids) > 0 && (c.filtered || c.dryRun):
		return settings.Usagef("%s: IDs go with neither a filter nor --dry-run", action)
	case len(ids) > 0:
		return c.each(ids, one)
	case !c.filtered:
		return settings.Usagef("%s: no jobs: must be IDs, or a filter such as --function and --state", action)
	}
	return c.bulk(ctx, action)
}

func jobsEmpty(ctx context.Context, c *operatorCall) error {
	c.function, c.state = c.args[0], string(client.StateQueued)
	return c.bulk(ctx, admin.Delete)
}

// bulk does an action with all jobs of the filter, as they are when it begins: jobs that end later are older than asked
// for by less.
func (c *operatorCall) bulk(ctx context.Context, action admin.Action) error {
	if action == admin.Replay && c.state == "" {
		c.state = string(client.StateFailed) // the only state that has dead letters
	}
	b := admin.BulkRequest{Action: action, ListQuery: c.query(), DryRun: c.dryRun}
	total := admin.BulkResult{Refused: []admin.Refusal{}}
	refused, began := 0, time.Now()
	for {
		res, err := c.admin.Bulk(ctx, b)
		if err != nil {
			if total.Matched > 0 {
				err = fmt.Errorf("after %d jobs: %w", total.Done, err)
			}
			return err
		}
		total.Matched, total.Done, refused = total.Matched+res.Matched, total.Done+res.Done, refused+len(res.Refused)
		total.Refused = append(total.Refused, res.Refused[:min(len(res.Refused), maxRefusals-len(total.Refused))]...)
		if b.Cursor = res.Cursor; b.Cursor == "" {
			break
		}
		elapsed := time.Since(began)
		age := func(d time.Duration) time.Duration {
			return min(d+elapsed, settings.MaxSeconds*time.Second).Truncate(time.Millisecond)
		}
		b.OlderThan = age(c.filter.OlderThan)
		if c.filter.NewerThan != 0 {
			b.NewerThan = age(c.filter.NewerThan)
		}
	}
	if c.json {
		if err := c.printJSON(total); err != nil {
			return err
		}
	} else if err := c.printBulk(action, &total); err != nil {
		return err
	}
	if refused == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d jobs were refused", refused, total.Matched)
}

func (c *operatorCall) printBulk(action admin.Action, total *admin.BulkResult) error {
	if len(total.Refused) > 0 {
		rows := [][]string{{"REFUSED", "WHY"}}
		for i := range total.Refused {
			rows = append(rows, []string{total.Refused[i].ID, firstLine(admin.ErrorOf(&total.Refused[i]).Error())})
		}
		if err := c.printTable(rows, ""); err != nil {
			return err
		}
	}
	if c.dryRun {
		_, err := fmt.Fprintf(c.out, "would %s: %d\n", action, total.Matched)
		return err
	}
	done := map[admin.Action]string{admin.Cancel: "cancelled", admin.Retry: "retried", admin.Replay: "replayed", admin.Delete: "deleted"}[action]
	_, err := fmt.Fprintf(c.out, "%s: %d\n", done, total.Done)
	return err
}
