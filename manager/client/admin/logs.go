package admin

import (
	"context"
	"net/url"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Logs returns one page of logs. Limit: 1 to 1000, 100 when 0.
func (c *Client) Logs(ctx context.Context, limit int, cursor string) (*LogPage, error) {
	call := wire.Page("/v1/logs", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of logs", func(page *LogPage) bool { return page.Logs != nil })
}

// DeleteLog removes a log with all its entries. It is for administrators. When an answer is lost
// and the call repeated it may say that the log is not there: then it was deleted.
func (c *Client) DeleteLog(ctx context.Context, log string) error {
	return c.remove(ctx, logPath(log))
}

// LogWriters returns one page of a log's writers, in order of their names. Limit: 1 to 1000, 100 when 0.
func (c *Client) LogWriters(ctx context.Context, log string, limit int, cursor string) (*LogWriterPage, error) {
	call := wire.Page(logPath(log)+"/writers", nil, limit, cursor)
	return wire.Ask(ctx, c.client, call, "no list of writers", func(page *LogWriterPage) bool { return page.Writers != nil })
}

// RemoveLogWriter forgets a writer of a log, which makes room for another one. Entries with any of its epochs are refused from then
// on. It is for administrators. When an answer is lost and the call repeated it may say that the writer is not there:
// then it was removed.
func (c *Client) RemoveLogWriter(ctx context.Context, log, writer string) error {
	return c.remove(ctx, logPath(log)+"/writers/"+url.PathEscape(writer))
}

func logPath(log string) string { return "/v1/logs/" + url.PathEscape(log) }
