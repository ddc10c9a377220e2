package gate

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// The managers of a fakeHost, and its connections to them.

// respond answers the n-th call.
func (h *fakeHost) respond(p *Plugin, n int, status string, a api.ReserveReply) {
	h.begin()
	c := h.calls[n]
	if h.conns[c.conn-1] == "" {
		h.t.Fatalf("call %d is answered on a closed connection", n)
	}
	code, _ := strconv.Atoi(status)
	body := a.AppendRaw(nil)
	if h.problem != "" {
		problem := api.Problem{Status: 409, Code: h.problem, Title: "test"}
		body = problem.AppendJSON(nil)
	}
	h.message = api.AppendStreamReply(nil, c.number, code, h.retryAfter, h.ledger, body)
	h.receiving = true
	p.OnStreamMessage(c.conn, len(h.message))
	h.overwrite()
}

// overwrite is what the next message does to the memory of the one before.
func (h *fakeHost) overwrite() {
	for i := range h.message {
		h.message[i] = '#'
	}
	h.message = nil
}

// goAway is an outage of all managers that has lasted for so long that calls wait for one try only.
func (h *fakeHost) goAway(p *Plugin) {
	h.refuse = true
	h.leave(p, "")
}

// leave ends all connections to a shard; "": to all of them.
func (h *fakeHost) leave(p *Plugin, cluster string) {
	now, current := h.now, h.current
	h.now -= int64(p.config.Manager.Timeout)
	for i := range p.calls.conns {
		n := &p.calls.conns[i]
		if cluster != "" && cluster != p.calls.shards[n.shard].name {
			continue
		}
		if n.id != 0 {
			h.conns[n.id-1] = ""
			n.answered = false
			h.begin()
			p.OnStreamClose(n.id, 14)
		}
		p.calls.connectFailed(n, "away", h.now)
		n.retryAt = now + int64(lastBackoff)
	}
	h.now, h.current = now, current
}

// comeBack ends an outage. The gate tries again immediately.
func (h *fakeHost) comeBack(p *Plugin) {
	h.refuse, h.away = false, nil
	for i := range p.calls.conns {
		p.calls.conns[i].retryAt = 0
	}
}

// end ends the connection that the n-th call went by.
func (h *fakeHost) end(p *Plugin, n, status int) {
	h.begin()
	conn := h.calls[n].conn
	h.conns[conn-1] = ""
	p.OnStreamClose(conn, status)
}

// refuseWith answers the n-th call with a problem.
func (h *fakeHost) refuseWith(p *Plugin, n int, status string, code api.Code) {
	h.problem = code
	h.respond(p, n, status, api.ReserveReply{})
	h.problem = ""
}

// mark is what the gate said about the ledger when it opened its last connection.
func (h *fakeHost) mark() string { return h.metadata[len(h.metadata)-1][api.HeaderLedger] }

// last is the number of the last call.
func (h *fakeHost) last() int { return len(h.calls) - 1 }

func (h *fakeHost) OpenStream(cluster, authority string, metadata [][2]string) (uint32, CallStatus) {
	if h.current != 0 {
		h.t.Error("a connection from a stream's context")
	}
	if h.receiving || h.changed || h.acts > 0 {
		h.t.Error("a connection is opened after something else in the same callback: Envoy may hang")
	}
	h.changed = true
	if h.refuse || h.away[cluster] {
		h.refusals++
		return 0, CallRefused
	}
	m := map[string]string{":authority": authority}
	for _, f := range metadata {
		m[f[0]] = strings.Clone(f[1])
	}
	h.conns, h.metadata = append(h.conns, cluster), append(h.metadata, m)
	return uint32(len(h.conns)), CallSent
}

func (h *fakeHost) SendStream(id uint32, message []byte) bool {
	if h.current != 0 {
		h.t.Error("a message from a stream's context")
	}
	if h.conns[id-1] == "" || id == h.deaf {
		return false
	}
	var c api.StreamCall
	if err := c.View(bytes.Clone(message)); err != nil {
		h.t.Error(err)
	}
	if c.Op == api.OpPing {
		h.pings = append(h.pings, id)
		return true
	}
	h.calls = append(h.calls, fakeCall{cluster: h.conns[id-1], path: paths[c.Op], body: c.Message, conn: id, number: c.Number})
	return true
}

func (h *fakeHost) CloseStream(id uint32) {
	if h.current != 0 {
		h.t.Error("a connection is closed from a stream's context")
	}
	h.conns[id-1] = ""
}

func (h *fakeHost) StreamMessage(size int) []byte {
	if size > len(h.message) {
		return nil
	}
	return h.message[:size]
}
