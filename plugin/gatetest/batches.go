package gatetest

import (
	"strconv"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

// batch deals with the calls of a batch, in their order. What the script has for the path of an item
// befalls that item where it is an answer, and else the batch. The script for api.PathBatch is for the
// batch alone.
func (m *Manager) batch(c Call, message []byte, done func(hostsim.CallResponse)) error {
	items, err := api.ViewRawBatch(nil, message)
	if err != nil {
		done(problem(400))
		return nil
	}
	h := new(held)
	m.mu.Lock()
	m.batches++
	c.Batch = m.batches
	whole := m.fault(api.PathBatch)
	if whole.Hold || whole.HoldCall {
		m.held = append(m.held, h)
	}
	known := !m.Elder
	var works []work
	for i := range items {
		one := c
		one.Path, one.Trace = items[i].Op.Path(), traceOf(items[i].Trace)
		w := m.read(&one, items[i].Message)
		if !known {
			continue
		}
		f := m.arrive(one, h)
		if f.onTheWay() {
			whole = f
			if !f.Foreign {
				whole.Status, whole.Garbage = 0, nil
			}
		}
		works = append(works, func(answer func(hostsim.CallResponse)) {
			_ = m.carryOut(Fault{Status: f.Status, RetryAfter: f.RetryAfter, Code: f.Code, Garbage: f.Garbage}, nil, w, answer)
		})
	}
	m.mu.Unlock()
	if !known {
		done(problem(404))
		return nil
	}
	return m.carryOut(whole, h, func(answer func(hostsim.CallResponse)) {
		if m.wrong(c.Shard) {
			answer(coded(421, api.CodeWrongShard))
			return
		}
		answer(together(works))
	}, done)
}

// onTheWay tells whether a fault of one item is the whole batch's.
func (f *Fault) onTheWay() bool {
	return f.Refuse || f.Lose || f.LoseAnswer || f.Failure != hostsim.CallOK || f.Foreign || f.Hold || f.HoldCall
}

// together carries the items out and joins their answers.
func together(works []work) hostsim.CallResponse {
	body := api.AppendRawAnswers(nil, len(works))
	for _, w := range works {
		w(func(r hostsim.CallResponse) {
			status, _ := strconv.Atoi(r.Headers.Get(":status"))
			after, _ := strconv.Atoi(r.Headers.Get("retry-after"))
			body = api.AppendRawAnswer(body, status, after, r.Body)
		})
	}
	return hostsim.CallResponse{
		Headers: hostsim.H(":status", "200", api.HeaderManager, "test", "content-type", api.ContentTypeRaw),
		Body:    body,
	}
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
