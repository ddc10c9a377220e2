package schema

import "time"

// EventRequest sends an event.
type EventRequest struct {
	// Payload is that of the event's jobs.
	Payload any `json:"payload,omitempty"`
	// Key is the idempotency key, which may be in the call's header as well.
	Key string `json:"key,omitempty" zero:"a value, or no such field"`
}

// MarshalJSON encodes the request as the API takes it.
func (r EventRequest) MarshalJSON() ([]byte, error) { return marshal(&r, &r.Payload) }

// UnmarshalJSON decodes a request to the API. Its Payload is a json.RawMessage then.
func (r *EventRequest) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// Sent is the answer to an event.
type Sent struct {
	Event string `json:"event"`
	// Jobs are in the order of their functions; none if no function subscribes to the event.
	Jobs []EventJob `json:"jobs"`
	// Replayed: the answer was recorded for an earlier attempt.
	Replayed bool `json:"-"`
}

// EventJob is a job that an event made.
type EventJob struct {
	ID       string `json:"id"`
	Function string `json:"function"`
}

// Subscription makes each event of a name a job of the function.
type Subscription struct {
	Function string `json:"function"`
	// Since is the zero time in the answer to an end of a subscription that did not exist.
	Since time.Time `json:"since,omitzero"`
}

// EventInfo is a name with the functions that subscribe to it.
type EventInfo struct {
	Name          string         `json:"name"`
	Subscriptions []Subscription `json:"subscriptions"`
}

// EventPage is one page of events; Cursor is empty on the last one.
type EventPage struct {
	Events []EventInfo `json:"events"`
	Cursor string      `json:"cursor"`
}
