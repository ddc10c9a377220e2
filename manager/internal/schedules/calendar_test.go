package schedules

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func newTestCalendar(t *testing.T, expression, zone string) *calendar {
	t.Helper()
	c, err := newCalendar(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
}

// TestDaysOnWhichClocksChange has what docs/reference/JOBS.md says of an hour that does not exist and one that exists twice.
func TestDaysOnWhichClocksChange(t *testing.T) {
	for _, c := range []struct {
		name, cron, zone, after string
		want                    []string
	}{
		// On 2026-03-29, 02:00 to 03:00 does not exist in Vienna.
		{"a named hour that does not exist", "30 2 * * *", "Europe/Vienna", "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"several times in it have one instant", "0,20,40 2,3 * * *", "Europe/Vienna", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:20:00+02:00", "2026-03-29T03:40:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"every second hour, without one", "0 */2 * * *", "Europe/Vienna", "2026-03-28T23:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00", "2026-03-29T06:00:00+02:00"}},
		{"every hour, without one", "30 * * * *", "Europe/Vienna", "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-29T04:30:00+02:00"}},
		{"every quarter of an hour, without four", "*/15 * * * *", "Europe/Vienna", "2026-03-29T00:30:00Z",
			[]string{"2026-03-29T01:45:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00"}},
		// On 2026-10-25, 02:00 to 03:00 exists twice in Vienna.
		{"a named hour that exists twice", "30 2 * * *", "Europe/Vienna", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"the first time is over", "30 2 * * *", "Europe/Vienna", "2026-10-25T00:45:00Z", []string{"2026-10-26T02:30:00+01:00"}},
		{"every hour, twice", "30 * * * *", "Europe/Vienna", "2026-10-25T00:00:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"}},
		{"a working day", "0 9 * * 1-5", "Europe/Vienna", "2026-03-27T09:00:00Z",
			[]string{"2026-03-30T09:00:00+02:00", "2026-03-31T09:00:00+02:00"}},
		// New York: 2026-03-08 has no 02:00 to 03:00, and 2026-11-01 has 01:00 to 02:00 twice.
		{"a named hour that does not exist", "15 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"}},
		{"every hour, without one", "15 * * * *", "America/New_York", "2026-03-08T06:00:00Z",
			[]string{"2026-03-08T01:15:00-05:00", "2026-03-08T03:15:00-04:00"}},
		{"a named hour that exists twice", "0 1 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T01:00:00-04:00", "2026-11-02T01:00:00-05:00"}},
		{"every hour, twice", "@hourly", "America/New_York", "2026-11-01T04:30:00Z",
			[]string{"2026-11-01T01:00:00-04:00", "2026-11-01T01:00:00-05:00", "2026-11-01T02:00:00-05:00"}},
		// Cairo puts its clocks forward at midnight.
		{"a midnight that does not exist", "@daily", "Africa/Cairo", "2026-04-22T12:00:00Z",
			[]string{"2026-04-23T00:00:00+02:00", "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"}},
		// Samoa left out 2011-12-30.
		{"a day that does not exist", "0 9 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z",
			[]string{"2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"}},
		{"the 29th of February", "0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"day of month or of week", "0 0 13 * FRI", "UTC", "2026-11-10T00:00:00Z",
			[]string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"}},
	} {
		cal, now := newTestCalendar(t, c.cron, c.zone), at(t, c.after)
		for i, want := range c.want {
			if now = cal.next(now); !now.Equal(at(t, want)) {
				t.Errorf("%s: %s in %s: instant %d is %s, want %s", c.name, c.cron, c.zone, i, now.In(cal.zone).Format(time.RFC3339), want)
			}
			if now.Location() != time.UTC {
				t.Errorf("%s: %v is not in UTC", c.name, now)
			}
		}
	}
	if next := newTestCalendar(t, "0 0 30 2 *", "UTC").next(time.Now()); !next.IsZero() {
		t.Errorf("the 30th of February is %v", next)
	}
	if next := newTestCalendar(t, "* * 30 2 *", "Europe/Vienna").next(time.Now()); !next.IsZero() {
		t.Errorf("the 30th of February is %v", next)
	}
}

// byMinutes has the instants after from, up to `to`, by a look at each minute.
func byMinutes(c *calendar, from, to time.Time) (all []time.Time) {
	show := func(t time.Time) time.Time { // the local time, as if it were UTC
		_, offset := t.In(c.zone).Zone()
		return t.Add(time.Duration(offset) * time.Second)
	}
	matches := func(local time.Time) bool {
		return c.hasDay(local) && c.spec.Hour&(1<<local.Hour()) != 0 && c.spec.Minute&(1<<local.Minute()) != 0
	}
	passing := c.spec.Hour&(1<<24-1) == 1<<24-1
	seen := show(from) // the latest local time that the clocks showed or passed
	for t := from.Add(time.Minute); !t.After(to); t = t.Add(time.Minute) {
		local := show(t)
		if passing {
			if matches(local) {
				all = append(all, t)
			}
			continue
		}
		hit := false
		for ; seen.Before(local); seen = seen.Add(time.Minute) {
			hit = hit || matches(seen.Add(time.Minute))
		}
		if hit {
			all = append(all, t)
		}
	}
	return all
}

func TestInstantsAreThoseOfALookAtEachMinute(t *testing.T) {
	expressions := []string{"* * * * *", "*/15 * * * *", "30 * * * *", "7 1 * * *", "0,30 0-3 * * *", "59 23 * * *", "@daily", "10 */2 * * *", "20 2,23 * * SUN,FRI", "0 0 1,15 * *", "5 * * * SAT"}
	for _, c := range []struct {
		zone string
		days []string
	}{
		{"Europe/Vienna", []string{"2026-03-29", "2026-10-25"}},
		{"America/New_York", []string{"2026-03-08", "2026-11-01"}},
		{"Australia/Lord_Howe", []string{"2026-04-05", "2026-10-04"}}, // half an hour
		{"Asia/Beirut", []string{"2026-03-29", "2026-10-25"}},         // from midnight, and to the day before
		{"Asia/Amman", []string{"2021-03-26", "2021-10-29"}},          // midnight exists twice
		{"America/Havana", []string{"2026-03-08", "2026-11-01"}},
		{"Africa/Casablanca", []string{"2026-02-15", "2026-03-22"}},
		{"Pacific/Apia", []string{"2011-12-30"}},
		{"America/St_Johns", []string{"2010-03-14", "2010-11-07"}}, // at one minute past midnight
		{"UTC", []string{"2026-12-31"}},
	} {
		for _, day := range c.days {
			from := at(t, day+"T00:00:00Z").Add(-36 * time.Hour)
			to := from.Add(84 * time.Hour)
			for _, expression := range expressions {
				cal := newTestCalendar(t, expression, c.zone)
				now := from
				all := byMinutes(cal, from, to)
				for _, want := range all {
					for _, after := range []time.Time{now, want.Add(-time.Second)} {
						if got := cal.next(after); !got.Equal(want) {
							t.Fatalf("%s in %s: after %s comes %s, want %s", expression, c.zone, after.In(cal.zone), got.In(cal.zone), want.In(cal.zone))
						}
					}
					now = want
				}
				if got := cal.next(now); !got.After(to) && !got.IsZero() {
					t.Fatalf("%s in %s: after %s comes %s, want none before %s", expression, c.zone, now.In(cal.zone), got.In(cal.zone), to.In(cal.zone))
				}
				for _, n := range []int{1, 2, 7, 50} {
					if len(all) == 0 {
						break
					}
					if got, want := cal.latest(all[0], to, n), all[max(0, len(all)-n)]; !got.Equal(want) {
						t.Fatalf("%s in %s: the last %d begin with %s, want %s", expression, c.zone, n, got, want)
					}
				}
			}
		}
	}
}

func TestExpressionsAndZonesThatAreRefused(t *testing.T) {
	for _, v := range []string{
		"*", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "5-1 * * * *", "*/0 * * * *", "a * * * *",
		"TZ=UTC", "TZ=UTC * * * * *", "CRON_TZ=UTC", "@every 1h", "@reboot", "@", "\x00", "* * * * *\n", "0 9 * * mön", strings.Repeat("1,", 200) + "1 * * * *",
	} {
		_, err := newCalendar(v, "UTC")
		var field *jobs.FieldError
		if !errors.As(err, &field) || field.Field != "cron" || field.Value == "" || field.Allowed == "" {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{"Local", "Europe/Wien", "../UTC", "/etc/passwd", "+01:00", strings.Repeat("x", 100), "\x00"} {
		_, err := newCalendar("* * * * *", v)
		var field *jobs.FieldError
		if !errors.As(err, &field) || field.Field != "time_zone" || field.Value == "" {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func FuzzCalendar(f *testing.F) {
	f.Add("30 2 * * *", "Europe/Vienna", int64(1774746000))
	f.Add("*/7 * 1-7 * MON", "America/New_York", int64(1793505600))
	f.Add("TZ=", "UTC", int64(0))
	f.Fuzz(func(t *testing.T, expression, zone string, unix int64) {
		c, err := newCalendar(expression, zone)
		if err != nil || unix < 0 || unix > 1<<33 {
			return
		}
		after := time.Unix(unix, 0)
		next := c.next(after)
		if !next.IsZero() && (!next.After(after) || !next.Equal(next.Truncate(time.Minute))) {
			t.Errorf("%q in %q: after %v comes %v", expression, zone, after, next)
		}
	})
}
