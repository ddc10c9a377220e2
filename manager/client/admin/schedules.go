package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// PutSchedule makes a schedule, or replaces what it enqueues and when. A schedule that is paused stays so.
func (c *Client) PutSchedule(ctx context.Context, name string, s ScheduleSpec) (*Schedule, error) {
	return c.schedule(ctx, wire.Call{Method: "PUT", Path: schedulePath(name), Body: s})
}

// Schedule returns a schedule.
func (c *Client) Schedule(ctx context.Context, name string) (*Schedule, error) {
	return c.schedule(ctx, wire.Call{Method: "GET", Path: schedulePath(name)})
}

// Schedules returns one page of schedules, in order of their names and without payloads. Limit: 1 to 1000, 100 when 0.
func (c *Client) Schedules(ctx context.Context, limit int, cursor string) (*SchedulePage, error) {
	call := wire.Page("/v1/schedules", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of schedules", func(page *SchedulePage) bool { return page.Schedules != nil })
}

// DeleteSchedule removes a schedule. Its jobs stay. When an answer is lost and the call repeated it may say that the
// schedule is not there: then it was deleted.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	_, err := c.schedule(ctx, wire.Call{Method: "DELETE", Path: schedulePath(name)})
	return err
}

// PauseSchedule stops a schedule.
func (c *Client) PauseSchedule(ctx context.Context, name string) (*Schedule, error) {
	return c.schedule(ctx, wire.Call{Method: "POST", Path: schedulePath(name) + "/pause", Body: struct{}{}})
}

// ResumeSchedule starts a paused schedule again, with the first instant from now on.
func (c *Client) ResumeSchedule(ctx context.Context, name string) (*Schedule, error) {
	return c.schedule(ctx, wire.Call{Method: "POST", Path: schedulePath(name) + "/resume", Body: struct{}{}})
}

// RunSchedule enqueues a schedule's job now. Without a key it is not repeated: after a lost answer there may be a job.
// All calls with the same idempotency key enqueue one.
func (c *Client) RunSchedule(ctx context.Context, name, key string) (*client.Job, error) {
	return c.job(ctx, wire.Call{Method: "POST", Path: schedulePath(name) + "/run", Body: struct{}{}, Key: key, Once: key == ""})
}

// schedule makes a call whose answer is a schedule.
func (c *Client) schedule(ctx context.Context, call wire.Call) (*Schedule, error) {
	return wire.Ask(ctx, c.client, call, "no schedule", func(s *Schedule) bool { return s.Name != "" && s.Cron != "" })
}

func schedulePath(name string) string { return "/v1/schedules/" + url.PathEscape(name) }
