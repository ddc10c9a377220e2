package server

import (
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// replies are messages that are ready to be sent.
type replies struct {
	out  []byte
	last int    // where the last one begins
	body []byte // of one reply
}

func (r *replies) add(number uint64, status, after int, body []byte) {
	r.last = len(r.out)
	r.out = api.AppendStreamReply(httpd.AppendMessage(r.out), number, status, after, "", body)
	r.out = httpd.EndMessage(r.out, r.last)
}

// callGroup are calls that are made together; it is reused.
type callGroup struct {
	replies
	id    uint64
	calls []groupCall
	wire  []api.StreamCall // of the calls
	items []ledger.Item    // of the calls
}

// groupCall is one call of a group.
type groupCall struct {
	number       uint64
	key, attempt uint64          // 0: it has no turn
	from         *httpd.Messages // which the call keeps
	again        bool            // it has waited for its turn
	alone        bool            // it was left to a goroutine of its own
}

// maxKeptAnswer bounds each buffer of a group that is reused.
const maxKeptAnswer = 64 << 10

var callGroups = sync.Pool{New: func() any { return new(callGroup) }}

func (g *callGroup) free() {
	for i := range g.wire {
		clear(g.wire[i].Trace)
		g.wire[i] = api.StreamCall{Trace: g.wire[i].Trace[:0]}
	}
	clear(g.items)
	clear(g.calls)
	g.wire, g.items, g.calls, g.out = g.wire[:0], g.items[:0], g.calls[:0], g.out[:0]
	if cap(g.body) > maxKeptAnswer {
		g.body = nil
	}
	if cap(g.out) > maxKeptAnswer {
		g.out = nil
	}
	callGroups.Put(g)
}

// The calls that a group does not make together.
var (
	errLookUp       = errors.New("server: a look-up")
	errReserveAlone = errors.New("server: a reserve that queues")
)

var errLargeAnswer = &httpd.Refusal{P: api.Problem{
	Status: 503, Code: api.CodeLargeAnswer, Title: "Large answer",
	Detail: "the recorded answer is too large for this stream; make the call with the same token on a stream for large messages (" + api.HeaderStream + ": " + api.StreamLarge + ")",
}}

// errStoreUnreachable answers calls that changed nothing because the store could not be reached. A gate need not give such a
// reserve back.
var errStoreUnreachable = &httpd.Refusal{P: api.Problem{
	Status: 503, Code: api.CodeStoreUnreachable, Title: "Store unreachable", RetryAfterSeconds: httpd.RetryLater,
	Detail: "the manager cannot reach its store; nothing was changed",
}}

// extend adds an empty call to the group.
func (g *callGroup) extend() (*groupCall, *api.StreamCall, *ledger.Item) {
	if n := len(g.wire); n < cap(g.wire) {
		g.wire = g.wire[:n+1] // which has memory for a trace
	} else {
		g.wire = append(g.wire, api.StreamCall{})
	}
	g.calls, g.items = append(g.calls, groupCall{}), append(g.items, ledger.Item{})
	last := len(g.calls) - 1
	return &g.calls[last], &g.wire[last], &g.items[last]
}

// read reads a message of m. A ping is answered.
func (g *callGroup) read(m *httpd.Messages, b []byte) error {
	c, wire, it := g.extend()
	err := wire.View(b)
	if err != nil || wire.Op == api.OpPing {
		g.cut(len(g.calls) - 1)
		if err == nil {
			g.add(wire.Number, 200, 0, nil)
		}
		return err
	}
	c.number, c.from = wire.Number, m
	m.Keep()
	g.parse(c, wire, it)
	return nil
}

// parse reads the call itself.
func (g *callGroup) parse(c *groupCall, wire *api.StreamCall, it *ledger.Item) {
	if wire.Op == api.OpLookUp {
		it.Op = ledger.OpRelease // whose request has the same fields
		if it.Err = it.Release.ViewRaw(wire.Message); it.Err == nil {
			it.Err = errLookUp
			c.key = keyHash(it.Release.Scope, it.Release.Key)
			c.attempt = keyHash(it.Release.Scope, it.Release.Key, it.Release.Token)
		}
		return
	}
	op, ok := ledgerOps[wire.Op]
	if !ok {
		it.Err = &api.FieldError{Field: "op", Value: strconv.Itoa(int(wire.Op)), Allowed: "must be 1 to 8"}
		return
	}
	it.Op = op
	if it.Err = readRequest(it, wire.Message); it.Err != nil {
		return
	}
	a := it.Attempt()
	c.key, c.attempt = keyHash(a.Scope, a.Key), keyHash(a.Scope, a.Key, a.Token)
}

// ledgerOps are the ledger's names for the calls that change it.
var ledgerOps = map[api.Op]ledger.Op{
	api.OpReserve: ledger.OpReserve, api.OpCommit: ledger.OpCommit, api.OpReject: ledger.OpReject,
	api.OpRelease: ledger.OpRelease, api.OpRenew: ledger.OpRenew, api.OpUnknown: ledger.OpUnknown,
}

// move puts the i-th call in the place of an earlier one.
func (g *callGroup) move(to, i int) {
	if to != i {
		g.calls[to], g.items[to] = g.calls[i], g.items[i]
		g.wire[to], g.wire[i] = g.wire[i], g.wire[to]
	}
}

// cut leaves n calls.
func (g *callGroup) cut(n int) {
	clear(g.calls[n:])
	clear(g.items[n:])
	g.calls, g.items, g.wire = g.calls[:n], g.items[:n], g.wire[:n]
}

// endWaits keeps the first n calls from waiting if they are of this attempt, of which another call follows.
func (g *callGroup) endWaits(n int, attempt uint64) {
	for i := range g.calls[:n] {
		if g.calls[i].attempt == attempt {
			g.items[i].Waits = false
		}
	}
}

// refuse answers all calls with a problem.
func (g *callGroup) refuse(p *httpd.Response) {
	for i := range g.calls {
		g.add(g.calls[i].number, p.Status, p.RetryAfter, p.Body)
	}
}

func cloneTrace(trace []api.Header) []api.Header {
	out := make([]api.Header, len(trace))
	for i, h := range trace {
		out[i] = api.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)}
	}
	return out
}

// laterWire is a copy of what the i-th call came with, for a call that stays when the group is freed.
func (g *callGroup) laterWire(i int) api.StreamCall {
	wire := g.wire[i]
	wire.Trace = append([]api.Header(nil), wire.Trace...)
	return wire
}

// later takes the i-th call away. The call keeps its memory.
func (g *callGroup) later(i int) laterCall {
	return laterCall{number: g.calls[i].number, wire: g.laterWire(i), from: g.calls[i].from}
}

// with adds calls whose turn has come. A nil group begins with the first one.
func (g *callGroup) with(calls []laterCall) *callGroup {
	for i := range calls {
		if g == nil {
			g = callGroups.Get().(*callGroup)
		}
		c, wire, it := g.extend()
		*wire = calls[i].wire
		c.number, c.from, c.again = calls[i].number, calls[i].from, true
		g.parse(c, wire, it)
	}
	return g
}
