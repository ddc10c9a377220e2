package gatetest

import (
	"bytes"
	"cmp"
	"context"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// batch makes the manager carry out the calls of a batch. A fault that the script has for an item's path replaces
// that item's answer, and the manager does not see the item unless AfterIt is set; a fault on the way concerns the whole
// batch. The script for api.PathBatch concerns the batch alone.
func (m *Manager) batch(c Call, headers []api.Header, message []byte, done func(hostsim.CallResponse)) error {
	message = bytes.Clone(message)
	items, err := api.ViewRawBatch(nil, message)
	if err != nil {
		done(coded(400, api.CodeInvalidRequest))
		return nil
	}
	h := new(heldCall)
	faults := make([]Fault, len(items))
	var keys []string
	m.mu.Lock()
	m.batches++
	c.Batch = m.batches
	whole := m.fault(api.PathBatch)
	if whole.Hold || whole.HoldCall {
		m.held = append(m.held, h)
	}
	for i := range items {
		one := c
		one.Path, one.Trace = items[i].Op.Path(), traceOf(items[i].Trace)
		one.read(items[i].Message)
		keys = append(keys, name(one.Scope, one.Key))
		f := m.arrive(one, h)
		if f.concernsBatch() {
			whole = f
			if !f.Foreign {
				whole.Status, whole.Garbage = 0, nil
			}
		}
		faults[i] = f
	}
	m.mu.Unlock()
	return m.carryOut(whole, h, func(answer func(hostsim.CallResponse)) {
		m.handling.Lock()
		a := m.together(items, faults, headers)
		m.handling.Unlock()
		answer(response(a))
		for _, key := range keys {
			m.wake(key)
		}
	}, done)
}

// concernsBatch reports whether a fault of one item concerns the whole batch.
func (f *Fault) concernsBatch() bool {
	return f.Refuse || f.Lose || f.LoseAnswer || f.Failure != hostsim.CallOK || f.Foreign || f.Hold || f.HoldCall
}

// together carries out the items that no fault keeps from the manager as one batch, and joins the answers of all items.
func (m *Manager) together(items []api.BatchItem, faults []Fault, headers []api.Header) simulated.Answer {
	var sent [][]byte
	for i, item := range items {
		if faults[i].Status == 0 || faults[i].AfterIt {
			var trace [][2]string
			for _, h := range item.Trace {
				trace = append(trace, [2]string{h.Name, h.Value})
			}
			sent = append(sent, api.AppendRawItem(nil, item.Op, trace, item.Message))
		}
	}
	a := simulated.Answer{Status: 200, ContentType: api.ContentTypeRaw}
	var answers []api.BatchAnswer
	if len(sent) > 0 {
		a = m.manager.Do(context.Background(), api.PathBatch, headers, append(api.AppendRawBatch(nil, len(sent)), bytes.Join(sent, nil)...))
		var err error
		if answers, err = api.ViewRawAnswers(nil, a.Body); a.Status != 200 || err != nil {
			return a
		}
	}
	body := api.AppendRawAnswers(nil, len(items))
	for _, f := range faults {
		one := api.BatchAnswer{Status: f.Status, RetryAfterSeconds: f.RetryAfter, Body: coded(f.Status, cmp.Or(f.Code, "test")).Body}
		if f.Status == 0 {
			one = answers[0]
		}
		if f.Status == 0 || f.AfterIt {
			answers = answers[1:]
		}
		if f.Garbage != nil {
			one.Body = f.Garbage
		}
		body = api.AppendRawAnswer(body, one.Status, one.RetryAfterSeconds, one.Body)
	}
	a.Body = body
	return a
}

func traceOf(headers []api.Header) string {
	var id, parent string
	for _, h := range headers {
		switch h.Name {
		case "x-request-id":
			id = h.Value
		case "traceparent":
			parent = h.Value
		}
	}
	return id + " " + parent
}
