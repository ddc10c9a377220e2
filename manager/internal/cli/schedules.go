package cli

import (
	"context"
	"flag"
	"fmt"

	"github.com/oncegate/oncegate/manager/client/admin"
)

func schedulesCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":   {"", "list schedules with their next and last instants", 0, 0, (*operatorCall).pageFlags, schedulesList},
		"get":    {"NAME", "print a schedule as JSON", 1, 1, nil, schedulesGet},
		"pause":  {"NAME...", "stop schedules", 1, -1, nil, eachSchedule("paused", (*admin.Client).PauseSchedule)},
		"resume": {"NAME...", "start paused schedules again, with the first instant from now on", 1, -1, nil, eachSchedule("resumed", (*admin.Client).ResumeSchedule)},
		"delete": {"NAME...", "remove schedules; their jobs stay", 1, -1, nil, schedulesDelete},
		"run":    {"NAME", "enqueue a schedule's job now and print it", 1, 1, (*operatorCall).runFlags, schedulesRun},
	}
}

func (c *operatorCall) runFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.submission.IdempotencyKey, "idempotency-key", "", "`key` of the call: with it the job is enqueued once, however often the call is made")
}

func schedulesList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Schedules(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "NAME, CRON, TIME ZONE, FUNCTION, NEXT, LAST, LAST JOB, MISSED, OVERLAPPED, HOME", page.Schedules, func(s *admin.Schedule) []string {
		next := stamp(s.NextAt)
		if s.Paused {
			next = "paused"
		}
		return []string{s.Name, s.Cron, s.TimeZone, s.Function, next, stamp(s.LastAt), s.LastJob, fmt.Sprint(s.MissedInstants), fmt.Sprint(s.OverlappedInstants), s.Home}
	})
}

func schedulesGet(ctx context.Context, c *operatorCall) error {
	s, err := c.admin.Schedule(ctx, c.args[0])
	if err != nil {
		return err
	}
	return c.printJSON(s)
}

func schedulesDelete(ctx context.Context, c *operatorCall) error {
	return c.eachName(func(name string) (json any, text string, err error) {
		return map[string]any{"name": name, "done": "deleted"}, "deleted", c.admin.DeleteSchedule(ctx, name)
	})
}

// eachSchedule is a command that pauses or resumes schedules.
func eachSchedule(done string, call func(*admin.Client, context.Context, string) (*admin.Schedule, error)) func(context.Context, *operatorCall) error {
	return func(ctx context.Context, c *operatorCall) error {
		return c.eachName(func(name string) (json any, text string, err error) {
			text = done
			s, err := call(c.admin, ctx, name)
			if err == nil && !s.NextAt.IsZero() {
				text += ", next at " + stamp(s.NextAt)
			}
			return map[string]any{"name": name, "done": done}, text, err
		})
	}
}

func schedulesRun(ctx context.Context, c *operatorCall) error {
	j, err := c.admin.RunSchedule(ctx, c.args[0], c.submission.IdempotencyKey)
	if err != nil {
		return err
	}
	return c.printJob(j)
}
