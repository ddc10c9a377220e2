package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Logs returns one page of logs. Limit: 1 to 1000, 100 when 0.
func (c *Client) Logs(ctx context.Context, limit int, cursor string) (*LogPage, error) {
	var page LogPage
	call := wire.Call{Method: "GET", Path: "/v1/logs" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Logs == nil {
		return nil, call.NotOurs("no list of logs")
	}
	return &page, nil
}

// DeleteLog removes a log with all its entries. It is for administrators. When an answer is lost
// and the call repeated it may say that the log is not there: then it was deleted.
func (c *Client) DeleteLog(ctx context.Context, log string) error {
	_, err := c.do(ctx, wire.Call{Method: "DELETE", Path: logPath(log)}, nil)
	return err
}

// LogWriters returns one page of a log's writers, in order of their names. Limit: 1 to 1000, 100 when 0.
func (c *Client) LogWriters(ctx context.Context, log string, limit int, cursor string) (*LogWriterPage, error) {
	var page LogWriterPage
	call := wire.Call{Method: "GET", Path: logPath(log) + "/writers" + wire.PageQuery(url.Values{}, limit, cursor)}
	if _, err := c.do(ctx, call, &page); err != nil {
		return nil, err
	}
	if page.Writers == nil {
		return nil, call.NotOurs("no list of writers")
	}
	return &page, nil
}

// RemoveLogWriter forgets a writer of a log, which makes room for another one. Entries with any of its epochs are refused from then
// on. It is for administrators. When an answer is lost and the call repeated it may say that the writer is not there:
// then it was removed.
func (c *Client) RemoveLogWriter(ctx context.Context, log, writer string) error {
	_, err := c.do(ctx, wire.Call{Method: "DELETE", Path: logPath(log) + "/writers/" + url.PathEscape(writer)}, nil)
	return err
}

func logPath(log string) string { return "/v1/logs/" + url.PathEscape(log) }
