package client

import (
	"context"
	"net/url"
	"strings"
	"time"
)

// Entry is an entry of the ledger as operators see it, without its token.
type Entry struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// State: pending, committed, rejected or unknown; released in the answer to a Resolve that freed the key.
	State       string `json:"state"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// JobID is the id of the job that a submission under the key enqueued.
	JobID string `json:"job_id,omitempty"`
	// Origin is the data centre that recorded the outcome, Home the one that decides about a pending global key where that
	// is another one. Both are empty without several data centres.
	Origin string `json:"origin,omitempty"`
	Home   string `json:"home,omitempty"`
	// AgeMS is the time since the reservation, ExpiresInMS until the entry is forgotten
	// or, when it is pending, until its outcome counts as unknown.
	AgeMS       int64 `json:"age_ms"`
	ExpiresInMS int64 `json:"expires_in_ms"`
	// Result is the recorded answer; only Entry returns it.
	Result *Answer `json:"result,omitempty"`
	// Status and BodyBytes describe the recorded answer where Result is not set.
	Status    int `json:"status,omitempty"`
	BodyBytes int `json:"body_bytes,omitempty"`
}

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
	// State: pending, committed, rejected or unknown; all of them when empty.
	State, Cursor string
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
	// As: committed or rejected, which need a Status, or released: nothing ran and nothing will run, so the next
	// request with the key may run.
	As     string `json:"as"`
	Status int    `json:"status,omitempty"`
	// Headers and Body of the answer that later duplicates get. Without a Body (nil) they learn only its Status.
	Headers [][2]string `json:"headers,omitempty"`
	Body    []byte      `json:"body,omitempty"`
	// TTLMS is how long the outcome is remembered; the manager's default when 0.
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// Entries returns one page of the ledger's entries, without their answers.
func (c *Client) Entries(ctx context.Context, q EntryQuery) (*EntryPage, error) {
	v := url.Values{}
	if q.Key != "" {
		v.Set("key", q.Key)
	}
	if q.State != "" {
		v.Set("state", q.State)
	}
	var page EntryPage
	call := call{method: "GET", path: "/v1/ledger/entries" + pageQuery(v, q.Limit, q.Cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Entries == nil {
		return nil, call.notOurs("no list of entries")
	}
	return &page, nil
}

// Entry returns the entry of a key with its answer.
func (c *Client) Entry(ctx context.Context, scope, key string) (*Entry, error) {
	return c.entry(ctx, call{method: "GET", path: entryPath(scope, key, "")})
}

// EntryHistory is what one manager has lately seen of a key, in memory and since its start. Other managers of a shared
// store may have seen other calls.
type EntryHistory struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	// Since is when the manager began to watch.
	Since time.Time `json:"since"`
	// Changes are in order. LeftOut of them are missing behind the first.
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
	call := call{method: "GET", path: entryPath(scope, key, "/history")}
	if _, err := c.do(ctx, call, &h); err != nil {
		return nil, err
	}
	if h.Key == "" || h.Changes == nil {
		return nil, call.notOurs("no history")
	}
	return &h, nil
}

// Resolve decides an entry that is unknown and returns the new entry. When an answer is lost and the call is repeated,
// it may say that the entry is not unknown, or not there: then the first call resolved it. Only administrators may call
// it.
func (c *Client) Resolve(ctx context.Context, scope, key string, r Resolution) (*Entry, error) {
	body := struct {
		Resolution
		Body *[]byte `json:"body,omitempty"` // an empty body differs from none
	}{Resolution: r}
	if r.Body != nil {
		body.Body = &r.Body
	}
	return c.entry(ctx, call{method: "POST", path: entryPath(scope, key, "/resolve"), body: body})
}

func (c *Client) entry(ctx context.Context, call call) (*Entry, error) {
	var e Entry
	if _, err := c.do(ctx, call, &e); err != nil {
		return nil, err
	}
	if e.Key == "" || e.State == "" {
		return nil, call.notOurs("no entry")
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
