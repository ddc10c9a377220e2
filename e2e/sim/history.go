package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/server"
)

// history is what managers were asked and what they answered, by key, for porcupine.
type history struct {
	keys  map[string][]porcupine.Operation
	open  []*record
	calls int
	downs []porcupine.Operation
	// vague: it is not known whether a manager took a time for downtime.
	vague bool
}

// downtime notes that a manager serves again, a new process or one that was stopped.
func (h *history) downtime(m *manager, stopped bool) {
	switch away := m.w.now() - m.served; {
	case stopped && away < 600*time.Millisecond:
		return // too short to count
	case stopped && away < 1500*time.Millisecond:
		h.vague = true
	}
	h.downs = append(h.downs, porcupine.Operation{
		Input:  ledgertest.Call{Op: ledgertest.Downtime, Begin: m.servedAt, End: m.clock().UnixMilli()},
		Output: ledgertest.Outcome{}, Call: int64(m.served), Return: int64(m.w.now()),
	})
}

// record is a call that a manager works on.
type record struct {
	m    *manager
	p    *process
	key  string
	call ledgertest.Call
	at   int64
}

// begin notes a call that reaches a manager; nil: it is not recorded.
func (h *history) begin(w *World, m *manager, p *process, path string, body []byte) *record {
	h.calls++
	c := ledgertest.Call{Op: strings.TrimPrefix(path, "/v1/ledger/")}
	scope := ""
	switch path {
	case api.PathReserve, api.PathRenew, api.PathUnknown:
		var r api.ReserveRequest
		if r.ParseRaw(body) != nil {
			return nil
		}
		c.Key, c.Token, c.TTL, c.Unknown, scope = r.Key, r.Token, r.PendingTTL.Milliseconds(), r.UnknownTTL.Milliseconds(), r.Scope
		switch r.UnknownTTL {
		case 0:
			c.Unknown = w.plan.CommittedTTL.Milliseconds()
		case api.NoUnknown:
			c.Unknown = 0
		}
		if path == api.PathUnknown {
			c.TTL = c.Unknown
		}
	case api.PathCommit, api.PathReject:
		var r api.FinishRequest
		if r.ParseRaw(body) != nil {
			return nil
		}
		c.Key, c.Token, c.TTL, c.Body, scope = r.Key, r.Token, r.TTL.Milliseconds(), string(r.Result.Body), r.Scope
	case api.PathRelease:
		var r api.ReleaseRequest
		if r.ParseRaw(body) != nil {
			return nil
		}
		c.Key, c.Token, scope = r.Key, r.Token, r.Scope
	default:
		return nil
	}
	if scope == stranger {
		return nil
	}
	c.Begin = m.clock().UnixMilli()
	e := &record{m: m, p: p, key: m.name + " " + scope + " " + c.Key, call: c, at: int64(w.now())}
	h.open = append(h.open, e)
	return e
}

// end notes the answer.
func (h *history) end(w *World, m *manager, e *record, r *server.Response) {
	if e == nil {
		return
	}
	for i, o := range h.open {
		if o == e {
			h.open = append(h.open[:i], h.open[i+1:]...)
			break
		}
	}
	var o ledgertest.Outcome
	switch {
	case r.Status < 300:
		var a api.ReserveReply
		if a.ParseRaw(r.Body) == nil {
			o.Known = true
			switch e.call.Op {
			case "reserve", "renew", "unknown":
				o = ledgertest.Outcome{Known: true, State: a.State.String(), Left: a.ExpiresIn.Milliseconds(), Body: string(a.Result.Body)}
			}
		}
	case r.Status == 409:
		for _, refusal := range []string{"fenced", "conflict", "outcome-unknown"} {
			if strings.Contains(string(r.Body), "urn:oncegate:problem:"+refusal) {
				o = ledgertest.Outcome{Known: true, Refused: refusal}
			}
		}
	case r.Status == 422:
		return // changes nothing
	}
	h.add(w, e, o)
}

func (h *history) add(w *World, e *record, o ledgertest.Outcome) {
	if h.keys == nil {
		h.keys = make(map[string][]porcupine.Operation)
	}
	e.call.End = e.m.clock().UnixMilli() + 1
	h.keys[e.key] = append(h.keys[e.key], porcupine.Operation{Input: e.call, Output: o, Call: e.at, Return: int64(w.now())})
}

// crashed notes that what a manager worked on has happened or not, and never will.
func (h *history) crashed(w *World, m *manager, p *process) {
	var left []*record
	for _, e := range h.open {
		if e.p != p {
			left = append(left, e)
			continue
		}
		h.add(w, e, ledgertest.Outcome{})
	}
	h.open = left
}

// check tells which histories no order of their calls explains.
func (h *history) check() (failures []string) {
	if h.vague {
		return nil
	}
	for key, list := range h.keys {
		list = append(list, h.downs...)
		if porcupine.CheckOperations(ledgertest.Model, list) {
			continue
		}
		text := fmt.Sprintf("no order explains what %s answered:", key)
		for _, op := range list {
			text += fmt.Sprintf("\n  [%d %d] %s", op.Call, op.Return, ledgertest.Model.DescribeOperation(op.Input, op.Output))
		}
		failures = append(failures, text)
	}
	return failures
}

// describe and describeReply are for the timeline.
func describe(path string, body []byte) string {
	text := short(path)
	switch path {
	case api.PathCommit, api.PathReject:
		var r api.FinishRequest
		if r.ParseRaw(body) == nil {
			text += fmt.Sprintf(" %s token %.6s status %d %q", r.Key, r.Token, r.Result.Status, r.Result.Body)
		}
	case api.PathRelease:
		var r api.ReleaseRequest
		if r.ParseRaw(body) == nil {
			text += fmt.Sprintf(" %s token %.6s", r.Key, r.Token)
		}
	default:
		var r api.ReserveRequest
		if r.ParseRaw(body) == nil {
			text += fmt.Sprintf(" %s token %.6s wait %v", r.Key, r.Token, r.Wait)
		}
	}
	return text
}

func short(path string) string { return strings.TrimPrefix(path, "/v1/ledger/") }

func describeReply(a *answer) string {
	var r api.ReserveReply
	if a.status >= 300 {
		text := string(a.body)
		if at := strings.Index(text, "problem:"); at >= 0 {
			text = text[at+8:]
			if end := strings.IndexByte(text, '"'); end >= 0 {
				text = text[:end]
			}
		}
		return " " + text
	}
	if r.ParseRaw(a.body) != nil {
		return ""
	}
	return " " + r.State.String()
}
