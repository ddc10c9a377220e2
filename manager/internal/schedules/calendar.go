package schedules

import (
	"strings"
	"time"
	_ "time/tzdata" // for machines and images that have no time zones

	"github.com/robfig/cron/v3"
)

// calendar has the instants of a cron expression in a time zone. They are whole minutes.
type calendar struct {
	spec *cron.SpecSchedule
	zone *time.Location
}

// horizon is how far ahead an instant is looked for. The longest pause between two 29ths of February is 8 years.
const horizon = 10 * 366 * 24 * time.Hour

const (
	maxCronBytes = 256
	maxZoneBytes = 64
)

// starBit is set in a field of a cron.SpecSchedule that is * or ?.
const starBit = 1 << 63

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// newCalendar reads an expression and the name of a zone. Its errors are *jobs.FieldError.
func newCalendar(expression, zone string) (*calendar, error) {
	badCron := func(why string) error {
		allowed := "minute, hour, day of month, month and day of week (0 to 6 or SUN to SAT), or @hourly, @daily, @weekly, @monthly, @yearly"
		if why != "" {
			allowed += " (" + why + ")"
		}
		return invalid("cron", expression, allowed)
	}
	// The parser would read TZ=ZONE before the fields, and fails badly if nothing follows it.
	if len(expression) > maxCronBytes || strings.ContainsFunc(expression, func(r rune) bool { return r < ' ' || r > '~' || r == '=' }) {
		return nil, badCron("")
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, badCron(clip(err.Error()))
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, badCron("@every has no instants of its own")
	}
	var loc *time.Location
	if zone != "Local" && len(zone) <= maxZoneBytes {
		loc, err = time.LoadLocation(zone)
	}
	if loc == nil || err != nil {
		return nil, invalid("time_zone", zone, "a name of the time zone database, such as Europe/Vienna or UTC")
	}
	return &calendar{spec, loc}, nil
}

// next returns the first instant after t, zero if there is none within horizon.
func (c *calendar) next(t time.Time) time.Time {
	const allHours = 1<<24 - 1
	if c.spec.Hour&allHours == allHours {
		return c.nextPassing(t)
	}
	return c.nextNamed(t)
}

// nextNamed is next for an expression that names hours. It goes through the local times of the expression, whose
// instants have the same order.
func (c *calendar) nextNamed(after time.Time) time.Time {
	local := after.In(c.zone)
	year, month, day := local.Date()
	for i := range int(horizon / (24 * time.Hour)) {
		date := time.Date(year, month, day+i, 0, 0, 0, 0, time.UTC)
		if !c.hasDay(date) {
			continue
		}
		for hour := range 24 {
			if c.spec.Hour&(1<<hour) == 0 || i == 0 && hour < local.Hour() {
				continue
			}
			for minute := range 60 {
				if c.spec.Minute&(1<<minute) == 0 || i == 0 && hour == local.Hour() && minute <= local.Minute() {
					continue
				}
				if t := c.first(date, hour, minute); t.After(after) {
					return t
				}
			}
		}
	}
	return time.Time{}
}

// nextPassing is next for an expression that all hours match. It goes through the minutes as they pass.
func (c *calendar) nextPassing(after time.Time) time.Time {
	for t := after.Truncate(time.Minute).Add(time.Minute).In(c.zone); t.Sub(after) < horizon; {
		switch {
		case !c.hasDay(t):
			year, month, day := t.Date()
			later := c.first(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC), 0, 0).In(c.zone)
			if _, change := t.ZoneBounds(); !change.IsZero() && change.Before(later) {
				later = change // the clocks may be put back past midnight, to a day that matches
			}
			if !later.After(t) { // they were: this day began before
				later = t.Add(time.Minute)
			}
			t = later
		case c.spec.Minute&(1<<t.Minute()) == 0:
			t = t.Add(time.Minute)
		default:
			return t.UTC()
		}
	}
	return time.Time{}
}

// hasDay reports whether the expression has the date of t.
func (c *calendar) hasDay(t time.Time) bool {
	if c.spec.Month&(1<<t.Month()) == 0 {
		return false
	}
	dom, dow := c.spec.Dom&(1<<t.Day()) != 0, c.spec.Dow&(1<<t.Weekday()) != 0
	if c.spec.Dom&starBit != 0 || c.spec.Dow&starBit != 0 {
		return dom && dow
	}
	return dom || dow // as cron does
}

// first returns the first instant at which the zone's clocks show a local time or, if they never do, the one at which they
// go past it.
func (c *calendar) first(date time.Time, hour, minute int) time.Time {
	local := date.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute) // as if it were UTC
	t := time.Date(date.Year(), date.Month(), date.Day(), hour, minute, 0, 0, c.zone)
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		_, before := start.Add(-time.Second).Zone()
		if earlier := local.Add(-time.Duration(before) * time.Second); earlier.Before(start) {
			return earlier
		}
	}
	_, offset := t.Zone()
	switch shown := t.Add(time.Duration(offset) * time.Second); {
	case shown.After(local):
		return start.UTC()
	case shown.Before(local):
		return end.UTC()
	}
	return t.UTC()
}

// latest returns the first of the last n instants from `from`, which is one, to now.
func (c *calendar) latest(from, now time.Time, n int) time.Time {
	if !c.hasMore(from, now, n) {
		return from
	}
	for early, late := from, now; ; {
		// At least n instants are in [early, now], and fewer in (late, now].
		if late.Sub(early) < time.Minute {
			return early
		}
		if t := c.next(early.Add(late.Sub(early) / 2)); !t.IsZero() && !t.After(now) && c.hasMore(t, now, n-1) {
			early = t
		} else {
			late = early.Add(late.Sub(early) / 2)
		}
	}
}

// hasMore reports whether there are more than n instants in [from, now], where from is one.
func (c *calendar) hasMore(from, now time.Time, n int) bool { return c.count(from, now, n+1) > n }

// count returns how many instants are in [from, now], where from is one; at most most.
func (c *calendar) count(from, now time.Time, most int) int {
	n := 0
	for t := from; n < most && !t.IsZero() && !t.After(now); t = c.next(t) {
		n++
	}
	return n
}
