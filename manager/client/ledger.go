package client

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Ledger makes calls on the ledger as a gate does: it reserves keys before work runs, and records the outcomes.
type Ledger struct{ c *Client }

// Ledger returns the ledger's calls. The client's URL must lead to the manager, not to a gate.
func (c *Client) Ledger() *Ledger { return &Ledger{c} }

// LedgerAnswer is the answer to one call of a batch.
type LedgerAnswer struct {
	// Reply has the key's state for the caller: reserved, pending, committed, rejected, released or unknown. For a
	// reserve, renew or unknown it also has how long that lasts, and the recorded answer.
	Reply api.ReserveReply
	// Err is why the call was refused: an *Error of the manager, or an *api.FieldError when the call was not sent.
	Err error
}

// Batch makes the calls in as few requests as possible, and returns one answer for each, in order. Each call is judged
// and answered by itself; calls of one key are judged in their order. The calls of one request become durable together.
// No call waits: Reserve.Wait is ignored, and a key that another attempt has reserved is api.StatePending immediately.
//
// A request that gets no answer, or is refused temporarily as a whole, is repeated with the same tokens, so its calls
// stay the same calls. An error says that a request got no answer in spite of that: its calls, and those after it, may
// or may not have been made. Repeating the Batch settles that. A call whose Err is Temporary can be repeated in the
// same way, after its RetryAfter.
func (l *Ledger) Batch(ctx context.Context, calls []api.BatchCall) ([]LedgerAnswer, error) {
	answers := make([]LedgerAnswer, len(calls))
	var items []byte
	var sent []int
	flush := func() error {
		if len(sent) == 0 {
			return nil
		}
		err := l.send(ctx, items, sent, calls, answers)
		items, sent = items[:0], sent[:0]
		return err
	}
	for i := range calls {
		if err := checkCall(&calls[i]); err != nil {
			answers[i].Err = err
			continue
		}
		begin := len(items)
		items = calls[i].AppendRawItem(items)
		if size := len(items) - begin; len(sent) == api.MaxBatchItems || len(items) > maxItems {
			item := append([]byte(nil), items[begin:]...)
			items = items[:begin]
			if err := flush(); err != nil {
				return nil, err
			}
			if size > maxItems {
				if err := l.alone(ctx, &calls[i], &answers[i]); err != nil {
					return nil, err
				}
				continue
			}
			items = append(items, item...)
		}
		sent = append(sent, i)
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return answers, nil
}

// maxItems bounds the bytes of the items of one request; their header is up to four bytes.
const maxItems = api.MaxBatchBytes - 4

// checkCall rejects a call that would make the whole request invalid, or would be read as another call.
func checkCall(c *api.BatchCall) error {
	if c.Op.Path() == "" {
		return &api.FieldError{Field: "op", Value: c.Op.String(), Allowed: "must be reserve, commit, reject, release, renew or unknown"}
	}
	return api.ValidateTrace(c.Trace)
}

// send makes one request of items, the encoded calls whose indexes are in sent.
func (l *Ledger) send(ctx context.Context, items []byte, sent []int, calls []api.BatchCall, answers []LedgerAnswer) error {
	request := wire.Call{
		Method: http.MethodPost, Path: api.PathBatch,
		Raw: append(api.AppendRawBatch(make([]byte, 0, len(items)+4), len(sent)), items...),
	}
	var b []byte
	if _, err := l.c.do(ctx, request, &b); err != nil {
		return err
	}
	got, err := api.ViewRawAnswers(nil, b)
	if err != nil {
		return request.NotOurs(err.Error())
	}
	if len(got) != len(sent) {
		return request.NotOurs("another number of answers than of calls")
	}
	for i, at := range sent {
		a := &answers[at]
		if got[i].Status/100 == 2 {
			if err := a.Reply.ParseRaw(got[i].Body); err != nil {
				return request.NotOurs(err.Error())
			}
			continue
		}
		var p api.Problem
		if err := p.ParseJSON(got[i].Body); err != nil {
			return request.NotOurs(err.Error())
		}
		if p.Code != api.CodeAskAlone {
			a.Err = &Error{Status: p.Status, Code: p.Code, Detail: (&problem{Title: p.Title, Detail: p.Detail}).text(), RetryAfter: time.Duration(got[i].RetryAfterSeconds) * time.Second}
			continue
		}
		if err := l.alone(ctx, &calls[at], a); err != nil {
			return err
		}
	}
	return nil
}

// alone makes a single call. Its error says that there was no answer.
func (l *Ledger) alone(ctx context.Context, c *api.BatchCall, a *LedgerAnswer) error {
	by := *c
	by.Reserve.Wait = 0
	request := wire.Call{Method: http.MethodPost, Path: c.Op.Path(), Raw: by.AppendRaw(nil)}
	var b []byte
	_, err := l.c.do(ctx, request, &b)
	var refused *Error
	switch {
	case errors.As(err, &refused) && refused.Code != "" && !refused.Temporary():
		a.Err = err
		return nil
	case err != nil:
		return err
	}
	if err := a.Reply.ParseRaw(b); err != nil {
		return request.NotOurs(err.Error())
	}
	return nil
}
