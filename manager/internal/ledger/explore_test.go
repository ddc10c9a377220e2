package ledger

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// The protocol as an explicit small model: one key, two gates that make a few attempts
// each, and two managers on one store. What the ledger does with a call is said by the
// decision functions of this package; gates, messages, crashes and time are modelled. All
// states that can be reached are looked at, the nearest first, so a counterexample is as
// short as there is one.
//
// Time passes in steps. Messages are delivered after any time, twice, or never. A manager
// that crashes loses no transaction, only answers.

// protocol is what is explored.
type protocol struct {
	attempts               [2]int // of each gate
	pending, unknown, done int64  // TTLs in steps
	timeout                uint8  // of a reserve, in steps

	// downtimeCounts leaves a rule out, to see what it is for.
	downtimeCounts bool
	naming         bool   // steps are named, for people
	list           []step // reused
}

type gatePhase uint8

const (
	gateIdle gatePhase = iota
	gateReserving
	gateRunning
	gateCommits
	gateReports // that the outcome is unknown
	gateReleases
)

type message uint8

const (
	askReserve message = iota
	askRenew
	askCommit
	askUnknown
	askRelease
	messages
)

var messageNames = [messages]string{"reserve", "renew", "commit", "unknown", "release"}

// exploredGate is a gate, which works on its latest attempt only.
type exploredGate struct {
	phase gatePhase
	tries uint8
	age   uint8 // of the reserve under way
	// answer is what the ledger said to it, and has not been looked at; 0: nothing.
	answer  verdict
	replied bool
	// held is for how long nobody else can have the key, as the gate's last contact
	// with a manager promises.
	held int8
}

// explored is a state.
type explored struct {
	state api.State
	token uint8
	left  int8 // the stored expiry, from now
	gates [2]exploredGate
	net   uint64 // messages under way, by token
	up    [2]bool
	// guard is for how long no execution may begin after the latest one, which was last's;
	// ran are the tokens that executed.
	guard     int8
	last, ran uint8
}

const exploreNow = 1000

// record is the ledger's record of the state, for the decision functions.
func (s *explored) record(p *protocol) *record {
	if s.state == api.StateNone {
		return nil
	}
	r := &record{state: s.state, token: []byte{'0' + s.token}, expires: exploreNow + int64(s.left)}
	if s.state == api.StatePending {
		r.unknown = p.unknown
	}
	return r
}

func (p *protocol) token(g int, s *explored) uint8 { return uint8(g)*4 + s.gates[g].tries - 1 }

func bit(m message, token uint8) uint64 { return 1 << (uint64(token)*uint64(messages) + uint64(m)) }

func (s *explored) write(state api.State, token uint8, ttl int64) {
	s.state, s.token, s.left = state, token, int8(ttl)
}

// step is one that can be taken.
type step struct {
	what string
	to   explored
	bad  string // what is wrong with it
}

// carryOut is a manager's carrying out a message.
func (p *protocol) carryOut(s *explored, m message, token uint8) (v verdict) {
	e, t := s.record(p), string('0'+rune(token))
	switch m {
	case askReserve:
		if v = decideReserve(e, exploreNow, t, "", false); v == verdictInsert {
			s.write(api.StatePending, token, p.pending)
		}
	case askRenew:
		switch v = decideRenew(e, exploreNow, t, ""); v {
		case verdictLate:
			s.write(api.StatePending, token, p.pending)
		case verdictExtend:
			left := p.pending
			if s.state == api.StatePending {
				left = max(left, int64(s.left))
			}
			s.write(api.StatePending, token, left)
		}
	case askCommit:
		if v = decideFinish(e, exploreNow, api.StateCommitted, t, ""); v == verdictLate || v == verdictRecord {
			s.write(api.StateCommitted, token, p.done)
		}
	case askUnknown:
		if v = decideFinish(e, exploreNow, api.StateUnknown, t, ""); (v == verdictLate || v == verdictRecord) && p.unknown > 0 {
			s.write(api.StateUnknown, token, p.unknown)
		}
	case askRelease:
		if v = decideRelease(e, exploreNow, t); v == verdictDelete {
			s.write(api.StateNone, 0, 0)
		}
	}
	return v
}

// canonical forgets what makes no difference any more.
func (s *explored) canonical(p *protocol) {
	if e := s.record(p); e != nil && !live(e, exploreNow) {
		s.state, s.token, s.left = api.StateNone, 0, 0
	}
	for g := range s.gates {
		gate := &s.gates[g]
		if gate.phase != gateReserving {
			gate.age, gate.answer, gate.replied = 0, 0, false
		}
		if gate.phase != gateRunning {
			gate.held = 0
		}
	}
}

// answered gives a gate the answer to a message, if it waits for one.
func (p *protocol) answered(s *explored, m message, token uint8, v verdict) {
	g := int(token / 4)
	gate := &s.gates[g]
	if gate.tries == 0 || p.token(g, s) != token {
		return
	}
	switch {
	case m == askReserve && gate.phase == gateReserving && !gate.replied:
		gate.replied, gate.answer = true, v
	case m == askRenew && gate.phase == gateRunning && v != verdictFenced && v != verdictConflict:
		gate.held = int8(p.pending + p.unknown)
	case m == askCommit && gate.phase == gateCommits, m == askUnknown && gate.phase == gateReports,
		m == askRelease && gate.phase == gateReleases:
		gate.phase = gateIdle
	}
}

// looks is a gate's looking at the answer to its reserve. present says that the client is
// still there, sent that the request reaches upstream.
func (p *protocol) looks(s *explored, g int, present, sent bool) (bad string) {
	gate := &s.gates[g]
	token := p.token(g, s)
	switch gate.answer {
	case verdictInsert, verdictOwn:
		if !present || !sent {
			gate.phase = gateReleases
			s.net |= bit(askRelease, token)
			return ""
		}
		if s.guard > 0 {
			bad = "the work is executed twice within its window"
		}
		for o := range s.gates {
			if o != g && s.gates[o].phase == gateRunning && s.gates[o].held > 0 {
				bad = "the work is executed while another gate that holds the key is at it"
			}
		}
		s.guard = int8(min(p.unknown, p.done))
		s.last = token
		s.ran |= 1 << token
		gate.phase, gate.held = gateRunning, int8(p.pending+p.unknown)-int8(p.timeout)
	case verdictPending:
		// It asks again, or has the client come again.
		gate.replied, gate.answer, gate.age = false, 0, 0
		s.net |= bit(askReserve, token)
	default:
		if gate.answer == verdictFinal && s.state == api.StateCommitted && s.ran&(1<<s.token) == 0 {
			bad = "an outcome is replayed of work that was never executed"
		}
		gate.phase = gateIdle
	}
	return bad
}

// steps lists what may happen next.
func (p *protocol) steps(s explored) (list []step) {
	list = p.list[:0]
	add := func(what string, to explored, bad string) {
		to.canonical(p)
		list = append(list, step{what, to, bad})
	}
	named := func(format string, args ...any) string {
		if !p.naming {
			return ""
		}
		return fmt.Sprintf(format, args...)
	}
	for g := range s.gates {
		name := string(rune('A' + g))
		gate := s.gates[g]
		token := uint8(0)
		if gate.tries > 0 {
			token = p.token(g, &s)
		}
		switch gate.phase {
		case gateIdle:
			if int(gate.tries) < p.attempts[g] {
				to := s
				to.gates[g] = exploredGate{phase: gateReserving, tries: gate.tries + 1}
				to.net |= bit(askReserve, p.token(g, &to))
				add(name+" begins an attempt", to, "")
			}
			continue
		case gateReserving:
			if gate.replied {
				for _, how := range []struct {
					what          string
					present, sent bool
				}{{"looks at its answer", true, true}, {"has lost its client", false, true}, {"does not reach upstream", true, false}} {
					to := s
					bad := p.looks(&to, g, how.present, how.sent)
					add(name+" "+how.what, to, bad)
				}
			}
		case gateRunning:
			to := s
			to.gates[g].phase = gateCommits
			to.net |= bit(askCommit, token)
			add(name+" gets upstream's answer", to, "")
			to = s
			to.gates[g].phase = gateReports
			to.net |= bit(askUnknown, token)
			add(name+" gets no answer", to, "")
			if s.net&bit(askRenew, token) == 0 {
				to = s
				to.net |= bit(askRenew, token)
				add(name+" renews", to, "")
			}
		default:
			m := map[gatePhase]message{gateCommits: askCommit, gateReports: askUnknown, gateReleases: askRelease}[gate.phase]
			if s.net&bit(m, token) == 0 {
				to := s
				to.net |= bit(m, token)
				add(name+" repeats its "+messageNames[m], to, "")
			}
		}
		to := s
		to.gates[g] = exploredGate{tries: gate.tries}
		add(name+" dies", to, "")
	}
	for token := uint8(0); token < 8; token++ {
		for m := range messages {
			b := bit(m, token)
			if s.net&b == 0 {
				continue
			}
			name := named("%s %d of %c", messageNames[m], token%4+1, 'A'+rune(token/4))
			lost := s
			lost.net &^= b
			add(name+" gets lost", lost, "")
			if !s.up[0] && !s.up[1] {
				continue
			}
			for _, again := range []bool{false, true} {
				to := s
				if !again {
					to.net &^= b
				}
				v := p.carryOut(&to, m, token)
				bad := ""
				if m == askCommit && v == verdictFenced && s.guard > 0 && token == s.last {
					bad = "an outcome is refused while its window lasts"
				}
				add(name+" arrives, its answer gets lost", to, bad)
				p.answered(&to, m, token, v)
				add(name+" arrives", to, bad)
			}
		}
	}
	if e := s.record(p); decideResolve(e, exploreNow) == verdictRecord && s.ran&(1<<s.token) != 0 {
		to := s
		to.write(api.StateCommitted, s.token, p.done)
		add("an operator says that it ran", to, "")
	}
	if state, expires := standing(s.record(p), exploreNow); state != s.state {
		to := s
		to.write(state, s.token, expires-exploreNow)
		add("the sweeper comes by", to, "")
	}
	for i := range s.up {
		to := s
		to.up[i] = !s.up[i]
		add(named("manager %d %s", i+1, map[bool]string{true: "crashes", false: "starts"}[s.up[i]]), to, "")
	}
	add("time passes", p.pass(s), "")
	return list
}

// pass lets one step of time pass.
func (p *protocol) pass(s explored) explored {
	// Downtime does not count for a reservation that holds.
	state, _ := standing(s.record(p), exploreNow)
	stands := !s.up[0] && !s.up[1] && state == api.StatePending
	if s.state != api.StateNone && (!stands || p.downtimeCounts) {
		s.left--
	}
	s.guard = max(s.guard-1, 0)
	for g := range s.gates {
		gate := &s.gates[g]
		if gate.held > 0 && !stands {
			gate.held--
		}
		if gate.phase != gateReserving {
			continue
		}
		if gate.age++; gate.age > p.timeout {
			gate.phase = gateReleases
			s.net |= bit(askRelease, p.token(g, &s))
		}
	}
	return s
}

// heal lets all go well from here on, and returns what is wrong in the end.
func (p *protocol) heal(s explored) string {
	s.up = [2]bool{true, true}
	known := -1
	for g := range s.gates {
		if s.gates[g].phase == gateCommits && s.guard > 0 && s.last == p.token(g, &s) {
			known = int(p.token(g, &s))
		}
	}
	for round := range 30 {
		waits := false // for another attempt's reservation to end
		for token := uint8(0); token < 8; token++ {
			for m := range messages {
				if b := bit(m, token); s.net&b != 0 {
					s.net &^= b
					p.answered(&s, m, token, p.carryOut(&s, m, token))
				}
			}
		}
		idle := true
		for g := range s.gates {
			switch gate := &s.gates[g]; gate.phase {
			case gateIdle:
				continue
			case gateReserving:
				if !gate.replied {
					s.net |= bit(askReserve, p.token(g, &s))
					break
				}
				waits = waits || gate.answer == verdictPending
				if bad := p.looks(&s, g, true, true); bad != "" {
					return bad
				}
			case gateRunning:
				gate.phase = gateCommits
				fallthrough
			case gateCommits:
				s.net |= bit(askCommit, p.token(g, &s))
			case gateReports:
				s.net |= bit(askUnknown, p.token(g, &s))
			case gateReleases:
				s.net |= bit(askRelease, p.token(g, &s))
			}
			idle = false
		}
		if round > 1 && waits {
			s = p.pass(s)
		}
		s.canonical(p)
		if round == 1 && known >= 0 && (s.state != api.StateCommitted || int(s.token) != known) {
			return "an outcome that a living gate knew is not the ledger's"
		}
		if idle && s.net == 0 && round > 0 {
			return ""
		}
	}
	return "a gate waits forever"
}

// explore looks at every state; bad is what is wrong with the first that is wrong, and
// trace the way to it.
func (p *protocol) explore() (states int, bad string, trace []string) {
	type origin struct{ from, step int32 }
	first := explored{up: [2]bool{true, true}}
	all, origins := []explored{first}, []origin{{-1, 0}}
	known := map[explored]struct{}{first: {}}
	way := func(o origin, last string) []string {
		list := []string{last}
		p.naming = true
		for ; o.from >= 0; o = origins[o.from] {
			list = append([]string{p.steps(all[o.from])[o.step].what}, list...)
		}
		return list
	}
	for at := int32(0); int(at) < len(all); at++ {
		if bad := p.heal(all[at]); bad != "" {
			return len(all), bad, way(origins[at], "from here on all goes well")
		}
		p.list = p.steps(all[at])
		for i, next := range p.list {
			here := origin{at, int32(i)}
			if next.bad != "" {
				return len(all), next.bad, way(here, "where it goes wrong")
			}
			if _, ok := known[next.to]; !ok {
				known[next.to] = struct{}{}
				all = append(all, next.to)
				origins = append(origins, here)
			}
		}
	}
	return len(all), "", nil
}

// TestProtocol explores the protocol as it is.
func TestProtocol(t *testing.T) {
	deep.Sequential(t)
	p := protocol{attempts: [2]int{1, 1}, pending: 1, unknown: 2, done: 2, timeout: 1}
	if os.Getenv("LEDGER_EXPLORE") != "" {
		p.attempts[0] = 2
	}
	states, bad, trace := p.explore()
	t.Logf("%d states: %v attempts, TTLs %d, %d, %d, timeout %d", states, p.attempts, p.pending, p.unknown, p.done, p.timeout)
	if bad != "" {
		t.Errorf("%s:\n%s", bad, strings.Join(trace, "\n"))
	}
}

// TestProtocolFindsHoles: without one of its rules, the protocol does not hold.
func TestProtocolFindsHoles(t *testing.T) {
	whole := protocol{attempts: [2]int{1, 1}, pending: 1, unknown: 2, done: 2, timeout: 1}
	for _, c := range []struct {
		rule  string
		leave func(*protocol)
	}{
		{"unknown outcomes are remembered", func(p *protocol) { p.unknown = 0 }},
		{"downtime does not count", func(p *protocol) { p.downtimeCounts = true }},
	} {
		p := whole
		c.leave(&p)
		states, bad, trace := p.explore()
		if bad == "" {
			t.Errorf("without the rule that %s, %d states are all well", c.rule, states)
			continue
		}
		t.Logf("without the rule that %s, in state %d: %s:\n%s", c.rule, states, bad, strings.Join(trace, "\n"))
	}
}
