package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/client"
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
	states := []string{"scheduled", "queued", "active", "complete", "failed", "cancelled", "replayed"}
	fs.Func("function", "only jobs of this `function`", text(&c.function))
	fs.Func("state", "only jobs in this `state`: "+strings.Join(states, ", "), c.filtering(settings.Choice(states, &c.state)))
	fs.Func("submitter", "only jobs of this `submitter`, as get shows it", text(&c.submitter))
	fs.Func("older-than-seconds", "only jobs that ended, or have not ended and were submitted, this long ago, 0 to 31622400", c.filtering(settings.Seconds(0, settings.MaxSeconds, &c.olderThan)))
	fs.Func("error", "only jobs whose last `error` is of this kind: equal except for ids and long numbers", text(&c.jobError))
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
func (c *operatorCall) eachOrBulk(ctx context.Context, action string, ids []string, one func(string) (*client.Job, error)) error {
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
	c.function, c.state = c.args[0], "queued"
	return c.bulk(ctx, "delete")
}

// bulk does an action with all jobs of the filter, as they are when it begins: jobs that end later are older than asked
// for by less.
func (c *operatorCall) bulk(ctx context.Context, action string) error {
	if action == "replay" && c.state == "" {
		c.state = "failed" // the only state that has dead letters
	}
	b := client.BulkRequest{Action: action, ListQuery: c.query(), DryRun: c.dryRun}
	total := client.BulkResult{Refused: []client.Refusal{}}
	refused, began := 0, time.Now()
	for {
		res, err := c.client.Bulk(ctx, b)
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
		b.OlderThanMS = (c.olderThan + time.Since(began)).Milliseconds()
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

func (c *operatorCall) printBulk(action string, total *client.BulkResult) error {
	if len(total.Refused) > 0 {
		rows := [][]string{{"REFUSED", "WHY"}}
		for i := range total.Refused {
			rows = append(rows, []string{total.Refused[i].ID, firstLine(total.Refused[i].Err().Error())})
		}
		if err := c.printTable(rows, ""); err != nil {
			return err
		}
	}
	if c.dryRun {
		_, err := fmt.Fprintf(c.out, "would %s: %d\n", action, total.Matched)
		return err
	}
	done := map[string]string{"cancel": "cancelled", "retry": "retried", "replay": "replayed", "delete": "deleted"}[action]
	_, err := fmt.Fprintf(c.out, "%s: %d\n", done, total.Done)
	return err
}
