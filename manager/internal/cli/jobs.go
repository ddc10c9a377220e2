package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

func jobsCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"submit":       {"FUNCTION [PAYLOAD]", "submit a job and print it; the payload is JSON", 1, 2, (*operatorCall).submitFlags, jobsSubmit},
		"send":         {"EVENT [PAYLOAD]", "send an event and print its jobs; the payload is JSON", 1, 2, (*operatorCall).sendFlags, jobsSend},
		"subscribe":    {"EVENT FUNCTION", "make each such event from now on a job of the function", 2, 2, nil, subscription("subscribes to", (*client.Client).Subscribe)},
		"unsubscribe":  {"EVENT FUNCTION", "end a subscription; its jobs stay", 2, 2, nil, subscription("does not subscribe to", (*client.Client).Unsubscribe)},
		"events":       {"", "list the events that functions subscribe to", 0, 0, (*operatorCall).pageFlags, jobsEvents},
		"batches":      {"", "list batches and how their jobs ended, oldest first", 0, 0, (*operatorCall).pageFlags, jobsBatches},
		"list":         {"", "list jobs, running ones first", 0, 0, (*operatorCall).listFlags, jobsList},
		"get":          {"ID", "show a job with its payload and result", 1, 1, (*operatorCall).waitFlag, jobsGet},
		"cancel":       {"[ID...]", "cancel these jobs, or those of a filter", 0, -1, (*operatorCall).bulkFlags, eachJob(admin.Cancel, (*admin.Client).Cancel)},
		"retry":        {"[ID...]", "run failed or cancelled jobs again, these or those of a filter", 0, -1, (*operatorCall).retryFlags, jobsRetry},
		"delete":       {"[ID...]", "delete jobs that no worker has, these or those of a filter", 0, -1, (*operatorCall).bulkFlags, eachJob(admin.Delete, (*admin.Client).Delete)},
		"empty":        {"FUNCTION", "delete all queued jobs of a function", 1, 1, (*operatorCall).dryRunFlag, jobsEmpty},
		"functions":    {"", "list functions and how many jobs they have", 0, 0, (*operatorCall).pageFlags, jobsFunctions},
		"limit":        {"FUNCTION", "replace the limits of a function's jobs; without flags, remove them", 1, 1, (*operatorCall).limitFlags, jobsLimit},
		"pause":        {"FUNCTION...", "stop the delivery of functions' jobs", 1, -1, nil, eachFunction("paused", true, (*admin.Client).Pause)},
		"resume":       {"FUNCTION...", "resume the delivery of functions' jobs", 1, -1, nil, eachFunction("flowing", false, (*admin.Client).Resume)},
		"dead-letters": {"FUNCTION", "list a function's dead letters, oldest first", 1, 1, (*operatorCall).pageFlags, jobsDeadLetters},
		"replay":       {"[FUNCTION ID...]", "enqueue dead letters again, these or those of a filter", 0, -1, (*operatorCall).bulkFlags, jobsReplay},
	}
}

func (c *operatorCall) listFlags(fs *flag.FlagSet) {
	c.pageFlags(fs)
	c.filterFlags(fs)
}

// query is what the flags select.
func (c *operatorCall) query() admin.ListQuery {
	q := c.filter
	q.Function, q.State, q.Limit, q.Cursor = c.function, client.State(c.state), c.limit, c.cursor
	return q
}

func (c *operatorCall) waitFlag(fs *flag.FlagSet) {
	fs.Func("wait-seconds", "wait this long for the job's end, 0 to 86400", settings.Seconds(0, 86400, &c.wait))
}

func (c *operatorCall) delayFlag(fs *flag.FlagSet) {
	parse := settings.Seconds(0, settings.MaxSeconds, &c.delay)
	fs.Func("delay-seconds", "run them this much later, 0 to 31622400", func(v string) error {
		c.delayed = true
		return parse(v)
	})
}

func jobsList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.List(ctx, c.query())
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "ID, FUNCTION, STATE, PRIO, ATTEMPT, RUN AT, KEY, ERROR", page.Jobs, func(j *client.Job) []string {
		return []string{
			j.ID, j.Function, string(j.State), strconv.Itoa(j.Priority), fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), stamp(j.RunAt), j.Key, firstLine(j.Error),
		}
	})
}

func jobsGet(ctx context.Context, c *operatorCall) error {
	j, err := c.client.Get(ctx, c.args[0])
	if err == nil && c.wait > 0 && !j.Terminal() {
		waitCtx, cancel := context.WithTimeout(ctx, c.wait)
		done, waitErr := c.client.Wait(waitCtx, c.args[0])
		cancel()
		switch {
		case waitErr == nil:
			j = done
		case ctx.Err() != nil || !errors.Is(waitErr, context.DeadlineExceeded):
			return waitErr
		default: // not over in time: as it is now
			j, err = c.client.Get(ctx, c.args[0])
		}
	}
	if err != nil {
		return err
	}
	return c.printJob(j)
}

// each makes a call for every argument and continues after a refusal, so that one
// does not hide what became of the others.
func (c *operatorCall) each(args []string, one func(string) (*client.Job, error)) error {
	rows := [][]string{{"ID", "FUNCTION", "STATE", "RUN AT"}}
	var failed []error
	for _, arg := range args {
		j, err := one(arg)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if c.json {
			if err := c.printJSON(j); err != nil {
				return err
			}
		}
		state := string(j.State)
		if j.CancelRequested && j.State == client.StateActive {
			state = "active, cancel requested"
		}
		if j.Deduplicated {
			state += ", waiting already; the dead letter stays"
		}
		rows = append(rows, []string{j.ID, j.Function, state, stamp(j.RunAt)})
	}
	if !c.json && len(rows) > 1 {
		if err := c.printTable(rows, ""); err != nil {
			return err
		}
	}
	return failures(failed, len(args))
}

// eachJob is a command that makes a call for every id, or does the action with all jobs of a filter.
func eachJob(action admin.Action, call func(*admin.Client, context.Context, string) (*client.Job, error)) func(context.Context, *operatorCall) error {
	return func(ctx context.Context, c *operatorCall) error {
		return c.eachOrBulk(ctx, action, c.args, func(id string) (*client.Job, error) { return call(c.admin, ctx, id) })
	}
}

func jobsRetry(ctx context.Context, c *operatorCall) error {
	if c.delayed && len(c.args) == 0 {
		return settings.Usagef("retry: --delay-seconds goes with IDs, and not with a filter")
	}
	return c.eachOrBulk(ctx, admin.Retry, c.args, func(id string) (*client.Job, error) {
		return c.admin.Retry(ctx, id, c.delay)
	})
}

func jobsReplay(ctx context.Context, c *operatorCall) error {
	if len(c.args) == 1 {
		return settings.Usagef("replay: 1 arguments: must be %q, or a filter", "replay FUNCTION ID...")
	}
	return c.eachOrBulk(ctx, admin.Replay, c.args[min(1, len(c.args)):], func(id string) (*client.Job, error) { return c.admin.Replay(ctx, c.args[0], id) })
}

func jobsFunctions(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Functions(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	head := "FUNCTION, PAUSED, QUEUED, OLDEST, SCHEDULED, ACTIVE, DEAD, DONE/MIN, FAILED/MIN"
	if slices.ContainsFunc(page.Functions, func(f admin.Function) bool { return f.Limits != nil }) {
		head += ", LIMITS"
	}
	return printPage(c, page, page.Cursor, head, page.Functions, func(f *admin.Function) []string {
		paused := ""
		if f.Paused {
			paused = "paused"
		}
		oldest := ""
		if f.Queued > 0 {
			oldest = f.OldestQueued.Round(100 * time.Millisecond).String()
		}
		return []string{
			f.Name, paused, count(f.Queued, f.AtLeast), oldest, count(f.Scheduled, f.AtLeast), count(f.Active, f.AtLeast), count(f.Dead, f.AtLeast),
			strconv.FormatInt(f.LastMinute.Completed, 10), strconv.FormatInt(f.LastMinute.Failed, 10), limitsText(f.Limits),
		}
	})
}

// eachFunction is a command that pauses or resumes functions.
func eachFunction(done string, paused bool, call func(*admin.Client, context.Context, string) error) func(context.Context, *operatorCall) error {
	return func(ctx context.Context, c *operatorCall) error {
		return c.eachName(func(name string) (json any, text string, err error) {
			return map[string]any{"name": name, "paused": paused}, done, call(c.admin, ctx, name)
		})
	}
}

// eachName makes a call for every argument, prints what it returns, and continues after a refusal, as each does.
func (c *operatorCall) eachName(call func(name string) (json any, text string, err error)) error {
	var failed []error
	for _, name := range c.args {
		json, text, err := call(name)
		switch {
		case err != nil:
			failed = append(failed, err)
		case c.json:
			if err := c.printJSON(json); err != nil {
				return err
			}
		default:
			fmt.Fprintf(c.out, "%s: %s\n", printable(name), text)
		}
	}
	return failures(failed, len(c.args))
}

func jobsDeadLetters(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.DeadLetters(ctx, c.args[0], c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "ID, FAILED AT, ATTEMPT, KEY, REASON", page.DeadLetters, func(l *admin.DeadLetter) []string {
		return []string{l.ID, stamp(l.FailedAt), fmt.Sprintf("%d/%d", l.Job.Attempt, l.Job.MaxAttempts), l.Job.Key, firstLine(l.Reason)}
	})
}
