package ui

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// rateUnit is a unit for the time of a rate.
type rateUnit struct {
	Name string
	per  time.Duration
}

// rateUnits are in order, from the longest.
var rateUnits = []rateUnit{{"hours", time.Hour}, {"minutes", time.Minute}, {"seconds", time.Second}, {"milliseconds", time.Millisecond}}

// exactTime is a length of time as a number of the longest unit that shows it exactly.
type exactTime struct {
	Count int64
	Unit  string
}

func (p exactTime) String() string {
	if p.Count == 1 {
		return "1 " + strings.TrimSuffix(p.Unit, "s")
	}
	return num(p.Count) + " " + p.Unit
}

// RatePer is the time of the function's rate, one second without a rate.
func (f functionRow) RatePer() exactTime { return exactly(cmp.Or(f.Limits.Rate.Per, time.Second)) }

func exactly(d time.Duration) exactTime {
	for _, u := range rateUnits {
		if d%u.per == 0 {
			return exactTime{int64(d / u.per), u.Name}
		}
	}
	return exactTime{d.Milliseconds(), "milliseconds"}
}

// RateUnits are those of the form.
func (f functionRow) RateUnits() []rateUnit { return rateUnits }

// MostOfLimit is the largest number that a limit may have.
func (f functionRow) MostOfLimit() int { return jobs.MaxLimitCount }

// LimitTexts says what the function's limits are, nil without limits.
func (f functionRow) LimitTexts() (texts []string) {
	l := f.Limits
	if l.MaxRunning > 0 {
		texts = append(texts, "At most "+plural(l.MaxRunning, "job runs", "jobs run")+" at the same time.")
	}
	if l.MaxRunningPerKey > 0 {
		texts = append(texts, "At most "+plural(l.MaxRunningPerKey, "job", "jobs")+" of one concurrency key at the same time.")
	}
	if l.Rate != (jobs.Rate{}) {
		texts = append(texts, "At most "+plural(l.Rate.Count, "start", "starts")+" in "+f.RatePer().String()+".")
	}
	return texts
}

// limit reads a number of the form for limits, 0 if the field is empty.
func (v *visit) limit(field string) (int, error) {
	text := v.form(field)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > jobs.MaxLimitCount {
		return 0, &jobs.FieldError{Field: field, Value: strconv.Quote(httpd.Clip(text)), Allowed: fmt.Sprintf("1 to %d, or nothing for no limit; to stop the function, pause it", jobs.MaxLimitCount)}
	}
	return n, nil
}

// limits reads the form.
func (v *visit) limits() (l jobs.Limits, err error) {
	if l.MaxRunning, err = v.limit("max_running"); err != nil {
		return l, err
	}
	if l.MaxRunningPerKey, err = v.limit("max_running_per_key"); err != nil {
		return l, err
	}
	if l.Rate.Count, err = v.limit("rate_count"); err != nil || l.Rate.Count == 0 {
		return l, err
	}
	per, err := v.limit("rate_per")
	if err != nil {
		return l, err
	}
	for _, u := range rateUnits {
		if u.Name == v.form("rate_unit") {
			l.Rate.Per = time.Duration(per) * u.per
			return l, nil
		}
	}
	return l, &jobs.FieldError{Field: "rate_unit", Value: strconv.Quote(httpd.Clip(v.form("rate_unit"))), Allowed: "hours, minutes, seconds, milliseconds"}
}

// setLimits replaces the limits of a function. Empty fields remove them.
func (u *UI) setLimits(v *visit) error {
	name := v.form("function")
	l, err := v.limits()
	if err == nil {
		err = u.opts.Queue.SetLimits(v.ctx(), name, l)
	}
	if err != nil {
		return err
	}
	v.audit("limits of a function set by an operator", "function", name, "max_running", l.MaxRunning, "max_running_per_key", l.MaxRunningPerKey,
		"rate_count", l.Rate.Count, "rate_per", l.Rate.Per.String())
	done := "limited"
	if l == (jobs.Limits{}) {
		done = "unlimited"
	}
	return v.redirect("jobs" + string(query("function", name, "done", done)))
}
