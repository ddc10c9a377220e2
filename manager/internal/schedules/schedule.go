package schedules

import (
	"cmp"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// Spec says what a schedule enqueues, and when.
type Spec struct {
	// Cron has five fields (minute, hour, day of month, month, day of week) or is @hourly, @daily, @weekly, @monthly or
	// @yearly; at most 256 bytes. An instant must come within 10 years.
	Cron string
	// TimeZone is a name of the time zone database, UTC when empty.
	TimeZone string
	// These are those of jobs.Submission. ExpiresIn counts from when the job is enqueued, also for a missed instant.
	Function           string
	Payload            []byte
	Priority           int
	MaxAttempts        int
	ExpiresIn, Timeout time.Duration
	DeadIfExpired      bool
	// Missed says which instants get a job that no manager came to in time; MissedOne when 0.
	Missed Missed
	// Overlap says whether an instant gets a job while the last job is not terminal; OverlapAllow when 0.
	Overlap Overlap
	// DataCenters says which of several data centres enqueue the jobs; DataCentersEach when 0.
	DataCenters DataCenters
}

// Missed is how a schedule treats the instants that it missed.
type Missed uint8

const (
	// MissedOne enqueues a job for the latest instant that is due, and none for those before it.
	MissedOne Missed = iota + 1
	// MissedSkip enqueues none for an instant that was missed.
	MissedSkip
	// MissedAll enqueues one for each of the MaxMissed latest instants that are due, the earliest first.
	MissedAll
)

var missedNames = []string{MissedOne: "one", MissedSkip: "skip", MissedAll: "all"}

func (m Missed) String() string { return jobs.NameOf(missedNames, m) }

// ParseMissed is the inverse of String. Empty is MissedOne.
func ParseMissed(v string) (Missed, error) {
	return jobs.ParseName[Missed](missedNames, "missed", cmp.Or(v, missedNames[1]))
}

// Overlap is how a schedule treats an instant at which its last job is not terminal.
type Overlap uint8

const (
	// OverlapAllow enqueues the job.
	OverlapAllow Overlap = iota + 1
	// OverlapSkip enqueues none for this instant. While the last job cannot be read, the instant is not decided.
	OverlapSkip
)

var overlapNames = []string{OverlapAllow: "allow", OverlapSkip: "skip"}

func (o Overlap) String() string { return jobs.NameOf(overlapNames, o) }

// ParseOverlap is the inverse of String. Empty is OverlapAllow.
func ParseOverlap(v string) (Overlap, error) {
	return jobs.ParseName[Overlap](overlapNames, "overlap", cmp.Or(v, overlapNames[1]))
}

// DataCenters is where a schedule enqueues jobs, if several data centres have a schedule of this name.
type DataCenters uint8

const (
	// DataCentersEach enqueues a job in each of them.
	DataCentersEach DataCenters = iota + 1
	// DataCentersHome enqueues one in the home of the schedule's name. The others move on to the next instant without a job.
	DataCentersHome
)

var dataCentersNames = []string{DataCentersEach: "each", DataCentersHome: "home"}

func (d DataCenters) String() string { return jobs.NameOf(dataCentersNames, d) }

// ParseDataCenters is the inverse of String. Empty is DataCentersEach.
func ParseDataCenters(v string) (DataCenters, error) {
	return jobs.ParseName[DataCenters](dataCentersNames, "data_centers", cmp.Or(v, dataCentersNames[1]))
}

// Schedule is a schedule as it stands.
type Schedule struct {
	Name string
	Spec
	CreatedAt time.Time
	// ChangedAt is when the Spec last changed.
	ChangedAt time.Time
	// PausedAt is when the schedule was paused, zero if it is not.
	PausedAt time.Time
	// Next is the first instant that was not decided yet, zero while the schedule is paused.
	Next time.Time
	// Last is the latest instant that had a job, and LastJob the id of that job. Zero and empty before the first.
	Last    time.Time
	LastJob string
	// DecidedBy is the home that decided the instants before Next, empty without one.
	DecidedBy string
	// MissedInstants and OverlappedInstants count the instants without a job, by the reason. Of the instants missed in one
	// go, MaxMissed are counted at most.
	MissedInstants, OverlappedInstants uint64
}

const (
	// MaxSchedules bounds the schedules of a store. Where managers share it, a few more may be made at the same time.
	MaxSchedules = 10_000
	// MaxMissed bounds the jobs with which MissedAll makes up for missed instants.
	MaxMissed = 1000
	// OnTime is the age from which an instant was missed.
	OnTime = time.Minute
)

// InstantKey is the key of the job of an instant: name@2026-03-29T01:00:00Z.
func InstantKey(name string, instant time.Time) string {
	return name + "@" + instant.UTC().Format(time.RFC3339Nano)
}

// withDefaults fills in the defaults and checks everything but the submission.
func (s Spec) withDefaults() (Spec, *calendar, error) {
	if s.TimeZone == "" {
		s.TimeZone = time.UTC.String()
	}
	if len(s.Payload) == 0 {
		s.Payload = []byte("null")
	}
	s.Missed, s.Overlap, s.DataCenters = max(s.Missed, MissedOne), max(s.Overlap, OverlapAllow), max(s.DataCenters, DataCentersEach)
	if s.Cron == "" {
		return s, nil, &jobs.FieldError{Field: "cron", Allowed: "five fields, as in 0 9 * * 1-5"}
	}
	c, err := newCalendar(s.Cron, s.TimeZone)
	return s, c, err
}

// submission is the job of an instant.
func (s *Schedule) submission(instant time.Time) jobs.Submission {
	return jobs.Submission{
		Function: s.Function, Payload: s.Payload, Priority: s.Priority, MaxAttempts: s.MaxAttempts,
		ExpiresIn: s.ExpiresIn, DeadIfExpired: s.DeadIfExpired, Timeout: s.Timeout,
		Key: InstantKey(s.Name, instant), ReturnExisting: true,
	}
}

// decision is what becomes of the instants of a schedule that are due.
type decision struct {
	instant time.Time // gets a job; zero: none does
	missed  int       // instants before it, or all, that do not
	next    time.Time
}

// decide says what becomes of the instants up to now. The schedule's Next must be one of them.
func (s *Schedule) decide(c *calendar, now time.Time) decision {
	n := 1
	if s.Missed == MissedAll {
		n = MaxMissed
	}
	d := decision{instant: c.latest(s.Next, now, n)}
	d.next = c.next(d.instant)
	if d.instant.After(s.Next) {
		d.missed = c.count(s.Next, d.instant.Add(-1), MaxMissed)
	}
	if s.Missed == MissedSkip && now.Sub(d.instant) >= OnTime {
		d.instant, d.missed = time.Time{}, min(d.missed+1, MaxMissed)
	}
	return d
}

func invalid(field, value, allowed string) error {
	if value != "" {
		value = strconv.QuoteToASCII(clip(value))
	}
	return &jobs.FieldError{Field: field, Value: value, Allowed: allowed}
}

// clip shortens a text that is only shown.
func clip(v string) string {
	const most = 60
	if len(v) > most {
		return v[:most] + "..."
	}
	return v
}
