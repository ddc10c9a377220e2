package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
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
	// Window is how long an id is remembered, MaxKeys how many ids are, MaxBytes what
	// they may take of the manager's memory.
	Window   time.Duration `json:"-"` // window_ms
	MaxKeys  int           `json:"max_keys,omitempty"`
	MaxBytes int64         `json:"max_bytes,omitempty"`
	// WhenFull: "evict", the default, forgets the oldest id early, "refuse" refuses new ones.
	WhenFull string `json:"when_full,omitempty"`
	// Retain is how long entries are kept, RetainBytes how much of the log is.
	Retain      time.Duration `json:"-"` // retain_ms
	RetainBytes int64         `json:"retain_bytes,omitempty"`
}

type plainLogConfig LogConfig

type wireLogConfig struct {
	*plainLogConfig
	WindowMS int64 `json:"window_ms,omitempty"`
	RetainMS int64 `json:"retain_ms,omitempty"`
}

func (c *LogConfig) wire() wireLogConfig {
	return wireLogConfig{(*plainLogConfig)(c), wire.MS(c.Window), wire.MS(c.Retain)}
}

// MarshalJSON encodes the configuration as the API takes it.
func (c LogConfig) MarshalJSON() ([]byte, error) { return wire.Marshal(c.wire()) }

// LogInfo describes a log.
type LogInfo struct {
	Log    string    `json:"log"`
	Config LogConfig `json:"-"` // its fields are among those of the log
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
	// Failed is why the log cannot be read; empty when it can.
	Failed string `json:"failed,omitempty"`
}

type plainLogInfo LogInfo

type wireLogInfo struct {
	*plainLogInfo
	wireLogConfig
}

// MarshalJSON encodes in the form of the API.
func (i LogInfo) MarshalJSON() ([]byte, error) {
	return wire.Marshal(wireLogInfo{(*plainLogInfo)(&i), i.Config.wire()})
}

// UnmarshalJSON decodes the form of the API.
func (i *LogInfo) UnmarshalJSON(b []byte) error {
	w := wireLogInfo{(*plainLogInfo)(i), wireLogConfig{plainLogConfig: (*plainLogConfig)(&i.Config)}}
	err := json.Unmarshal(b, &w)
	i.Config.Window, i.Config.Retain = wire.Duration(w.WindowMS), wire.Duration(w.RetainMS)
	return err
}

func (l *Log) path(rest string) string { return "/v1/logs/" + url.PathEscape(l.name) + rest }

// Name is the log's name.
func (l *Log) Name() string { return l.name }

// Create makes the log or, when it is there, changes what config names. Only administrators
// may change a log.
func (l *Log) Create(ctx context.Context, config LogConfig) (*LogInfo, error) {
	return l.info(ctx, wire.Call{Method: "PUT", Path: l.path(""), Body: config})
}

// Info describes the log.
func (l *Log) Info(ctx context.Context) (*LogInfo, error) {
	return l.info(ctx, wire.Call{Method: "GET", Path: l.path("")})
}

func (l *Log) info(ctx context.Context, call wire.Call) (*LogInfo, error) {
	var info LogInfo
	if _, err := l.client.do(ctx, call, &info); err != nil {
		return nil, err
	}
	if info.Log != l.name {
		return nil, call.NotOurs("another log")
	}
	return &info, nil
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
		v.Set("wait_ms", strconv.FormatInt(wire.MS(q.Wait), 10))
	}
	var page LogEntries
	call := wire.Call{Method: "GET", Path: l.path("/entries" + wire.PageQuery(v, q.Limit, "")), Wait: q.Wait}
	if _, err := l.client.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Entries == nil || page.Cursor == "" {
		return nil, call.NotOurs("no page of entries")
	}
	return &page, nil
}

// ByID returns the entry of an id that the log's window holds, for a writer whose answer got lost.
func (l *Log) ByID(ctx context.Context, id string) (*LogEntry, error) {
	var e LogEntry
	call := wire.Call{Method: "GET", Path: l.path("/entries/by-id/" + url.PathEscape(id))}
	if _, err := l.client.do(ctx, call, &e); err != nil {
		return nil, err
	}
	if e.ID != id || e.Entry == 0 {
		return nil, call.NotOurs("another entry")
	}
	return &e, nil
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
	call := wire.Call{Method: "POST", Path: l.path("/writers"), Body: body}
	if _, err := l.client.do(ctx, call, &out); err != nil {
		return 0, err
	}
	if out.Writer != writer || out.Epoch == 0 {
		return 0, call.NotOurs("no epoch of the writer")
	}
	return out.Epoch, nil
}
