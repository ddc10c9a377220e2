package sim

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

// upstream does the work, and counts how often.
type upstream struct {
	w    *World
	runs []*run
}

// run is one execution.
type run struct {
	id         int
	op         *operation
	start      time.Duration
	status     int
	body       string
	sum        string // of the request
	bypassed   bool   // it came through unprotected, as failure_mode open says
	protection time.Duration
	ahead      time.Duration // what the manager's clock had been set forward by at the start
	answered   bool          // the whole answer reached the gate
	answeredAt time.Duration // when it did
	stream     *stream
	vm         *vm
	exchange   *exchange
	recorded   *manager // has acknowledged the outcome
	lost       bool     // what had it is lost
	// In worlds with several data centres: recordedAt is when the call began in which its outcome was acknowledged first, and
	// forgotten is the loss since which the ledger that decided about it does not know it.
	recordedAt time.Duration
	forgotten  *loss
}

// exchange is a request on its way to upstream and its answer. It is the router's exchange for a
// stream, or a callout of the gate.
type exchange struct {
	w       *World
	stream  *stream  // nil: the proxy has given it up, or it is a callout
	call    *callout // nil: it is the router's
	origin  *stream  // the value of stream at the start
	vm      *vm
	headers [][2]string
	body    []byte
	run     *run
}

func (u *upstream) open(s *stream, headers [][2]string) *exchange {
	s.address = "10.0.0.9:80"
	return &exchange{w: u.w, stream: s, origin: s, vm: s.v, headers: headers}
}

// Bits of response.flags.
const (
	flagTimeout     = 0x4
	flagConnect     = 0x20
	flagTermination = 0x40
)

// fail is the proxy's own answer to a request that got none.
func (x *exchange) fail(flags uint64) {
	status, details, short, reason := 503, "upstream_reset_before_response_started{connection_termination}", "UC", "connection termination"
	switch flags {
	case flagTimeout:
		status, details, short = 504, "response_timeout", "UT"
	case flagConnect:
		details, short, reason = "upstream_reset_before_response_started{remote_connection_failure}", "UF", "remote connection failure"
	}
	text := "upstream connect error or disconnect/reset before headers. reset reason: " + reason
	if c := x.call; c != nil {
		a := &answer{status: status, headers: [][2]string{{":status", strconv.Itoa(status)}}, body: []byte(text)}
		if x.w.plan.Carry == carryInner {
			a.headers = append(a.headers, [2]string{"oncegate-answer", details + " " + short + " 1 10.0.0.9:80"})
		}
		c.finish(a)
	} else if s := x.stream; s != nil && !s.over {
		if flags == flagConnect {
			s.address = ""
		}
		s.localReply(status, details, flags, nil, []byte(text))
	}
}

// begin is the moment at which the proxy has sent the whole request.
func (x *exchange) begin() {
	w := x.w
	if w.adversary(Cut, 0.06) {
		w.after(w.between(0, 5*time.Millisecond), func() {
			w.logf("upstream", "refuses the connection of %s", x.name())
			x.op().harmed = x.op().harmed || !x.live() // the gate does not hear of it
			x.fail(flagConnect)
		})
		return
	}
	x.op().sent[x.vm.p.near()] = true
	if w.adversary(Cut, 0.06) {
		w.after(w.between(0, 5*time.Millisecond), func() {
			w.logf("upstream", "cuts the connection of %s before it has read the request", x.name())
			x.fail(flagTermination)
		})
		return
	}
	w.after(w.plan.RouteTimeout, func() { x.fail(flagTimeout) })
	w.after(w.between(100*time.Microsecond, 2*time.Millisecond), x.work)
}

func (x *exchange) name() string { return x.op().name }

// live reports whether the proxy still waits for the answer.
func (x *exchange) live() bool {
	return x.call != nil && !x.call.done || x.stream != nil && !x.stream.over
}

// op is the operation that the request is for.
func (x *exchange) op() *operation {
	key, _ := find(x.headers, "idempotency-key")
	path, _ := find(x.headers, ":path")
	caller, _ := find(x.headers, "authorization")
	return x.w.operation(key, path, caller)
}

// work is where the request is executed, unless upstream asks to be asked again.
func (x *exchange) work() {
	w := x.w
	op := x.op()
	took := w.between(time.Millisecond, 60*time.Millisecond)
	if w.adversary(Slow, 0.3) {
		took = w.between(100*time.Millisecond, 2*time.Second)
		if w.chance(0.5) {
			took = w.between(time.Second, 12*time.Second)
		}
	}
	status := 200
	if w.adversary(Refuse, 0.35) {
		status = []int{201, 302, 400, 404, 422, 500, 503, 429, 408}[w.rnd.IntN(9)]
	}
	headers := [][2]string{{":status", strconv.Itoa(status)}, {"content-type", "text/plain"}}
	again := status == 429 || status == 408 || status == 503 && w.chance(0.5)
	if again {
		w.logf("upstream", "asks %s to come again: %d", op.key, status)
		headers = append(headers, [2]string{"retry-after", "1"})
		w.after(took, func() { x.answer(headers, []byte("later"), false) })
		return
	}
	r := &run{
		id: len(w.upstream.runs) + 1, op: op, start: w.now(), status: status, sum: sum(x.body),
		ahead: w.ahead(), protection: w.plan.CommittedTTL, stream: x.origin, vm: x.vm,
	}
	if status >= 400 && status < 500 {
		// Where the answer gets lost, it is an unknown outcome, which lasts as long as CommittedTTL.
		r.protection = min(r.protection, w.plan.RejectedTTL)
	}
	x.run, r.exchange = r, x
	w.upstream.runs = append(w.upstream.runs, r)
	op.runs = append(op.runs, r)
	r.body = fmt.Sprintf("run %d of %s, request %s", r.id, op.key, r.sum)
	w.logf("upstream", "EXECUTES %s: run %d, will take %v, will answer %d", op.name, r.id, took, status)
	w.checkRun(r)
	headers = append(headers, [2]string{"x-run", strconv.Itoa(r.id)})
	if w.chance(0.5) {
		headers = append(headers, [2]string{"content-length", strconv.Itoa(len(r.body))})
	}
	if w.adversary(Cut, 0.1) {
		w.after(took, func() {
			w.logf("upstream", "cuts the connection of run %d", r.id)
			x.fail(flagTermination)
		})
		return
	}
	w.after(took, func() { x.answer(headers, []byte(r.body), w.adversary(Cut, 0.1)) })
}

// answer sends the answer, in one or two pieces.
func (x *exchange) answer(headers [][2]string, body []byte, cut bool) {
	if x.call != nil {
		x.answerCall(headers, body, cut)
		return
	}
	s := x.stream
	if s == nil || s.over || s.response.started {
		return
	}
	w := x.w
	s.details, s.code = "via_upstream", 200
	if text, ok := find(headers, ":status"); ok {
		s.code, _ = strconv.Atoi(text)
	}
	s.response.headersIn(headers, false)
	if x.stream == nil {
		return
	}
	split := len(body)
	if w.chance(0.5) {
		split = len(body) / 2
	}
	rest := body[split:]
	pause := w.between(0, 3*time.Millisecond)
	if w.adversary(Slow, 0.1) {
		pause = w.between(0, 4*time.Second)
	}
	w.after(pause, func() {
		if x.stream == nil {
			return
		}
		if x.run != nil && len(rest) == 0 && !cut {
			x.run.answered, x.run.answeredAt = true, x.w.now()
		}
		s.response.dataIn(body[:split], len(rest) == 0 && !cut)
		if len(rest) == 0 && !cut {
			return
		}
		w.after(w.between(0, 3*time.Millisecond), func() {
			if x.stream == nil {
				return
			}
			if cut {
				w.logf("upstream", "cuts its answer to %s", x.name())
				s.cut()
				return
			}
			if x.run != nil {
				x.run.answered, x.run.answeredAt = true, x.w.now()
			}
			s.response.dataIn(rest, true)
		})
	})
}

func sum(b []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) }

// answerCall answers a callout, which gets the whole answer only.
func (x *exchange) answerCall(headers [][2]string, body []byte, cut bool) {
	w, c := x.w, x.call
	if c.done {
		return
	}
	if cut {
		w.logf("upstream", "cuts its answer to %s", x.name())
		c.finish(&answer{})
		return
	}
	mark := [2]string{"x-envoy-upstream-service-time", "7"}
	if w.plan.Carry == carryInner {
		mark = [2]string{"oncegate-answer", "via_upstream - 1 10.0.0.9:80"}
	}
	status, _ := find(headers, ":status")
	code, _ := strconv.Atoi(status)
	if x.run != nil && c.v.alive() {
		x.run.answered, x.run.answeredAt = true, x.w.now()
	}
	c.finish(&answer{status: code, headers: append(headers, mark), body: body})
}
