package server

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Bounds of a stream. Beyond those of calls at work the manager stops reading, and what the client sends fills the windows of
// HTTP/2.
const (
	// maxGroups bounds the groups at work. While they are, later calls gather, and make larger groups.
	maxGroups = 4
	// maxLargeGroups and maxLargeCalls bound the answers that a stream for large messages has in memory.
	maxLargeGroups, maxLargeCalls = 4, 4
	// maxAtWork bounds the calls at work, those that wait for their turn included.
	maxAtWork = 2048
	// maxStreamWaits bounds the reserves that wait for other attempts. Further ones are answered pending immediately.
	maxStreamWaits = 4096
	// maxReplyHead bounds what the body of a reply has besides the recorded answer.
	maxReplyHead = 16
)

// callStream makes the calls of a stream. Those that arrived together are a group, and are made in one transaction. Groups are made
// side by side. A call about a key for which another call is at work waits until that one is answered, unless the group makes both in
// their order, so that calls of one key keep their order. A reserve that waits for another attempt has no such turn, because the calls
// which it waits for come after it; but the next call of the same attempt ends its wait, and is made after it. In this ledger, reserves
// that wait have their order. At the home of a key they may come in any order.
type callStream struct {
	h     *ledgerHandlers
	st    *httpd.Stream
	large bool
	slots chan struct{} // of the groups at work
	freed chan struct{} // signals that fewer calls are at work

	mu     sync.Mutex
	groups uint64 // the number of groups so far
	atWork int
	turns  map[uint64]turn        // by key
	waits  map[uint64]*streamWait // by attempt
}

// turn is what the stream knows of a key with calls at work.
type turn struct {
	group uint64 // of these calls
	calls int    // their number
	way   way    // how they are made
	next  []laterCall
}

// way is how a call is made. Calls of one key may be in one group only if the group makes them in the same way, because it keeps no
// order between the ways.
type way uint8

const (
	together  way = iota // in the transaction
	waiting              // in the transaction at first; a reserve then leaves it to wait in its order
	lookingUp            // by a look-up after the transaction
	away                 // perhaps at the key's home, by itself
)

// wayOf is the way in which a call will be made.
func (cs *callStream) wayOf(it *ledger.Item) way {
	switch {
	case it.Waits:
		return waiting
	case it.Err == errLookUp:
		return lookingUp
	case it.Err == home.ErrAskAlone, cs.h.home.Global() && it.Op != ledger.OpReserve: // the entry may say that its home is elsewhere
		return away
	}
	return together
}

// streamWait is a reserve that waits.
type streamWait struct {
	end  context.CancelCauseFunc
	next []laterCall
}

// laterCall is a call that waits for its turn.
type laterCall struct {
	number uint64
	wire   api.StreamCall
	from   *httpd.Messages
}

// Why a wait ends that has no answer yet.
var (
	errOvertaken    = errors.New("another call of the attempt came")
	errStreamEnding = errors.New("the stream ends")
)

var keySeed = maphash.MakeSeed()

// keyHash returns a number for a key, or an attempt.
func keyHash(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(keySeed)
	for _, p := range parts {
		_, _ = h.WriteString(p)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// calls serves a stream.
func (h *ledgerHandlers) calls(st *httpd.Stream) {
	cs := &callStream{
		h: h, st: st, large: st.Request().Header(api.HeaderStream) == api.StreamLarge,
		freed: make(chan struct{}, 1), turns: make(map[uint64]turn), waits: make(map[uint64]*streamWait),
	}
	groups, most := maxGroups, api.MaxTogether
	if cs.large {
		groups, most = maxLargeGroups, maxLargeCalls
	}
	cs.slots = make(chan struct{}, groups)
	if h.me != nil {
		st.Seal(func(dst []byte) []byte { return api.AppendStreamMark(dst, h.me.Mark().String()) })
	}
	for m := st.Next(); m != nil; m = st.Next() {
		for list := range slices.Chunk(m.List, most) {
			if !cs.take(m, list) {
				break
			}
		}
		m.Free()
	}
	if st.Failed() { // else the client waits for its answers
		cs.mu.Lock()
		defer cs.mu.Unlock()
		for _, w := range cs.waits {
			w.end(errStreamEnding)
		}
	}
}

// take begins the calls of messages. It returns false at the end of the stream.
func (cs *callStream) take(m *httpd.Messages, list [][]byte) bool {
	g := callGroups.Get().(*callGroup)
	var bad error
	for _, b := range list {
		if bad = g.read(m, b); bad != nil {
			break
		}
	}
	if p := cs.st.Refusal(); p != nil {
		g.refuse(p)
		cs.send(g)
		for range g.calls {
			m.Free()
		}
		g.free()
		cs.st.Fail(refusedCode(p.Status), "calls on this stream are answered with the status "+strconv.Itoa(p.Status))
		return false
	}
	cs.send(g) // the answers to pings
	cs.mu.Lock()
	cs.claim(g)
	cs.mu.Unlock()
	if len(g.calls) == 0 {
		g.free()
	} else {
		cs.slots <- struct{}{} // which each group frees in the end
		cs.st.Go(func() {
			defer func() { <-cs.slots }()
			cs.run(g)
		})
	}
	if bad != nil {
		cs.st.Fail(httpd.StreamInvalidArgument, bad.Error())
		return false
	}
	return cs.roomForMore()
}

// roomForMore waits until not too many calls are at work.
func (cs *callStream) roomForMore() bool {
	for {
		cs.mu.Lock()
		ok := cs.atWork < maxAtWork
		cs.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-cs.freed:
		case <-cs.st.Ending():
			return false
		}
	}
}

// refusedCode is how a stream ends whose calls are refused with a status of HTTP.
func refusedCode(status int) httpd.StreamCode {
	switch {
	case status == 421:
		return httpd.StreamFailedPrecondition
	case status >= 500:
		return httpd.StreamUnavailable
	default:
		return httpd.StreamInvalidArgument
	}
}

// claim takes the turns of the group's calls. Calls that must wait for theirs leave the group. cs.mu is held.
func (cs *callStream) claim(g *callGroup) {
	cs.groups++
	g.id = cs.groups
	kept := 0
	for i := range g.calls {
		c, it := &g.calls[i], &g.items[i]
		if !c.again {
			cs.atWork++
		}
		if c.key != 0 {
			if w := cs.waits[c.attempt]; w != nil {
				w.end(errOvertaken)
				w.next = append(w.next, g.later(i))
				continue
			}
			it.Waits = it.Op == ledger.OpReserve && it.Err == nil && it.Reserve.Wait > 0 && cs.h.ledger.Options().MaxWait > 0 && len(cs.waits) < maxStreamWaits
			cs.h.home.LeaveOut(it)
			t, taken := cs.turns[c.key]
			if taken && t.group == g.id {
				g.endWaits(kept, c.attempt)
			}
			way := cs.wayOf(it)
			if taken && (t.group != g.id || len(t.next) > 0 || t.way != way || way == away) {
				t.next = append(t.next, g.later(i))
				cs.turns[c.key] = t
				continue
			}
			t.group, t.way = g.id, way
			t.calls++
			cs.turns[c.key] = t
		}
		g.move(kept, i)
		kept++
	}
	g.cut(kept)
}

// run makes the calls of a group, and those that were waiting for their turn after them.
func (cs *callStream) run(g *callGroup) {
	for g != nil {
		cs.make(g)
		cs.mu.Lock()
		next := cs.end(g.calls)
		cs.mu.Unlock()
		g.free()
		g = next
	}
}

// end ends the turns of calls that were answered. It returns the calls that have theirs now, nil if there are none. cs.mu is held.
func (cs *callStream) end(calls []groupCall) (next *callGroup) {
	for i := range calls {
		c := &calls[i]
		if c.from != nil {
			c.from.Free()
			c.from = nil
		}
		if c.alone {
			continue
		}
		cs.atWork--
		t, ok := cs.turns[c.key]
		if c.key == 0 || !ok {
			continue
		}
		if t.calls--; t.calls > 0 {
			cs.turns[c.key] = t
			continue
		}
		delete(cs.turns, c.key)
		next = next.with(t.next)
	}
	if cs.atWork < maxAtWork {
		select {
		case cs.freed <- struct{}{}:
		default:
		}
	}
	return cs.again(next)
}

// again claims turns for calls that waited for theirs.
func (cs *callStream) again(g *callGroup) *callGroup {
	if g == nil {
		return nil
	}
	if cs.claim(g); len(g.calls) == 0 {
		g.free()
		return nil
	}
	return g
}

// make makes the calls of a group. Those that another data centre decides, and reserves that wait, are left to others.
func (cs *callStream) make(g *callGroup) {
	r := cs.st.Request()
	leave, p := cs.st.Enter()
	if leave == nil {
		if p != nil {
			g.refuse(&httpd.Response{Status: p.Status, RetryAfter: p.RetryAfterSeconds, Body: p.AppendJSON(nil)})
			cs.send(g)
		}
		return
	}
	defer leave()
	arrived := time.Now()
	defer func() { cs.st.Observe(time.Since(arrived)) }()
	start := began(r)
	ctx := ledger.WithCaller(cs.st.Context(), r.Remote())
	for i := range g.items {
		if it := &g.items[i]; it.Waits && it.Err == nil && cs.h.ledger.Queued(it.Reserve.Scope, it.Reserve.Key) {
			it.Err = errReserveAlone // it must not overtake those that wait
		}
	}
	cs.h.ledger.Batch(ctx, g.items)
	for i := range g.items {
		c, it := &g.calls[i], &g.items[i]
		if errors.Is(it.Err, store.ErrUnreached) {
			it.Err = errStoreUnreachable
		}
		_, elsewhere := cs.h.home.Elsewhere(it.Err)
		switch {
		case it.Err == errLookUp:
			cs.h.lookUpItem(ctx, it)
		case it.Waits && (it.Err == nil && it.Reply.State == api.StatePending || it.Err == errReserveAlone || it.Err == home.ErrAskAlone):
			cs.wait(g, i)
			continue
		case it.Err == home.ErrAskAlone || elsewhere:
			cs.far(g, i)
			continue
		}
		cs.answer(&g.replies, c.number, it, g.wire[i].Trace)
		if r.Traced() {
			op := g.wire[i].Op.String()
			cs.st.CallSpan("ledger "+op, start, g.wire[i].Trace, failed(it.Err), ledgerAttributes(op, it.Reply.State, it.Err)...)
		}
	}
	cs.send(g)
}

// send sends the group's replies.
func (cs *callStream) send(g *callGroup) {
	if len(g.out) > 0 {
		cs.st.Send(g.out, g.last)
		g.out = g.out[:0]
	}
}

// answer appends the reply to a call that was made.
func (cs *callStream) answer(to *replies, number uint64, it *ledger.Item, trace []api.Header) {
	if it.Err == nil && !cs.large && len(it.Reply.Result) > api.MaxSmallReply-maxReplyHead {
		it.Err = errLargeAnswer
	}
	if it.Err == nil {
		cs.h.boundReply(httpd.FormRaw, it)
		status, after := itemStatus(it)
		to.body = api.AppendRawReply(to.body[:0], it.Reply.State, it.Reply.ExpiresIn, it.Reply.Result)
		to.add(number, status, after, to.body)
		return
	}
	p := cs.st.Request().Problem(it.Err, trace)
	to.body = p.AppendJSON(to.body[:0])
	to.add(number, p.Status, p.RetryAfterSeconds, to.body)
}

// far makes a call at the key's home. Until it is answered it has its turn.
func (cs *callStream) far(g *callGroup, i int) {
	c, it, wire := g.calls[i], g.items[i], g.laterWire(i)
	g.calls[i].alone, g.calls[i].from = true, nil // both are the copy's
	cs.st.Go(func() {
		if it.Op != ledger.OpReserve || cs.st.Open().Err() == nil { // nobody would use a reservation for a client that has left
			cs.alone(&c, &it, &wire, func(ctx context.Context) { cs.h.home.Make(ctx, &it) })
		}
		cs.mu.Lock()
		next := cs.end([]groupCall{c})
		cs.mu.Unlock()
		cs.run(next)
	})
}

// alone makes one call by itself, and answers it.
func (cs *callStream) alone(c *groupCall, it *ledger.Item, wire *api.StreamCall, call func(context.Context)) {
	r := cs.st.Request()
	start := began(r)
	leave, p := cs.st.Enter()
	switch {
	case leave != nil:
		it.Err = nil
		func() {
			defer leave()
			call(ledger.WithCaller(cs.st.Context(), r.Remote()))
		}()
	case p != nil:
		it.Err = &httpd.Refusal{P: *p}
	default:
		return
	}
	var out replies
	cs.answer(&out, c.number, it, wire.Trace)
	cs.st.Send(out.out, out.last)
	if r.Traced() {
		op := wire.Op.String()
		cs.st.CallSpan("ledger "+op, start, wire.Trace, failed(it.Err), ledgerAttributes(op, it.Reply.State, it.Err)...)
	}
}

// wait makes a reserve that may wait, and whose turn ends now. In this ledger it has its place in the queue before that. Its memory
// is its own.
func (cs *callStream) wait(g *callGroup, i int) {
	c, it := g.calls[i], ledger.Item{Op: ledger.OpReserve}
	req := g.items[i].Reserve
	req.Key, req.Scope, req.Token, req.Fingerprint = strings.Clone(req.Key), strings.Clone(req.Scope), strings.Clone(req.Token), strings.Clone(req.Fingerprint)
	wire := api.StreamCall{Op: api.OpReserve, Trace: cloneTrace(g.wire[i].Trace)}
	why, known, asked := g.items[i].Err, g.items[i].Reply, time.Now()
	var place *ledger.Place
	if why != home.ErrAskAlone {
		place = cs.h.ledger.Join(req.Scope, req.Key)
	}
	ctx, end := context.WithCancelCause(cs.st.Open())
	w := &streamWait{end: end}
	cs.mu.Lock()
	cs.waits[c.attempt] = w
	cs.mu.Unlock()
	if cs.st.Failed() { // perhaps too late for calls to end this wait
		end(errStreamEnding)
	}
	hold := func() (context.Context, func()) { return ctx, cs.st.Hold() }
	cs.st.Go(func() {
		defer end(nil)
		defer place.Leave() // if the call is not made
		cs.alone(&c, &it, &wire, func(work context.Context) {
			switch why {
			case nil:
				it.Reply, it.Err = place.Await(work, &req, hold)
			case errReserveAlone:
				it.Reply, it.Err = place.Reserve(work, &req, hold)
			default:
				it.Reply, it.Err = cs.h.home.Reserve(work, &req, hold)
			}
			place.Leave() // the next one need not wait until the client takes the answer
			cause := context.Cause(ctx)
			if it.Err == nil || cause != errOvertaken && cause != errStreamEnding {
				return
			}
			left := known.ExpiresIn - time.Since(asked)
			switch {
			case why == nil && left > 0:
				it.Reply, it.Err = ledger.Reply{State: api.StatePending, ExpiresIn: left}, nil
			case why == home.ErrAskAlone: // its home would have to be asked again
				it.Reply, it.Err = ledger.Reply{State: api.StatePending}, nil
			case cause == errOvertaken:
				req.Wait = 0
				it.Reply, it.Err = cs.h.ledger.Reserve(work, &req, nil)
			}
		})
		cs.mu.Lock()
		if cs.waits[c.attempt] == w {
			delete(cs.waits, c.attempt)
		}
		var next *callGroup
		next = cs.again(next.with(w.next))
		cs.mu.Unlock()
		cs.run(next)
	})
}
