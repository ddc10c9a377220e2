package schema

import (
	"encoding/json"
	"time"
)

// ScheduleSpec says what a schedule enqueues, and when.
type ScheduleSpec struct {
	// Cron has five fields (minute, hour, day of month, month, day of week), or is @hourly, @daily, @weekly, @monthly or
	// @yearly. Required.
	Cron string `json:"cron"`
	// TimeZone is a name of the time zone database, UTC when empty.
	TimeZone string `json:"time_zone,omitempty" zero:"a value, or no such field"`
	// From Function to Timeout the members are those of a Submission. Function is required.
	Function    string        `json:"function"`
	Payload     any           `json:"payload,omitempty"`
	Priority    int           `json:"priority,omitempty"`
	MaxAttempts int           `json:"max_attempts,omitempty" zero:"must be at least 1"`
	ExpiresIn   time.Duration `json:"expires_in_ms,omitempty" zero:"must be at least 1"`
	OnExpiry    string        `json:"on_expiry,omitempty" enum:"drop,dead_letter"`
	Timeout     time.Duration `json:"timeout_ms,omitempty" zero:"must be at least 100"`
	// Missed says which instants get a job that no manager came to within a minute. "one", the default: the latest instant
	// that is due. "skip": none. "all": the latest 1000.
	Missed string `json:"missed,omitempty" enum:"one,skip,all"`
	// Overlap: "allow", the default, or "skip", for no job while the last one is not over.
	Overlap string `json:"overlap,omitempty" enum:"allow,skip"`
	// DataCenters: "each", the default, or "home", so that of the data centres with this schedule only the home of its name
	// enqueues jobs.
	DataCenters string `json:"data_centers,omitempty" enum:"each,home"`
}

// MarshalJSON encodes the schedule as the API takes it.
func (s ScheduleSpec) MarshalJSON() ([]byte, error) { return marshal(&s, &s.Payload) }

// UnmarshalJSON decodes a schedule as the API takes it. Its Payload is a json.RawMessage then.
func (s *ScheduleSpec) UnmarshalJSON(b []byte) error { return Unmarshal(b, s) }

// Schedule is a schedule as the manager returns it. Members that do not apply have their zero value.
type Schedule struct {
	Name     string `json:"name"`
	Cron     string `json:"cron"`
	TimeZone string `json:"time_zone"`
	Function string `json:"function"`
	// Payload is not in a page.
	Payload  json.RawMessage `json:"payload,omitempty"`
	Priority int             `json:"priority"`
	// MaxAttempts is 0 for the manager's default.
	MaxAttempts int           `json:"max_attempts,omitempty"`
	ExpiresIn   time.Duration `json:"expires_in_ms,omitempty"`
	OnExpiry    string        `json:"on_expiry,omitempty"`
	Timeout     time.Duration `json:"timeout_ms,omitempty"`
	Missed      string        `json:"missed"`
	Overlap     string        `json:"overlap"`
	DataCenters string        `json:"data_centers"`
	// Home is the data centre that enqueues the jobs of "home", where there are several.
	Home   string `json:"home,omitempty"`
	Paused bool   `json:"paused"`
	// PausedAt is when it was paused.
	PausedAt  time.Time `json:"paused_at,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	// ChangedAt is when a call last changed what it enqueues, or when.
	ChangedAt time.Time `json:"changed_at"`
	// NextAt is the next instant; a paused schedule has none.
	NextAt time.Time `json:"next_at,omitzero"`
	// LastAt is the latest instant that had a job, and LastJob the id of that job.
	LastAt  time.Time `json:"last_at,omitzero"`
	LastJob string    `json:"last_job,omitempty"`
	// MissedInstants and OverlappedInstants count the instants without a job, by the reason. Of those missed in one go, 1000 are
	// counted at most.
	MissedInstants     uint64 `json:"missed_instants"`
	OverlappedInstants uint64 `json:"overlapped_instants"`
}

// MarshalJSON encodes the schedule as the API does.
func (s Schedule) MarshalJSON() ([]byte, error) { return Append(nil, &s), nil }

// UnmarshalJSON decodes a schedule of the API.
func (s *Schedule) UnmarshalJSON(b []byte) error { return Unmarshal(b, s) }

// SchedulePage is one page of schedules; Cursor is empty on the last one.
type SchedulePage struct {
	Schedules []Schedule `json:"schedules"`
	Cursor    string     `json:"cursor"`
}
