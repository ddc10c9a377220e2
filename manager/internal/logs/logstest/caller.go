package logstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// LogName is the log that a Caller calls.
const LogName = "log"

// Caller calls an engine, and says in brief what came of it.
type Caller struct {
	T      *testing.T
	Engine func() logs.Engine
}

// Entry is an item with an id.
func Entry(id, payload string) logs.Item { return logs.Item{ID: id, Payload: []byte(payload)} }

// Say appends items and returns the outcomes in brief: the number of the entry, "3 again" for a duplicate, the code of
// a refusal.
func (c *Caller) Say(items ...logs.Item) string {
	return c.SayWith(c.T.Context(), false, items...)
}

// SayWith is Say with a context, and for atomic batches.
func (c *Caller) SayWith(ctx context.Context, atomic bool, items ...logs.Item) string {
	out, err := c.Engine().Append(ctx, LogName, items, atomic)
	if err != nil {
		return Code(err)
	}
	var parts []string
	for _, o := range out {
		switch {
		case o.Err != nil:
			parts = append(parts, Code(o.Err))
		case o.Duplicate:
			parts = append(parts, fmt.Sprint(o.Number, " again"))
		default:
			parts = append(parts, fmt.Sprint(o.Number))
		}
	}
	return strings.Join(parts, ", ")
}

// Expect appends items, and fails unless Say returns want.
func (c *Caller) Expect(want string, items ...logs.Item) {
	c.T.Helper()
	if got := c.Say(items...); got != want {
		c.T.Errorf("the outcomes are %s, want %s", got, want)
	}
}

// Code is an error in brief.
func Code(err error) string {
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

// All reads the whole log, page by page, and checks that the numbers have no gaps.
func (c *Caller) All() []logs.Entry {
	c.T.Helper()
	var all []logs.Entry
	q := logs.Query{Beginning: true, Limit: 7}
	for {
		page, err := c.Engine().Read(c.T.Context(), LogName, q)
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

// IDs are those of the whole log in order.
func (c *Caller) IDs() string {
	c.T.Helper()
	var ids []string
	for _, e := range c.All() {
		ids = append(ids, e.ID)
	}
	return strings.Join(ids, " ")
}

// Info describes the log.
func (c *Caller) Info() logs.Info {
	c.T.Helper()
	info, err := c.Engine().Get(c.T.Context(), LogName)
	if err != nil {
		c.T.Fatalf("Get: %v", err)
	}
	return info
}
