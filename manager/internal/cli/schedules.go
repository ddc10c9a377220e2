package cli

import (
	"context"
	"flag"
	"fmt"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

func schedulesCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":   {"", "list schedules with their next and last instants", 0, 0, (*operatorCall).pageFlags, schedulesList},
		"get":    {"NAME", "print a schedule as JSON", 1, 1, nil, schedulesGet},
		"pause":  {"NAME...", "stop schedules", 1, -1, nil, schedulesPause},
		"resume": {"NAME...", "start paused schedules again, with the first instant from now on", 1, -1, nil, schedulesResume},
		"delete": {"NAME...", "remove schedules; their jobs stay", 1, -1, nil, schedulesDelete},
		"run":    {"NAME", "enqueue a schedule's job now and print it", 1, 1, (*operatorCall).runFlags, schedulesRun},
	}
}

// schedulesMain is "oncegate schedules".
func schedulesMain(ctx context.Context, env Environment, args []string) error {
	return operatorMain(ctx, env, "schedules", schedulesCommands(), args)
}

func (c *operatorCall) runFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.key, "idempotency-key", "", "`key` of the call: with it the job is enqueued once, however often the call is made")
}

func schedulesList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Schedules(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(page)
	}
	rows := [][]string{{"NAME", "CRON", "TIME ZONE", "FUNCTION", "NEXT", "LAST", "LAST JOB", "MISSED", "OVERLAPPED", "HOME"}}
	for i := range page.Schedules {
		s := &page.Schedules[i]
		next := stamp(s.NextAt)
		if s.Paused {
			next = "paused"
		}
		rows = append(rows, []string{s.Name, s.Cron, s.TimeZone, s.Function, next, stamp(s.LastAt), s.LastJob, fmt.Sprint(s.MissedInstants), fmt.Sprint(s.OverlappedInstants), s.Home})
	}
	return c.printTable(rows, page.Cursor)
}

func schedulesGet(ctx context.Context, c *operatorCall) error {
	s, err := c.admin.Schedule(ctx, c.args[0])
	if err != nil {
		return err
	}
	return c.printJSON(s)
}

func schedulesPause(ctx context.Context, c *operatorCall) error {
	return c.eachSchedule("paused", func(name string) (*admin.Schedule, error) { return c.admin.PauseSchedule(ctx, name) })
}

func schedulesResume(ctx context.Context, c *operatorCall) error {
	return c.eachSchedule("resumed", func(name string) (*admin.Schedule, error) { return c.admin.ResumeSchedule(ctx, name) })
}

func schedulesDelete(ctx context.Context, c *operatorCall) error {
	return c.eachSchedule("deleted", func(name string) (*admin.Schedule, error) {
		return &admin.Schedule{Name: name}, c.admin.DeleteSchedule(ctx, name)
	})
}

// eachSchedule continues after a refusal, as each does.
func (c *operatorCall) eachSchedule(done string, call func(string) (*admin.Schedule, error)) error {
	var failed []error
	for _, name := range c.args {
		s, err := call(name)
		switch {
		case err != nil:
			failed = append(failed, err)
		case c.json:
			if err := c.printJSON(map[string]any{"name": s.Name, "done": done}); err != nil {
				return err
			}
		case s.NextAt.IsZero():
			fmt.Fprintf(c.out, "%s: %s\n", printable(name), done)
		default:
			fmt.Fprintf(c.out, "%s: %s, next at %s\n", printable(name), done, stamp(s.NextAt))
		}
	}
	return failures(failed, len(c.args))
}

func schedulesRun(ctx context.Context, c *operatorCall) error {
	if c.key != "" {
		if err := api.ValidateKey(c.key); err != nil {
			return settings.Usagef("run: --idempotency-key: %v", err)
		}
	}
	j, err := c.admin.RunSchedule(ctx, c.args[0], c.key)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(j)
	}
	return c.printJob(j)
}
