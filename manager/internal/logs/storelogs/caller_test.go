package storelogs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// logName is the log that a caller calls.
const logName = "log"

// caller calls an engine, and says in brief what came of it.
type caller struct {
	T      *testing.T
	engine func() *Engine
}

// entry is an item with an id.
func entry(id, payload string) logs.Item { return logs.Item{ID: id, Payload: []byte(payload)} }

// say appends items and returns the outcomes in brief: the number of the entry, "3 again" for a duplicate, the code of
// a refusal.
func (c *caller) say(items ...logs.Item) string {
	return c.sayWith(c.T.Context(), false, items...)
}

// sayWith is say with a context, and for atomic batches.
func (c *caller) sayWith(ctx context.Context, atomic bool, items ...logs.Item) string {
	out, err := c.engine().Append(ctx, logName, items, atomic)
	if err != nil {
		return codeOf(err)
	}
	var parts []string
	for _, o := range out {
		switch {
		case o.Err != nil:
			parts = append(parts, codeOf(o.Err))
		case o.Duplicate:
			parts = append(parts, fmt.Sprint(o.Number, " again"))
		default:
			parts = append(parts, fmt.Sprint(o.Number))
		}
	}
	return strings.Join(parts, ", ")
}

// expect appends items, and fails unless say returns want.
func (c *caller) expect(want string, items ...logs.Item) {
	c.T.Helper()
	if got := c.say(items...); got != want {
		c.T.Errorf("the outcomes are %s, want %s", got, want)
	}
}

// codeOf is an error in brief.
func codeOf(err error) string {
	var e *logs.Error
	var f *api.FieldError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return string(e.P.Code)
	case errors.As(err, &f):
		return "field " + f.Field
	}
	return err.Error()
}

// all reads the whole log, page by page, and checks that the numbers have no gaps.
func (c *caller) all() []logs.Entry {
	c.T.Helper()
	var all []logs.Entry
	q := logs.Query{Beginning: true, Limit: 7}
	for {
		page, err := c.engine().Read(c.T.Context(), logName, q)
		if err != nil {
			c.T.Fatalf("Read: %v", err)
		}
		if len(page.Entries) == 0 {
			return all
		}
		for _, e := range page.Entries {
			if n := len(all); n > 0 && e.Number != all[n-1].Number+1 {
				c.T.Fatalf("entry %d follows entry %d", e.Number, all[n-1].Number)
			}
			all = append(all, e)
		}
		q = logs.Query{After: page.Cursor, Limit: 7}
	}
}

// allIDs are those of the whole log in order.
func (c *caller) allIDs() string {
	c.T.Helper()
	var ids []string
	for _, e := range c.all() {
		ids = append(ids, e.ID)
	}
	return strings.Join(ids, " ")
}

// info describes the log.
func (c *caller) info() logs.Info {
	c.T.Helper()
	info, err := c.engine().Get(c.T.Context(), logName)
	if err != nil {
		c.T.Fatalf("Get: %v", err)
	}
	return info
}
