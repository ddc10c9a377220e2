package cli

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// logFlags are those of "oncegate logs".
type logFlags struct {
	id, writer, payload, after, remove string
	create, lines, follow              bool
}

func logsCommands() map[string]operatorCommand {
	return map[string]operatorCommand{
		"list":    {"", "list logs", 0, 0, (*operatorCall).pageFlags, logsList},
		"append":  {"LOG", "append an entry once, or a line of the input each", 1, 1, (*operatorCall).appendFlags, logsAppend},
		"tail":    {"LOG", "print entries in order, and with --follow those that come", 1, 1, (*operatorCall).tailFlags, logsTail},
		"inspect": {"LOG", "show a log's configuration, window and size, or with --id an entry", 1, 1, (*operatorCall).inspectFlags, logsInspect},
		"writers": {"LOG", "list the writers of a log and their epochs, or with --remove forget one", 1, 1, (*operatorCall).writersFlags, logsWriters},
	}
}

func (c *operatorCall) appendFlags(fs *flag.FlagSet) {
	f := &c.log
	fs.StringVar(&f.id, "id", "", "`id` of the entry (default the MD5 of its payload)")
	fs.StringVar(&f.writer, "writer", "", "`name` of the writer, which opens its next epoch and so fences earlier ones")
	fs.StringVar(&f.payload, "payload", "", "the entry's payload (default all of the standard input)")
	fs.BoolVar(&f.lines, "lines", false, "append each line of the standard input as an entry")
	fs.BoolVar(&f.create, "create", false, "make the log when it is not there")
}

func (c *operatorCall) tailFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.log.after, "after", "", "`cursor` after which to begin (default the oldest entry that is kept)")
	fs.BoolVar(&c.log.follow, "follow", false, "wait for more entries, until interrupted")
}

func (c *operatorCall) inspectFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.log.id, "id", "", "`id` of an entry to show, which the window must hold")
}

func (c *operatorCall) writersFlags(fs *flag.FlagSet) {
	c.pageFlags(fs)
	fs.StringVar(&c.log.remove, "remove", "", "`name` of a writer that does not come back; its epochs stay fenced")
}

func logsWriters(ctx context.Context, c *operatorCall) error {
	if c.log.remove != "" {
		return c.admin.RemoveLogWriter(ctx, c.args[0], c.log.remove)
	}
	page, err := c.admin.LogWriters(ctx, c.args[0], c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "WRITER, EPOCH", page.Writers, func(w *admin.LogWriter) []string {
		return []string{printable(w.Writer), strconv.FormatUint(w.Epoch, 10)}
	})
}

func logsList(ctx context.Context, c *operatorCall) error {
	page, err := c.admin.Logs(ctx, c.limit, c.cursor)
	if err != nil {
		return err
	}
	return printPage(c, page, page.Cursor, "LOG, IDENTITY, FIRST, LAST, KEYS, WRITERS, DISK BYTES, STATE", page.Logs, func(l *client.LogInfo) []string {
		return []string{l.Log, l.Config.Identity, strconv.FormatUint(l.First, 10), strconv.FormatUint(l.Last, 10),
			strconv.Itoa(l.Keys), strconv.Itoa(l.Writers), strconv.FormatInt(l.DiskBytes, 10), logState(l)}
	})
}

func logState(l *client.LogInfo) string {
	if l.Failed != "" {
		return "failed: " + l.Failed
	}
	return "ok"
}

func logsAppend(ctx context.Context, c *operatorCall) error {
	f := &c.log
	if f.lines && (f.id != "" || f.payload != "") {
		return settings.Usagef("--lines goes with neither --id nor --payload")
	}
	l, err := c.client.OpenLog(c.args[0])
	if err != nil {
		return err
	}
	if f.create {
		if _, err := l.Create(ctx, client.LogConfig{}); err != nil {
			return err
		}
	}
	w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{Writer: f.writer})
	if err != nil {
		return err
	}
	if f.lines {
		err = c.appendLines(ctx, w, c.in)
	} else {
		payload := []byte(f.payload)
		if f.payload == "" {
			if payload, err = io.ReadAll(io.LimitReader(c.in, logs.MaxPayloadBytes+1)); err != nil {
				return err
			}
		}
		err = c.printWrite(w.Write(ctx, client.WriteMessage{Payload: payload, IdempotencyID: f.id}))
	}
	return errors.Join(err, w.Close(ctx))
}

// appendLines has a bounded number of lines under way, and prints their results in order.
func (c *operatorCall) appendLines(ctx context.Context, w *client.IdempotentWriter, in io.Reader) error {
	const underWay = 1024
	var results []<-chan client.WriteResult
	first := func() error {
		r := <-results[0]
		results = results[1:]
		return c.printWrite(r)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, logs.MaxPayloadBytes+1)
	for lines.Scan() {
		results = append(results, w.WriteAsync(ctx, client.WriteMessage{Payload: []byte(lines.Text())}))
		if len(results) == underWay {
			if err := first(); err != nil {
				return err
			}
		}
	}
	for len(results) > 0 {
		if err := first(); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c *operatorCall) printWrite(r client.WriteResult) error {
	switch {
	case r.Err != nil:
		return r.Err
	case c.json:
		return c.printJSON(struct {
			client.LogMessageID
			ID        string `json:"id"`
			Duplicate bool   `json:"duplicate,omitempty"`
		}{r.LogMessageID, r.ID, r.Duplicate})
	}
	again := ""
	if r.Duplicate {
		again = " (was there)"
	}
	_, err := fmt.Fprintf(c.out, "%d/%d %s%s\n", r.LogMessageID.Segment, r.LogMessageID.Entry, printable(r.ID), again)
	return err
}

// tailWait is how long one call of a tail that follows is held.
const tailWait = 30 * time.Second

func logsTail(ctx context.Context, c *operatorCall) error {
	l, err := c.client.OpenLog(c.args[0])
	if err != nil {
		return err
	}
	q := client.LogQuery{After: c.log.after, Limit: logs.MaxLimit}
	if c.log.follow {
		q.Wait = tailWait
	}
	for {
		page, err := l.Read(ctx, q)
		if ctx.Err() != nil && c.log.follow {
			return nil // interrupted, as was said
		}
		if err != nil {
			return err
		}
		for i := range page.Entries {
			if err := c.printLogEntry(&page.Entries[i]); err != nil {
				return err
			}
		}
		if len(page.Entries) == 0 && !c.log.follow {
			return nil
		}
		q.After = page.Cursor
	}
}

func (c *operatorCall) printLogEntry(e *client.LogEntry) error {
	if c.json {
		return c.printJSON(e)
	}
	payload := fmt.Sprintf("%d bytes that are not text; --json shows them in base64", len(e.Payload))
	if utf8.Valid(e.Payload) {
		payload = printable(string(e.Payload))
	}
	_, err := fmt.Fprintf(c.out, "%d/%d\t%s\t%s\n", e.Segment, e.Entry, printable(e.ID), payload)
	return err
}

func logsInspect(ctx context.Context, c *operatorCall) error {
	l, err := c.client.OpenLog(c.args[0])
	if err != nil {
		return err
	}
	if c.log.id != "" {
		e, err := l.ByID(ctx, c.log.id)
		if client.HasCode(err, api.CodeNotFound) {
			return fmt.Errorf("id %q: %w", c.log.id, err)
		}
		if err != nil {
			return err
		}
		return c.printLogEntry(e)
	}
	i, err := l.Info(ctx)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(i)
	}
	return c.printTable([][]string{
		{"log", i.Log},
		{"identity", i.Config.Identity},
		{"entries", fmt.Sprintf("%d to %d", i.First, i.Last)},
		{"window", fmt.Sprintf("%s, %d of %d ids, %d of %d bytes, when full: %s", span(i.Config.Window), i.Keys, i.Config.MaxKeys, i.WindowBytes, i.Config.MaxBytes, i.Config.WhenFull)},
		{"evicted", strconv.FormatUint(i.Evicted, 10)},
		{"retention", strings.Join([]string{span(i.Config.Retain), strconv.FormatInt(i.Config.RetainBytes, 10) + " bytes"}, ", ")},
		{"writers", strconv.Itoa(i.Writers)},
		{"disk", strconv.FormatInt(i.DiskBytes, 10) + " bytes"},
		{"state", logState(i)},
	}, "")
}
