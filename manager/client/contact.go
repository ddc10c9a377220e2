package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// unreachable reports whether a call had no answer of a manager: none at all, or one of a proxy that had none.
func unreachable(err error) bool {
	var e *Error
	return err != nil && temporary(err) && !(errors.As(err, &e) && e.Code != "")
}

// moveOn lets the next calls go to the manager after the i-th, which did not answer the call or said that it cannot work.
// It reports whether there is another one. The end of the caller's own wait says nothing about the manager.
func (c *Client) moveOn(ctx context.Context, call *wire.Call, i int64, err error) bool {
	ownEnd := errors.Is(err, context.Canceled) || ctx.Err() != nil && call.Wait > 0
	if len(c.bases) == 1 || ownEnd || !unreachable(err) && !HasCode(err, api.CodeUnavailable) {
		return false
	}
	c.at.CompareAndSwap(i, (i+1)%int64(len(c.bases)))
	return true
}

// contact is what a worker has logged about its manager.
type contact struct {
	mu      sync.Mutex
	lost    bool
	changed time.Time
}

// met logs how a call ended that is made again and again: once when the manager cannot be reached, once when it answers
// again, and any other error when it is not the last one of the same loop.
func (w *Worker) met(sent time.Time, err error, last *string, failed string, args ...any) {
	lost := unreachable(err)
	w.contact.mu.Lock()
	if c := &w.contact; lost != c.lost && !sent.Before(c.changed) { // a call from before the change is no news
		was := c.changed
		c.lost, c.changed = lost, time.Now()
		if lost {
			w.opts.Logger.Warn("the manager cannot be reached, trying again", "worker", w.opts.Name, "error", err.Error())
		} else {
			w.opts.Logger.Info("the manager answers again", "worker", w.opts.Name, "after", c.changed.Sub(was).Round(time.Millisecond))
		}
	}
	w.contact.mu.Unlock()
	if lost {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && text != *last {
		w.opts.Logger.Warn(failed, append(args, "worker", w.opts.Name, "error", text)...)
	}
	*last = text
}
