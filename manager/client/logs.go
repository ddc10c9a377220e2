package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
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
	return wire.Ask(ctx, l.client, call, "another log", func(info *LogInfo) bool { return info.Log == l.name })
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

// Read returns entries in order. A reader that retention has overtaken gets an error with
// the code api.CodeCursorGone.
func (l *Log) Read(ctx context.Context, q LogQuery) (*LogEntries, error) {
	v := url.Values{}
	if q.After != "" {
		v.Set("after", q.After)
	}
	if q.Wait > 0 {
		v.Set("wait_ms", strconv.FormatInt(schema.Millis(q.Wait), 10))
	}
	call := wire.Page(l.path("/entries"), v, q.Limit, "")
	call.Wait = q.Wait
	return wire.Ask(ctx, l.client, call, "no page of entries", func(page *LogEntries) bool { return page.Entries != nil && page.Cursor != "" })
}

// ByID returns the entry of an id that the log's window holds, for a writer whose answer got lost.
func (l *Log) ByID(ctx context.Context, id string) (*LogEntry, error) {
	call := wire.Call{Method: "GET", Path: l.path("/entries/by-id/" + url.PathEscape(id))}
	return wire.Ask(ctx, l.client, call, "another entry", func(e *LogEntry) bool { return e.ID == id && e.Entry != 0 })
}

// openEpoch begins the next epoch of a writer. It may be repeated: each time gives a newer one.
func (l *Log) openEpoch(ctx context.Context, writer string) (uint64, error) {
	call := wire.Call{Method: "POST", Path: l.path("/writers"), Body: schema.LogWriterRequest{Writer: &writer}}
	out, err := wire.Ask(ctx, l.client, call, "no epoch of the writer", func(out *schema.LogWriter) bool { return out.Writer == writer && out.Epoch != 0 })
	if err != nil {
		return 0, err
	}
	return out.Epoch, nil
}
