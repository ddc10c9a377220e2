package envoydiff

import (
	"flag"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds how long Envoy may take to show what hostsim shows. Only a case that
// fails waits that long.
var patience = flag.Duration("patience", 30*time.Second, "how long Envoy may take to agree with hostsim after a step")

// site is one listener of the Envoy with its own VM, and one host of hostsim: the cases
// of a site run one after the other, those of different sites side by side.
type site struct {
	name    string
	allow   bool          // allow_on_headers_stop_iteration
	limit   int           // per_connection_buffer_limit_bytes of listener and cluster; 0: the default
	idle    time.Duration // stream_idle_timeout; 0: none
	policy  string
	backoff time.Duration // base_interval of reload_config
	plugin  string        // the plugin's own script
	nested  int           // hostsim's MaxNestedReplies; 0: the default
	rpc     bool          // it has a server of gRPC streams
	cases   []diffCase

	upstreams, callees *acceptor
	server             *rpcServer
}

// diffCase is a script of actions. fact is its row in hostsim/CONFORMANCE.md.
type diffCase struct {
	fact, name string
	show       string // headers of answers and upstream requests that are compared, by name
	// blind leaves out what upstream gets: a request that is cancelled before Envoy has a
	// connection for it never shows there.
	blind bool
	steps []string
}

// A step is "[STREAM] VERB [ARGUMENT]"; without a stream it is stream "a".
//
//	get SCRIPT, post SCRIPT   a client's request, without a body or with a chunked one
//	whole SCRIPT              one with a body, in one packet
//	send DATA                 a piece of its body: text, or *N for N bytes
//	finish, trailers K=V      the end of its body
//	leave                     the client closes its connection
//	status N [end]            upstream's headers, and with "end" its whole answer
//	write DATA, writefinish, writetrailers K=V   upstream's body
//	break                     upstream closes its connection
//	answer N [BODY]           the callee answers the oldest callout
//	await TEXT                hostsim shows TEXT once some timer has run out
//	hangup                    it closes the connection instead
//	rpc N VERB ARGUMENTS      what the server of gRPC streams does on its n-th stream of the case (rpcServer.do)
type step struct{ stream, verb, arg string }

func parseStep(text string) step {
	verb, arg, _ := strings.Cut(text, " ")
	if len(verb) == 1 {
		s := parseStep(arg)
		s.stream = verb
		return s
	}
	return step{stream: "a", verb: verb, arg: arg}
}

// script is the guest's script for a request, which names the stream in the guest's log.
func (s step) script() string { return "name=" + s.stream + ";" + s.arg }

// side says whose body a step is a part of, which flow control may hold back; "" for
// the others.
func (s step) side() string {
	switch s.verb {
	case "send", "finish", "trailers":
		return "client"
	case "write", "writefinish", "writetrailers", "break":
		return "upstream"
	}
	return ""
}

// payload is what "send" and "write" send.
func payload(tb testing.TB, arg string) []byte {
	if count, ok := strings.CutPrefix(arg, "*"); ok {
		n, err := strconv.Atoi(count)
		if err != nil {
			tb.Fatalf("bad step argument %q", arg)
		}
		return []byte(strings.Repeat("x", n))
	}
	return []byte(arg)
}

func pair(arg string) (name, value string) {
	name, value, _ = strings.Cut(arg, "=")
	return name, value
}

// view is what can be seen after a step.
type view struct {
	guest []string
	calls int               // callouts that wait for an answer
	peers map[string]string // "a up", "a down": what the stream's upstream and client have got
}

func (v view) String() string {
	var b strings.Builder
	for _, line := range v.guest {
		fmt.Fprintf(&b, "      %s\n", line)
	}
	if v.calls > 0 {
		fmt.Fprintf(&b, "      callouts: %d\n", v.calls)
	}
	names := make([]string, 0, len(v.peers))
	for name := range v.peers {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if v.peers[name] != "" {
			fmt.Fprintf(&b, "      %s: %s\n", name, v.peers[name])
		}
	}
	return b.String()
}

// world plays steps and says what can be seen.
type world interface {
	do(tb testing.TB, s step)
	view(tb testing.TB) view
	end(tb testing.TB)
}

// run plays a case in both worlds. After the first difference it still plays the
// rest, for the report.
//
// A case that waits for timers is compared from then on only: Envoy's run in real time, so on
// a busy machine they are over while an earlier step is played, and in another order.
func (c diffCase) run(t *testing.T, sim, real world, barrier func()) {
	defer real.end(t)
	defer sim.end(t)
	timed := -1
	for i, text := range c.steps {
		if parseStep(text).verb == "await" {
			timed = i
		}
	}
	look := func(w world) string {
		v := w.view(t)
		if timed >= 0 {
			sort.SliceStable(v.guest, func(i, j int) bool { return streamOf(v.guest[i]) < streamOf(v.guest[j]) })
		}
		return v.String()
	}
	var want, got string
	for i, text := range c.steps {
		s := parseStep(text)
		sim.do(t, s)
		want = look(sim)
		real.do(t, s)
		if t.Failed() || i < timed {
			barrier()
			got = look(real)
			continue
		}
		got = agree(look, real, barrier, want)
		if got == want {
			barrier() // what comes late belongs to this step, too
			got = look(real)
		}
		if got != want {
			t.Errorf("after step %d %q (- hostsim, + Envoy):\n%s", i+1, text, diff(want, got))
		}
	}
	if t.Failed() {
		t.Logf("at the end (- hostsim, + Envoy):\n%s", diff(want, got))
	}
}

// streamOf is the stream that a line of the guest is about.
func streamOf(line string) string {
	stream, _, _ := strings.Cut(line, " ")
	return stream
}

// agree asks Envoy until it shows what is wanted, or patience ends.
func agree(look func(world) string, real world, barrier func(), want string) string {
	deadline := time.Now().Add(*patience)
	for {
		barrier()
		got := look(real)
		if got == want || time.Now().After(deadline) {
			return got
		}
	}
}

// diff shows two texts as one: what they have in common at both ends, and between it
// what only the one or the other has.
func diff(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	head, tail := 0, 0
	for head < min(len(x), len(y)) && x[head] == y[head] {
		head++
	}
	for tail < min(len(x), len(y))-head && x[len(x)-1-tail] == y[len(y)-1-tail] {
		tail++
	}
	var out strings.Builder
	write := func(mark string, lines []string) {
		for _, l := range lines {
			if l != "" {
				out.WriteString(mark + l)
			}
		}
	}
	write("  ", x[:head])
	write("- ", x[head:len(x)-tail])
	write("+ ", y[head:len(y)-tail])
	write("  ", x[len(x)-tail:])
	return out.String()
}
