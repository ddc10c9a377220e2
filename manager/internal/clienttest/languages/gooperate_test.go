package languages

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// operate makes a call on schedules or functions.
func (d *goClient) operate(ctx context.Context, op string, a *goArgs, raw json.RawMessage) (any, error) {
	c := admin.New(d.c)
	switch op {
	case "put_schedule":
		var spec admin.ScheduleSpec
		if err := schema.Unmarshal(raw, &spec); err != nil {
			return nil, err
		}
		return c.PutSchedule(ctx, a.Name, spec)
	case "get_schedule":
		return c.Schedule(ctx, a.Name)
	case "list_schedules":
		return c.Schedules(ctx, a.Limit, a.Cursor)
	case "delete_schedule":
		return nil, c.DeleteSchedule(ctx, a.Name)
	case "pause_schedule":
		return c.PauseSchedule(ctx, a.Name)
	case "resume_schedule":
		return c.ResumeSchedule(ctx, a.Name)
	case "run_schedule":
		return jobOf(c.RunSchedule(ctx, a.Name, a.Idempotency))
	case "functions":
		return c.Functions(ctx, a.Limit, a.Cursor)
	case "set_limits":
		var l admin.Limits
		if err := schema.Unmarshal(raw, &l); err != nil {
			return nil, err
		}
		return nil, c.SetLimits(ctx, a.Function, l)
	}
	return nil, errors.ErrUnsupported
}
