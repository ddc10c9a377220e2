package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// history records the calls to managers and their answers by key, for porcupine.
type history struct {
	keys  map[string][]porcupine.Operation
	open  []*record
	calls int
	downs map[string][]porcupine.Operation // by manager
	// vague: it is not known whether a manager counted some time as downtime.
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
	if h.downs == nil {
		h.downs = make(map[string][]porcupine.Operation)
	}
	h.downs[m.ledger()] = append(h.downs[m.ledger()], porcupine.Operation{
		Input:  simulated.Call{Op: simulated.Downtime, Begin: m.servedAt, End: m.clock().UnixMilli()},
		Output: simulated.Outcome{}, Call: int64(m.served), Return: int64(m.w.now()),
	})
}

// record is a call that a manager works on.
type record struct {
	m    *manager
	p    *process
	key  string
	call simulated.Call
	at   int64
}

// begin notes a call that reaches a manager. A nil record is that of a call that the history leaves out.
func (h *history) begin(w *World, m *manager, p *process, path string, body []byte) *record {
	h.calls++
	c := simulated.Call{Op: strings.TrimPrefix(path, "/v1/ledger/")}
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
	w.tell(m, scope+" "+c.Key, &c)
	c.Begin = m.clock().UnixMilli()
	e := &record{m: m, p: p, key: m.ledger() + " " + scope + " " + c.Key, call: c, at: int64(w.now())}
	h.open = append(h.open, e)
	return e
}

// end notes the answer to a call that begin has noted.
func (h *history) end(w *World, e *record, status int, body []byte) {
	if e == nil {
		return
	}
	for i, o := range h.open {
		if o == e {
			h.open = append(h.open[:i], h.open[i+1:]...)
			break
		}
	}
	var o simulated.Outcome
	switch {
	case status < 300:
		var a api.ReserveReply
		if a.ParseRaw(body) == nil {
			o.Known = true
			w.acknowledged(e, &a)
			if e.call.Op == "commit" || e.call.Op == "reject" {
				w.recorded(e)
			}
			switch e.call.Op {
			case "reserve", "renew", "unknown":
				o = simulated.Outcome{Known: true, State: a.State.String(), Left: a.ExpiresIn.Milliseconds(), Body: string(a.Result.Body)}
			}
		}
	case status == 409:
		for _, refusal := range []string{"fenced", "conflict", "outcome-unknown"} {
			if strings.Contains(string(body), "urn:oncegate:problem:"+refusal) {
				o = simulated.Outcome{Known: true, Refused: refusal}
			}
		}
	case status == 422 || status == 421:
		return // changes nothing
	}
	h.add(w, e, o)
}

func (h *history) add(w *World, e *record, o simulated.Outcome) {
	if h.keys == nil {
		h.keys = make(map[string][]porcupine.Operation)
	}
	e.call.End = e.m.clock().UnixMilli() + 1
	h.keys[e.key] = append(h.keys[e.key], porcupine.Operation{Input: e.call, Output: o, Call: e.at, Return: int64(w.now())})
}

// crashed notes that a manager died: each call that it worked on took effect before that, or never will.
func (h *history) crashed(w *World, m *manager, p *process) {
	var left []*record
	for _, e := range h.open {
		if e.p != p {
			left = append(left, e)
			continue
		}
		h.add(w, e, simulated.Outcome{})
	}
	h.open = left
}

// check reports the histories that no order of their calls explains.
func (h *history) check() (failures []string) {
	if h.vague {
		return nil
	}
	for key, list := range h.keys {
		name, _, _ := strings.Cut(key, " ")
		list = append(list, h.downs[name]...)
		if porcupine.CheckOperations(simulated.Model, list) {
			continue
		}
		text := fmt.Sprintf("no order explains what %s answered:", key)
		for _, op := range list {
			text += fmt.Sprintf("\n  [%d %d] %s", op.Call, op.Return, simulated.Model.DescribeOperation(op.Input, op.Output))
		}
		failures = append(failures, text)
	}
	return failures
}

// describe and describeReply return lines for the timeline.
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
