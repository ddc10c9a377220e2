package schema

import (
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Entry is an entry of the ledger as operators see it, without its token.
type Entry struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// State is EntryReleased only in the answer to a Resolve that freed the key.
	State       EntryState `json:"state"`
	Fingerprint string     `json:"fingerprint,omitempty"`
	// JobID is the id of the job that a submission under the key enqueued.
	JobID string `json:"job_id,omitempty"`
	// Origin is the data centre that recorded the outcome, Home the one that decides about a pending global key where that
	// is another one. Both are empty without several data centres.
	Origin string `json:"origin,omitempty"`
	Home   string `json:"home,omitempty"`
	// Age is the time since the reservation, ExpiresIn until the entry is forgotten
	// or, when it is pending, until its outcome counts as unknown.
	Age       time.Duration `json:"age_ms"`
	ExpiresIn time.Duration `json:"expires_in_ms"`
	// Result is the recorded answer; only Entry returns it.
	Result *Answer `json:"result,omitempty"`
	// Status and BodyBytes describe the recorded answer where Result is not set.
	Status    int  `json:"status,omitempty"`
	BodyBytes *int `json:"body_bytes,omitempty"`
}

// MarshalJSON encodes the entry as the API does.
func (e Entry) MarshalJSON() ([]byte, error) { return Append(nil, &e), nil }

// UnmarshalJSON decodes an entry of the API.
func (e *Entry) UnmarshalJSON(b []byte) error { return Unmarshal(b, e) }

// EntryState is a state of an entry.
type EntryState string

// The states of an entry.
const (
	EntryPending   EntryState = "pending"   // an attempt works
	EntryCommitted EntryState = "committed" // retries get the recorded answer
	EntryRejected  EntryState = "rejected"  // the same, for a refusal
	EntryUnknown   EntryState = "unknown"   // the work may have run, and there is no answer
	EntryReleased  EntryState = "released"  // nothing ran: the key is free
)

// Answer is a recorded answer.
type Answer = api.Result

// LedgerReply answers a call that gate and workers make about a key.
type LedgerReply struct {
	State api.State `json:"state" wrong:"unknown state"`
	// Token is the caller's own. Only the holder of a reservation gets it back.
	Token string `json:"token,omitempty"`
	// ExpiresIn is nil if nothing is left that could expire.
	ExpiresIn *time.Duration `json:"expires_in_ms,omitempty"`
	Result    *Answer        `json:"result,omitempty"`
}

// Reply returns the answer without the token.
func (r *LedgerReply) Reply() api.ReserveReply {
	reply := api.ReserveReply{State: r.State}
	if r.ExpiresIn != nil {
		reply.ExpiresIn = *r.ExpiresIn
	}
	if r.Result != nil {
		reply.Result = *r.Result
	}
	return reply
}

// Resolution is an operator's decision about an unknown outcome.
type Resolution struct {
	// As: EntryCommitted or EntryRejected, which need a Status, or EntryReleased: nothing ran and nothing will run, so the
	// next request with the key may run.
	As     EntryState `json:"as" enum:"committed,rejected,released"`
	Status int        `json:"status,omitempty" zero:"must be 200 to 599" wrong:"must be 200 to 599"`
	// Headers and Body of the answer that later duplicates get. Without a Body (nil) they learn only its Status.
	Headers []api.Header `json:"headers,omitempty" max:"256" text:"unicode" wrong:"must be an array of [name, value]"`
	Body    []byte       `json:"body,omitzero" wrong:"must be base64 with padding"`
	// TTL is how long the outcome is remembered; the manager's default when 0.
	TTL time.Duration `json:"ttl_ms,omitempty" zero:"must be a whole number from 1 to 31622400000" wrong:"must be a whole number from 1 to 31622400000"`
}

// MarshalJSON encodes the decision as the API takes it.
func (r Resolution) MarshalJSON() ([]byte, error) { return Append(nil, &r), nil }

// UnmarshalJSON decodes a decision of the API.
func (r *Resolution) UnmarshalJSON(b []byte) error { return Unmarshal(b, r) }

// EntryPage is one page of entries; Cursor is empty on the last one.
type EntryPage struct {
	Entries []Entry `json:"entries"`
	Cursor  string  `json:"cursor"`
}

// EntryHistory is what one manager has lately seen of a key, in memory and since its start. Other managers of a shared
// store may have seen other calls.
type EntryHistory struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// Since is when the manager began to watch.
	Since time.Time `json:"since"`
	// Changes are in order. LeftOut of them are missing after the first.
	Changes []EntryChange `json:"changes"`
	LeftOut int           `json:"changes_left_out"`
	// Outcomes are how often calls that changed nothing ended, such as replayed, by the names of the metric
	// oncegate_ledger_calls_total.
	Outcomes map[string]int `json:"outcomes"`
	// Waited is how many calls waited for an attempt to end, Waiting how many do now.
	Waited  int `json:"waited"`
	Waiting int `json:"waiting"`
	// Mismatch is the last call with another fingerprint, nil if there was none.
	Mismatch *Incident `json:"last_mismatch,omitempty"`
}

// EntryChange is a change of an entry, or Count equal ones in a row.
type EntryChange struct {
	// What: reserve, renew, commit, reject, release, unknown or resolve for a call; lapse or delete.
	What string `json:"what"`
	// Late: the reservation was gone when the call came.
	Late bool `json:"late,omitempty"`
	// From is the address of the caller.
	From  string    `json:"from,omitempty"`
	Count int       `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Incident is a call that was refused.
type Incident struct {
	// Kind: mismatch, for another fingerprint than the recorded one, fenced or full.
	Kind      string    `json:"kind"`
	Op        string    `json:"op"`
	Key       string    `json:"key"`
	Scope     string    `json:"scope"`
	From      string    `json:"from,omitempty"`
	Sent      string    `json:"fingerprint,omitempty"`
	Recorded  string    `json:"recorded_fingerprint,omitempty"`
	OverShare bool      `json:"over_share,omitempty"`
	At        time.Time `json:"at"`
}

// Incidents are the last ones that a manager has seen since its start, of Total.
type Incidents struct {
	Since     time.Time  `json:"since"`
	Total     uint64     `json:"total"`
	Incidents []Incident `json:"incidents"`
}

// Activity is what a manager's ledger did in the last minutes, and how full it is.
type Activity struct {
	Minutes            []Minute      `json:"minutes"`
	Entries            int           `json:"entries"`
	MaxEntries         int           `json:"max_entries"`
	Oldest             time.Duration `json:"oldest_ms"`
	KeysPerSecond      float64       `json:"keys_per_second"`
	ScopeKeysPerSecond float64       `json:"scope_keys_per_second"`
}

// Minute counts the reserves of a minute by what became of them, and the calls that were Held.
type Minute struct {
	Start    time.Time `json:"start"`
	New      uint64    `json:"new"`
	Hit      uint64    `json:"hit"`
	Wait     uint64    `json:"wait"`
	Unknown  uint64    `json:"unknown"`
	Mismatch uint64    `json:"mismatch"`
	Omitted  uint64    `json:"not_recorded"`
	Refused  uint64    `json:"refused"`
	Held     uint64    `json:"held"`
}

// LedgerIdentity says who a ledger is.
type LedgerIdentity struct {
	LedgerID string `json:"ledger_id"`
	// Name is the shard's name, empty for a ledger that answers for any shard.
	Name string `json:"shard"`
	// Shards is the list in force, empty if there is none. Version is the list's version.
	Shards  []string `json:"shards"`
	Version uint64   `json:"shards_version"`
}

// Shard describes a ledger as one of several shards.
type Shard struct {
	LedgerIdentity
	// Moved counts by state the entries here whose keys other shards own. While there are any, gates must ask this
	// ledger first for such keys.
	Moved EntryCounts `json:"moved"`
}

// EntryCounts count entries by state.
type EntryCounts struct {
	Pending   int `json:"pending"`
	Committed int `json:"committed"`
	Rejected  int `json:"rejected"`
	Unknown   int `json:"unknown"`
}

// LedgerStats are the figures of a ledger, counted since its manager's start.
type LedgerStats struct {
	LedgerIdentity
	SyncStandbys *SyncStandbys `json:"sync_standbys,omitempty"`
	Entries      EntryCounts   `json:"entries"`
	// Bytes and MaxBytes are nil where the engine does not count them.
	Bytes      *int64 `json:"bytes,omitempty"`
	MaxBytes   *int64 `json:"max_bytes,omitempty"`
	MaxEntries int    `json:"max_entries"`
	// MaxResultBytes bounds a recorded answer, with its headers.
	MaxResultBytes int           `json:"max_result_bytes"`
	CommittedTTL   time.Duration `json:"committed_ttl_ms"`
	QuarantineFor  time.Duration `json:"quarantine_ms,omitempty"`
	Durabilities   []string      `json:"durabilities"`
	Waiters        int           `json:"waiters"`
	// Calls are by operation and outcome.
	Calls          map[string]map[string]uint64 `json:"calls"`
	FencedOutcomes uint64                       `json:"fenced_outcomes"`
	Expired        uint64                       `json:"expired"`
	Lapsed         uint64                       `json:"lapsed"`
	Deleted        uint64                       `json:"deleted"`
	AnswersDropped uint64                       `json:"answers_dropped"`
	WaitsRefused   uint64                       `json:"waits_refused"`
	WaitsTimedOut  uint64                       `json:"waits_timed_out"`
	SweepErrors    uint64                       `json:"sweep_errors"`
	Batches        uint64                       `json:"batches"`
	BatchItems     uint64                       `json:"batch_items"`
}

// SyncStandbys are the synchronous standbys of the store's server; Connected is -1 if it does not say.
type SyncStandbys struct {
	Connected int `json:"connected"`
	Required  int `json:"required"`
}

// Quarantine is for how long a ledger refuses keys that it does not know, because it may have forgotten them.
type Quarantine struct {
	// Remaining is for how long more, 0 when there is no quarantine.
	Remaining time.Duration `json:"remaining_ms"`
	// Began is when it began, or the point in time that the data were restored to; nil if there was none so far.
	Began *time.Time `json:"began,omitempty"`
	// Why are the reasons, for people: what may be forgotten, and who knows it.
	Why []string `json:"why"`
}

// MarshalJSON encodes the quarantine as the API does.
func (q Quarantine) MarshalJSON() ([]byte, error) { return Append(nil, &q), nil }

// UnmarshalJSON decodes a quarantine of the API.
func (q *Quarantine) UnmarshalJSON(b []byte) error { return Unmarshal(b, q) }

// Peers is what a manager knows of the other data centres.
type Peers struct {
	// Origin is the name of the manager's own data centre, "" if it has none.
	Origin string `json:"origin"`
	// DataCentres are all that the manager knows, its own included. The home of a global key follows from them.
	DataCentres []string `json:"data_centres,omitempty"`
	// Refuses is why this data centre is the home of no new global keys now, "" if it is.
	Refuses string `json:"refuses,omitempty"`
	Peers   []Peer `json:"peers"`
}

// Peer is how far a data centre is behind another one.
type Peer struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	// Lag is for how long the manager has not had everything that the peer recorded, LagEntries how many outcomes it lacks
	// as far as it knows.
	Lag        time.Duration `json:"lag_seconds" unit:"s"`
	LagEntries int64         `json:"lag_entries"`
	// AnsweredAgo is how long ago the peer last answered the manager; nil if it has not, or another manager of the store
	// asks it.
	AnsweredAgo *time.Duration `json:"answered_seconds_ago,omitempty" unit:"s"`
	// DataCentres are those that the peer said last that it knows.
	DataCentres []string `json:"data_centres,omitempty"`
	// Error is why the last call to the peer failed, "" after one that did not.
	Error string `json:"error,omitempty"`
}

// MarshalJSON encodes the peer as the API does.
func (p Peer) MarshalJSON() ([]byte, error) { return Append(nil, &p), nil }

// UnmarshalJSON decodes a peer of the API.
func (p *Peer) UnmarshalJSON(b []byte) error { return Unmarshal(b, p) }

// Conflict is a key of which several data centres recorded an outcome: its work ran more than once.
type Conflict struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// Winner is the data centre whose outcome retries get everywhere.
	Winner    string        `json:"winner"`
	ExpiresIn time.Duration `json:"expires_in_ms"`
	// Outcomes are those of all data centres, the winner's first.
	Outcomes []ConflictOutcome `json:"outcomes"`
}

// MarshalJSON encodes the conflict as the API does.
func (c Conflict) MarshalJSON() ([]byte, error) { return Append(nil, &c), nil }

// UnmarshalJSON decodes a conflict of the API.
func (c *Conflict) UnmarshalJSON(b []byte) error { return Unmarshal(b, c) }

// ConflictOutcome is the outcome of one data centre in a conflict.
type ConflictOutcome struct {
	Origin string `json:"origin"`
	// State: EntryCommitted or EntryRejected.
	State  EntryState `json:"state"`
	Result Answer     `json:"result"`
}

// ConflictPage is one page of conflicts; Cursor is empty on the last one.
type ConflictPage struct {
	Conflicts []Conflict `json:"conflicts"`
	Cursor    string     `json:"cursor"`
}

// UnreadableRecord is a record in the store that the manager cannot read.
type UnreadableRecord struct {
	// Collection and ID identify it in calls.
	Collection string `json:"collection"`
	ID         string `json:"id"`
	// Key is the record's key for people, for example the id of a job.
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// UnreadablePage is one page of such records; Cursor is empty on the last one.
type UnreadablePage struct {
	Records []UnreadableRecord `json:"records"`
	Cursor  string             `json:"cursor"`
}
