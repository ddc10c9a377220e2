package envoydiff

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// crowd is a number of streams that wait, and one whose callback lets all of them go.
type crowd struct {
	site    string
	size    int
	waiter  string // script of those that wait
	body    bool   // they have sent one
	trigger string // script of the one that lets them go
	nested  string // what the guest logs in each of the calls that nest
	cost    int    // of an action, as hostsim counts it: 4 for a reply, 1 for a resume
}

var crowds = []crowd{
	{site: "deep_replies", size: 500, waiter: "rh=pause;sh=", trigger: "rh=others:reply:409:x,reply:200:x", nested: "sh 3", cost: 4},
	{site: "deep_resumes", size: 1600, waiter: "rh=pause;rb=", body: true, trigger: "rh=others:resume:0,reply:200:x", nested: "rb 3", cost: 1},
}

// outcome is what came of a crowd: how many calls nested before the VM trapped, if it
// did, and how many clients got which answer.
type outcome struct {
	calls   int
	trapped bool
	answers map[string]int
}

// read counts the calls in what the guest logged.
func (c crowd) read(lines []string) (o outcome) {
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "trap"):
			o.trapped = true
		case line == c.nested && !o.trapped:
			o.calls++
		}
	}
	return o
}

// A crowd that is let go in one callback is one nested call each, until the VM's stack
// overflows. hostsim's default must be what Envoys show, and what comes of the streams
// must be the same.
func TestNestedCallsOverflowTheStack(t *testing.T) {
	wasm, guest := scriptModule(t), scriptGuest(t)
	eachEnvoy(t, func(t *testing.T, bin string) {
		var group []*site
		for _, c := range crowds {
			group = append(group, &site{name: c.site, policy: "FAIL_CLOSED", upstreams: newAcceptor(t), callees: newAcceptor(t)})
		}
		e := startEnvoy(t, bin, group, wasm)
		for i, c := range crowds {
			t.Run(c.site, func(t *testing.T) { c.compare(t, e, group[i], guest) })
		}
	})
}

func (c crowd) compare(t *testing.T, e *envoy, s *site, guest hostsim.Source) {
	real, sim := c.inEnvoy(t, e), c.inHostsim(t, startSim(t, s, guest))
	t.Logf("nested calls: %d in Envoy, %d in hostsim", real.calls, sim.calls)
	if !real.trapped || !sim.trapped {
		t.Errorf("trapped in Envoy: %v, in hostsim: %v", real.trapped, sim.trapped)
	}
	if sim.calls > real.calls || sim.calls < real.calls*4/5 {
		t.Error("Config.MaxNestedReplies has a default that is not this Envoy's")
	}
	if c.cost == 4 { // with Envoy's own number the answers must be the same
		own := *s
		own.nested = max(1, real.calls)
		if same := c.inHostsim(t, startSim(t, &own, guest)); !maps.Equal(same.answers, real.answers) {
			t.Errorf("clients got %v in Envoy, %v in hostsim", real.answers, same.answers)
		}
	}
}

func (c crowd) inEnvoy(t *testing.T, e *envoy) outcome {
	probe := &http.Client{Transport: &http.Transport{}}
	var lines []string
	var o outcome
	await := func(what string, done func() bool) {
		deadline := time.Now().Add(2 * time.Minute)
		for !done() {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not come about, so far there is %v; the guest logged %d lines, the last are %q", what, o.answers, len(lines), lines[max(0, len(lines)-5):])
			}
			e.barrier(t, probe)
			lines = append(lines, e.guestLines(t, c.site)...)
		}
	}
	peers := make([]*peer, c.size+1)
	for i := range peers {
		p := &peer{conn: e.dial(t, c.site)}
		defer p.close()
		peers[i] = p
		script, end := c.waiter, ""
		if c.body {
			end = "content-length: 4\r\n"
		}
		if i == c.size {
			await("the crowd", func() bool { return strings.Count(strings.Join(lines, "\n"), "rh ") == c.size })
			script, end = c.trigger, ""
		}
		p.send("POST / HTTP/1.1\r\nhost: example.test\r\nx-script: %s\r\n%s\r\n", script, end)
		if end != "" {
			p.send("abc")
		}
	}
	await("the end of all but those that upstream has", func() bool {
		o = c.read(lines)
		o.answers = map[string]int{}
		for _, p := range peers {
			p.drain(t)
			text := "none"
			m := parseMessage(t, p.raw, true)
			switch {
			case m != nil && m.ended:
				text = strings.Fields(m.first)[1] + " end"
			case p.closed: // whether the head got out before depends on Envoy's loop
				text = "cut"
			case m != nil:
				text = "unfinished"
			}
			o.answers[text]++
		}
		return o.trapped && o.answers["unfinished"] == 0 && (c.cost == 1 || o.answers["none"] == 0)
	})
	return o
}

func (c crowd) inHostsim(t *testing.T, sim *simSite) outcome {
	streams := make([]*hostsimtest.Stream, c.size+1)
	for i := range streams {
		script := c.waiter
		if i == c.size {
			script = c.trigger
		}
		st := hostsimtest.Open(t, sim.host, 0)
		streams[i] = st
		body := c.body && i < c.size
		st.RequestHeaders(hostsim.H(":authority", "example.test", ":path", "/", ":method", "POST", ":scheme", "http", "x-script", script), !body)
		if body {
			st.RequestData([]byte("abc"), false)
		}
	}
	hostsimtest.Settle(t, sim.host)
	o := c.read(sim.log.take())
	o.answers = map[string]int{}
	for _, st := range streams {
		m := st.Down.Message()
		text := "none"
		switch {
		case m.Ended:
			text = m.Status() + " end"
		case m.Reset != "":
			text = "cut"
		case m.Headers != nil:
			text = fmt.Sprint(m.Status(), " unfinished")
		}
		o.answers[text]++
	}
	return o
}
