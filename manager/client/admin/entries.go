package admin

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
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
	Age       time.Duration `json:"-"` // age_ms
	ExpiresIn time.Duration `json:"-"` // expires_in_ms
	// Result is the recorded answer; only Entry returns it.
	Result *Answer `json:"result,omitempty"`
	// Status and BodyBytes describe the recorded answer where Result is not set.
	Status    int `json:"status,omitempty"`
	BodyBytes int `json:"body_bytes,omitempty"`
}

type plainEntry Entry

type wireEntry struct {
	*plainEntry
	AgeMS       int64 `json:"age_ms"`
	ExpiresInMS int64 `json:"expires_in_ms"`
}

// MarshalJSON encodes the entry as the API does.
func (e Entry) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireEntry{(*plainEntry)(&e), wire.MS(e.Age), wire.MS(e.ExpiresIn)})
}

// UnmarshalJSON decodes an entry of the API.
func (e *Entry) UnmarshalJSON(b []byte) error {
	w := wireEntry{plainEntry: (*plainEntry)(e)}
	err := json.Unmarshal(b, &w)
	e.Age, e.ExpiresIn = wire.Duration(w.AgeMS), wire.Duration(w.ExpiresInMS)
	return err
}

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
type Answer struct {
	Status int `json:"status"`
	// Headers are pairs of a name in lower case and a value.
	Headers [][2]string `json:"headers"`
	Body    []byte      `json:"body"`
	// BodyOmitted: only the status was recorded.
	BodyOmitted bool `json:"body_omitted,omitempty"`
}

// EntryQuery selects entries.
type EntryQuery struct {
	// Key: only the entries of this key, which may be in several scopes. The manager looks through all entries for them, a
	// bounded number for each page. So a page may be short or empty and still have a cursor.
	Key string
	// State: all of them when empty.
	State  EntryState
	Cursor string
	// Limit: 1 to 1000, 100 when 0.
	Limit int
}

// EntryPage is one page of entries; Cursor is empty on the last one.
type EntryPage struct {
	Entries []Entry `json:"entries"`
	Cursor  string  `json:"cursor"`
}

// Resolution is an operator's decision about an unknown outcome.
type Resolution struct {
	// As: EntryCommitted or EntryRejected, which need a Status, or EntryReleased: nothing ran and nothing will run, so the
	// next request with the key may run.
	As     EntryState
	Status int
	// Headers and Body of the answer that later duplicates get. Without a Body (nil) they learn only its Status.
	Headers [][2]string
	Body    []byte
	// TTL is how long the outcome is remembered; the manager's default when 0.
	TTL time.Duration
}

// Entries returns one page of the ledger's entries, without their answers.
func (c *Client) Entries(ctx context.Context, q EntryQuery) (*EntryPage, error) {
	v := url.Values{}
	if q.Key != "" {
		v.Set("key", q.Key)
	}
	if q.State != "" {
		v.Set("state", string(q.State))
	}
	var page EntryPage
	call := wire.Call{Method: "GET", Path: "/v1/ledger/entries" + wire.PageQuery(v, q.Limit, q.Cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Entries == nil {
		return nil, call.NotOurs("no list of entries")
	}
	return &page, nil
}

// Entry returns the entry of a key with its answer.
func (c *Client) Entry(ctx context.Context, scope, key string) (*Entry, error) {
	return c.entry(ctx, wire.Call{Method: "GET", Path: entryPath(scope, key, "")})
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
	Mismatch *EntryMismatch `json:"last_mismatch,omitempty"`
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

// EntryMismatch is a call with another fingerprint than the recorded one.
type EntryMismatch struct {
	Op       string    `json:"op"`
	From     string    `json:"from,omitempty"`
	Sent     string    `json:"fingerprint,omitempty"`
	Recorded string    `json:"recorded_fingerprint,omitempty"`
	At       time.Time `json:"at"`
}

// EntryHistory returns what the manager has lately seen of a key. It has no changes and no outcomes if the manager has
// seen nothing or forgotten it.
func (c *Client) EntryHistory(ctx context.Context, scope, key string) (*EntryHistory, error) {
	var h EntryHistory
	call := wire.Call{Method: "GET", Path: entryPath(scope, key, "/history")}
	if _, err := c.do(ctx, call, &h); err != nil {
		return nil, err
	}
	if h.Key == "" || h.Changes == nil {
		return nil, call.NotOurs("no history")
	}
	return &h, nil
}

// Resolve decides an entry that is unknown and returns the new entry. When an answer is lost and the call is repeated,
// it may say that the entry is not unknown, or not there: then the first call resolved it. Only administrators may call
// it.
func (c *Client) Resolve(ctx context.Context, scope, key string, r Resolution) (*Entry, error) {
	body := struct {
		As      EntryState  `json:"as"`
		Status  int         `json:"status,omitempty"`
		Headers [][2]string `json:"headers,omitempty"`
		Body    *[]byte     `json:"body,omitempty"` // an empty body differs from none
		TTLMS   int64       `json:"ttl_ms,omitempty"`
	}{As: r.As, Status: r.Status, Headers: r.Headers, TTLMS: wire.MS(r.TTL)}
	if r.Body != nil {
		body.Body = &r.Body
	}
	return c.entry(ctx, wire.Call{Method: "POST", Path: entryPath(scope, key, "/resolve"), Body: body})
}

func (c *Client) entry(ctx context.Context, call wire.Call) (*Entry, error) {
	var e Entry
	if _, err := c.do(ctx, call, &e); err != nil {
		return nil, err
	}
	if e.Key == "" || e.State == "" {
		return nil, call.NotOurs("no entry")
	}
	return &e, nil
}

func entryPath(scope, key, verb string) string {
	escaped := url.PathEscape(key)
	if key == "." || key == ".." { // a path segment cannot be one of these
		escaped = strings.ReplaceAll(key, ".", "%2E")
	}
	path := "/v1/ledger/entries/" + escaped + verb
	if scope == "" {
		return path
	}
	return path + "?" + url.Values{"scope": {scope}}.Encode()
}
