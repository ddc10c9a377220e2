package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// operation is one thing that clients want done once: all requests with its key, path and
// caller are retries of each other.
type operation struct {
	name, key, path, caller string
	runs                    []*run
	wrong                   bool            // some client uses the key for another request
	sent                    map[string]bool // the data centres from which a request was sent to upstream
	harmed                  bool            // a VM that had a request of it died
	global                  bool            // only one data centre may run it
	// id is its scope and key, once an outcome was sent. granted is when each data centre was asked last that gave it to an
	// attempt.
	id      string
	granted map[string]time.Duration
	tokens  map[string]bool
}

// client sends an operation's request, and repeats it until it gives up.
type client struct {
	w     *World
	op    *operation
	name  string
	body  []byte
	tries int
	left  int // tries that are left
	last  bool
}

// try is one request of a client, as the client sees it.
type try struct {
	c       *client
	s       *stream
	began   time.Duration
	over    bool
	status  int
	header  [][2]string
	body    []byte
	through string
}

// waitsForever is longer than any request may take in a living proxy: the reserve, the wait
// for another attempt, upstream's time and the commit, each with the timeouts of its calls.
const waitsForever = 75 * time.Second

func (w *World) newOperation(n int) *operation {
	op := &operation{key: fmt.Sprintf("key%d", n), path: "/charges", caller: "alice", sent: map[string]bool{}, granted: map[string]time.Duration{}, tokens: map[string]bool{}}
	switch w.rnd.IntN(4) {
	case 0:
		op.caller = "bob" // the same key may be somebody else's
		op.key = "key0"
	case 1:
		op.path = "/refunds/" + strconv.Itoa(n)
	}
	if w.plan.Has(Centres) && w.chance(0.5) {
		op.path, op.global = "/global"+op.path, true
	}
	op.name = op.key + op.path + "/" + op.caller
	for _, other := range w.ops {
		if other.name == op.name {
			return other
		}
	}
	w.ops = append(w.ops, op)
	return op
}

func (w *World) operation(key, path, caller string) *operation {
	for _, op := range w.ops {
		if op.key == key && op.path == path && op.caller == caller {
			return op
		}
	}
	panic("a request that no client sent")
}

// populate makes the clients.
func (w *World) populate() {
	for n := range w.plan.Ops {
		op := w.newOperation(n)
		for i := range 1 + w.rnd.IntN(2) {
			c := &client{w: w, op: op, name: fmt.Sprintf("%s%s.%d", op.caller[:1], op.key[3:], i), body: []byte("pay " + op.name), left: 3 + w.rnd.IntN(8)}
			if w.chance(0.1) {
				op.wrong = true
				c.body = []byte("pay somebody else")
			}
			w.after(w.between(0, w.plan.Length/2), c.send)
		}
	}
}

// rush has many clients send to one thread of a proxy at the same moment.
func (w *World) rush() {
	p, slot := w.someProxy(), 1+w.rnd.IntN(w.plan.Workers)
	n := 3 + w.rnd.IntN(10)
	w.rushes++
	for i := range n {
		op := w.ops[w.rnd.IntN(len(w.ops))]
		if w.chance(0.7) {
			op = w.newOperation(len(w.ops) + 10)
		}
		c := &client{w: w, op: op, name: fmt.Sprintf("rush%d.%d", w.rushes, i), body: []byte("pay " + op.name), left: 1 + w.rnd.IntN(4)}
		w.after(0, func() { c.sendTo(p, slot) })
	}
}

// send makes a try through some proxy.
func (c *client) send() {
	w := c.w
	if w.healed || c.left == 0 {
		return
	}
	c.sendThrough(w.proxies[w.rnd.IntN(len(w.proxies))])
}

func (c *client) sendThrough(p *proxy) { c.sendTo(p, 1+c.w.rnd.IntN(c.w.plan.Workers)) }

func (c *client) sendTo(p *proxy, slot int) {
	w := c.w
	c.left--
	c.tries++
	v := p.vms[slot]
	if !p.up || !v.alive() {
		w.logf(c.name, "try %d: %s is not there", c.tries, p.name)
		c.again()
		return
	}
	p.used = append(p.used, c.op)
	t := &try{c: c, began: w.now(), through: v.name}
	s := v.newStream(t)
	t.s = s
	w.logf(c.name, "try %d of %s through %s, stream %d", c.tries, c.op.name, v.name, s.id)
	headers := [][2]string{
		{":method", "POST"}, {":path", c.op.path}, {":authority", "pay.example"}, {"idempotency-key", c.op.key},
		{"authorization", c.op.caller}, {"content-type", "text/plain"}, {"content-length", strconv.Itoa(len(c.body))},
	}
	s.request.headersIn(headers, false)
	half := len(c.body)
	if w.chance(0.3) {
		half /= 2
	}
	w.after(w.between(0, 2*time.Millisecond), func() { c.upload(s, half) })
	patience := waitsForever
	if w.adversary(Leave, 0.5) {
		patience = w.between(0, 400*time.Millisecond)
		if w.chance(0.6) {
			patience = w.between(200*time.Millisecond, 6*time.Second)
		}
	}
	w.after(patience, func() { t.leave(patience) })
}

// upload sends the body, in one or two pieces.
func (c *client) upload(s *stream, first int) {
	if s.over || s.request.aborted {
		return
	}
	s.received += first
	s.request.dataIn(c.body[:first], first == len(c.body))
	if first == len(c.body) {
		return
	}
	c.w.after(c.w.between(0, 2*time.Millisecond), func() {
		if !s.over && !s.request.aborted {
			s.received = len(c.body)
			s.request.dataIn(c.body[first:], true)
		}
	})
}

// leave ends a try because the client's patience is over.
func (t *try) leave(patience time.Duration) {
	if t.over {
		return
	}
	t.over = true
	w := t.c.w
	if patience == waitsForever && t.s.v.alive() && !t.s.v.dead {
		w.fail("%s still waits for an answer to try %d through %s, after %v", t.c.name, t.c.tries, t.through, patience)
	}
	w.logf(t.c.name, "leaves stream %d", t.s.id)
	t.s.left()
	t.c.again()
}

// headers, data, complete and reset are what a client sees of an answer.
func (t *try) headers(h [][2]string) {
	t.header = h
	text, _ := find(h, ":status")
	t.status, _ = strconv.Atoi(text)
}

func (t *try) data(b []byte) { t.body = append(t.body, b...) }

func (t *try) reset(why string) {
	if t.over {
		return
	}
	t.over = true
	t.c.w.logf(t.c.name, "stream %d: %s", t.s.id, why)
	t.c.again()
}

func (t *try) complete() {
	if t.over {
		return
	}
	t.over = true
	status, _ := find(t.header, "idempotency-status")
	text := string(t.body)
	if strings.HasPrefix(text, "{") {
		text = "problem"
	}
	t.c.w.logf(t.c.name, "stream %d: gets %d (%s) %s", t.s.id, t.status, status, text)
	t.c.w.checkAnswer(t, status)
	if _, final := find(t.header, "x-run"); final {
		if t.c.w.chance(0.5) {
			t.c.left = min(t.c.left, 1)
		}
	}
	t.c.again()
}

// again has the client send once more, after a while.
func (c *client) again() {
	w := c.w
	if c.last {
		return
	}
	wait := w.between(10*time.Millisecond, 1500*time.Millisecond)
	if w.chance(0.25) {
		wait = w.between(time.Second, 12*time.Second)
	}
	w.after(wait, c.send)
}
