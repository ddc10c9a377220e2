package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Log is a log of the manager, see Client.OpenLog. It is safe for concurrent use.
type Log struct {
	client *Client
	name   string
}

// OpenLog returns the log with this name, without asking the manager for it. A log that was not made
// answers with the code api.CodeNotFound; Create makes it.
func (c *Client) OpenLog(name string) (*Log, error) {
	if !api.Visible(name, 1, maxLogName) {
		return nil, fmt.Errorf("client: log name %.64q: must be 1 to %d visible ASCII characters", name, maxLogName)
	}
	return &Log{c, name}, nil
}

// maxLogName is the manager's bound.
const maxLogName = 128

// LogConfig is how a log is made, or changed: fields that are zero stay as they are.
type LogConfig struct {
	// Identity: "ids", the default, or "structured"; it does not change.
	Identity string `json:"identity,omitempty"`
	// WindowMS is how long an id is remembered, MaxKeys how many ids are, MaxBytes what
	// they may take of the manager's memory.
	WindowMS int64 `json:"window_ms,omitempty"`
	MaxKeys  int   `json:"max_keys,omitempty"`
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// WhenFull: "evict", the default, forgets the oldest id early, "refuse" refuses new ones.
	WhenFull string `json:"when_full,omitempty"`
	// RetainMS is how long entries are kept, RetainBytes how much of the log is.
	RetainMS    int64 `json:"retain_ms,omitempty"`
	RetainBytes int64 `json:"retain_bytes,omitempty"`
}

// LogInfo tells of a log.
type LogInfo struct {
	Log string `json:"log"`
	LogConfig
	// First and Last are the numbers of the oldest and newest entry; First is Last+1 when there
	// is none.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Keys are the ids in the window, WindowBytes what they take; Evicted ids were forgotten
	// before their time since the manager started.
	Keys        int    `json:"keys"`
	WindowBytes int64  `json:"window_bytes"`
	Evicted     uint64 `json:"evicted"`
	Writers     int    `json:"writers"`
	DiskBytes   int64  `json:"disk_bytes"`
	// Failed is why the log takes no appends; empty when it does.
	Failed string `json:"failed,omitempty"`
}

// LogPage is one page of logs; Cursor is empty on the last one.
type LogPage struct {
	Logs   []LogInfo `json:"logs"`
	Cursor string    `json:"cursor"`
}

// Logs returns one page of logs. Limit: 1 to 1000, 100 when 0.
func (c *Client) Logs(ctx context.Context, limit int, cursor string) (*LogPage, error) {
	var page LogPage
	call := call{method: "GET", path: "/v1/logs" + pageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Logs == nil {
		return nil, call.notOurs("no list of logs")
	}
	return &page, nil
}

func (l *Log) path(rest string) string { return "/v1/logs/" + url.PathEscape(l.name) + rest }

// Name is the log's name.
func (l *Log) Name() string { return l.name }

// Create makes the log or, when it is there, changes what config names. Only administrators
// may change a log.
func (l *Log) Create(ctx context.Context, config LogConfig) (*LogInfo, error) {
	return l.info(ctx, call{method: "PUT", path: l.path(""), body: config})
}

// Info tells of the log.
func (l *Log) Info(ctx context.Context) (*LogInfo, error) {
	return l.info(ctx, call{method: "GET", path: l.path("")})
}

func (l *Log) info(ctx context.Context, call call) (*LogInfo, error) {
	var info LogInfo
	if _, err := l.client.do(ctx, call, &info); err != nil {
		return nil, err
	}
	if info.Log != l.name {
		return nil, call.notOurs("another log")
	}
	return &info, nil
}

// Delete removes the log with all its entries. It is for administrators. When an answer is lost
// and the call repeated it may say that the log is not there: then it was deleted.
func (l *Log) Delete(ctx context.Context) error {
	_, err := l.client.do(ctx, call{method: "DELETE", path: l.path("")}, nil)
	return err
}

// LogMessageID is where an entry is. Entry numbers the entries of a log from 1.
type LogMessageID struct {
	Segment uint64 `json:"segment"`
	Entry   uint64 `json:"entry"`
}

// LogEntry is an entry as readers get it.
type LogEntry struct {
	LogMessageID
	ID         string            `json:"id"`
	Payload    []byte            `json:"payload"`
	Properties map[string]string `json:"properties"`
}

// LogQuery is what a reader asks for.
type LogQuery struct {
	// After is the cursor of the page before; empty is the oldest entry that is kept.
	After string
	// Limit: 1 to 10000, 100 when 0.
	Limit int
	// Wait is how long the manager holds the call for an entry when there is none, at most
	// a minute.
	Wait time.Duration
}

// LogEntries is a page of entries, which may have none. Cursor leads to the next one, always.
type LogEntries struct {
	Entries []LogEntry `json:"entries"`
	Cursor  string     `json:"cursor"`
}

// Read returns entries in order. A reader that retention has overtaken gets an error with
// the code api.CodeCursorGone.
func (l *Log) Read(ctx context.Context, q LogQuery) (*LogEntries, error) {
	v := url.Values{}
	if q.After != "" {
		v.Set("after", q.After)
	}
	if q.Wait > 0 {
		v.Set("wait_ms", strconv.FormatInt(q.Wait.Milliseconds(), 10))
	}
	var page LogEntries
	call := call{method: "GET", path: l.path("/entries" + pageQuery(v, q.Limit, "")), wait: q.Wait}
	if _, err := l.client.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Entries == nil || page.Cursor == "" {
		return nil, call.notOurs("no page of entries")
	}
	return &page, nil
}

// ByID returns the entry of an id that the log's window holds, for a writer whose answer got lost.
func (l *Log) ByID(ctx context.Context, id string) (*LogEntry, error) {
	var e LogEntry
	call := call{method: "GET", path: l.path("/entries/by-id/" + url.PathEscape(id))}
	if _, err := l.client.do(ctx, call, &e); err != nil {
		return nil, err
	}
	if e.ID != id || e.Entry == 0 {
		return nil, call.notOurs("another entry")
	}
	return &e, nil
}

// LogWriter is a writer of a log and its newest epoch.
type LogWriter struct {
	Writer string `json:"writer"`
	Epoch  uint64 `json:"epoch"`
}

// LogWriterPage is one page of writers; Cursor is empty on the last one.
type LogWriterPage struct {
	Writers []LogWriter `json:"writers"`
	Cursor  string      `json:"cursor"`
}

// Writers returns one page of the log's writers, in order of their names. Limit: 1 to 1000, 100 when 0.
func (l *Log) Writers(ctx context.Context, limit int, cursor string) (*LogWriterPage, error) {
	var page LogWriterPage
	call := call{method: "GET", path: l.path("/writers" + pageQuery(url.Values{}, limit, cursor))}
	if _, err := l.client.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Writers == nil {
		return nil, call.notOurs("no list of writers")
	}
	return &page, nil
}

// RemoveWriter forgets a writer, which makes room for another one. Entries with any of its epochs are refused from then
// on. It is for administrators. When an answer is lost and the call repeated it may say that the writer is not there:
// then it was removed.
func (l *Log) RemoveWriter(ctx context.Context, writer string) error {
	_, err := l.client.do(ctx, call{method: "DELETE", path: l.path("/writers/" + url.PathEscape(writer))}, nil)
	return err
}

// openEpoch begins the next epoch of a writer. It may be repeated: each time gives a newer one.
func (l *Log) openEpoch(ctx context.Context, writer string) (uint64, error) {
	body := struct {
		Writer string `json:"writer"`
	}{writer}
	var out struct {
		Writer string `json:"writer"`
		Epoch  uint64 `json:"epoch"`
	}
	call := call{method: "POST", path: l.path("/writers"), body: body}
	if _, err := l.client.do(ctx, call, &out); err != nil {
		return 0, err
	}
	if out.Writer != writer || out.Epoch == 0 {
		return 0, call.notOurs("no epoch of the writer")
	}
	return out.Epoch, nil
}
