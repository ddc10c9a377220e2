package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// TestDataCentresUnderFaults: three real managers are killed and stopped, and the network between them breaks, is silent,
// loses and repeats calls at homes, and loses and repeats pages of the change feeds. Callers in all data centres work on
// the same keys meanwhile. Global keys are one ledger's; of the other keys, every outcome that was acknowledged is
// everywhere afterwards, in a conflict where there are several, and all data centres answer the same.
func TestDataCentresUnderFaults(t *testing.T) {
	deep.Only(t)
	t.Parallel()
	for round := range centresRounds(t) {
		t.Run(strconv.Itoa(round), testFaultsBetweenCentres)
	}
}

// centresRounds is how many worlds there are; make test-long asks for more.
func centresRounds(t *testing.T) int {
	const name = "CENTRES_ROUNDS"
	v := os.Getenv(name)
	if v == "" {
		return 1
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: must be a number of rounds", name, v)
	}
	return n
}

// slot is for how long callers take up a key.
const slot = 200 * time.Millisecond

// centresLoad is what callers do in all data centres.
type centresLoad struct {
	t     *testing.T
	names []string
	addrs map[string]*atomic.Pointer[string] // of the managers, by name
	start time.Time
	over  chan struct{}
	count atomic.Int64 // for tokens
	// refusals are calls that the home could not be asked, lost those without an answer.
	refusals, lost atomic.Int64

	mu      sync.Mutex
	history []porcupine.Operation
	// running are the attempts at global keys that may run and did not give up.
	running map[string][]string
	// reserved and acked are the outcomes of other keys by key and data centre.
	reserved, acked map[string]map[string]string
}

func testFaultsBetweenCentres(t *testing.T) {
	names := []string{"dc1", "dc2", "dc3"}
	all := newCentres(t, names, "--compare-interval-seconds", "1", "--committed-ttl-seconds", "3600", "--pending-ttl-seconds", "3600")
	l := &centresLoad{
		t: t, names: names, addrs: make(map[string]*atomic.Pointer[string]), start: time.Now(), over: make(chan struct{}),
		running: make(map[string][]string), reserved: make(map[string]map[string]string), acked: make(map[string]map[string]string),
	}
	for name, dc := range all {
		l.addrs[name] = new(atomic.Pointer[string])
		l.arrived(dc)
	}
	connect(all, true)
	trusted(t, all)
	lossy := func(on bool) {
		for _, dc := range all {
			for _, link := range dc.links {
				link.lossy.Store(on)
			}
		}
	}
	lossy(true)
	var callers sync.WaitGroup
	for i, name := range names {
		for j := range 2 {
			callers.Go(func() { l.global(2*i+j, name) })
			callers.Go(func() { l.local(name) })
		}
	}
	func() {
		defer callers.Wait()
		defer close(l.over)
		l.breakThings(all)
		lossy(false)
		connect(all, true)
	}()
	if t.Failed() {
		return
	}
	healed := time.Now()
	l.agree(all)
	t.Logf("all agreed %v after the last fault", time.Since(healed).Round(time.Millisecond))
	l.check(all)
}

// arrived gives callers the address of a manager.
func (l *centresLoad) arrived(dc *dataCentre) {
	addr := dc.p.addr["api"]
	l.addrs[dc.name].Store(&addr)
}

// breakThings makes every fault at least once, in any order.
func (l *centresLoad) breakThings(all map[string]*dataCentre) {
	pause := func(least, most int) { // between two faults, and as long as one lasts
		time.Sleep(time.Duration(least+rand.IntN(most-least)) * time.Millisecond)
	}
	around := func(dc *dataCentre, state linkState) { // the links from and to a data centre
		for _, other := range all {
			for peer, link := range other.links {
				if other == dc || peer == dc.name {
					link.set(state)
				}
			}
		}
	}
	faults := []func(dc *dataCentre){
		func(dc *dataCentre) { // killed among others that can reach each other
			dc.p.kill()
			pause(100, 1500)
			dc.p = startManager(l.t, dc.args...)
			l.arrived(dc)
			connect(all, true)
		},
		func(dc *dataCentre) { // killed while it is alone
			around(dc, refused)
			pause(500, 1000)
			dc.p.kill()
			dc.p = startManager(l.t, dc.args...)
			l.arrived(dc)
			pause(500, 1000)
			connect(all, true)
		},
		func(dc *dataCentre) { dc.p.standStill(l.t, time.Duration(500+rand.IntN(2000))*time.Millisecond) },
		func(dc *dataCentre) {
			around(dc, silent)
			pause(500, 6000)
			around(dc, open)
		},
		func(dc *dataCentre) { // one direction
			for _, link := range dc.links {
				link.set([]linkState{refused, silent}[rand.IntN(2)])
			}
			pause(500, 2000)
			around(dc, open)
		},
		func(*dataCentre) {
			connect(all, false)
			pause(500, 2000)
			connect(all, true)
		},
	}
	for _, i := range rand.Perm(len(faults)) {
		pause(100, 500)
		faults[i](all[l.names[rand.IntN(len(l.names))]])
		if l.t.Failed() {
			return
		}
	}
}

// ended reports whether the callers are to take up no more keys.
func (l *centresLoad) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// key is one that callers everywhere take up now.
func (l *centresLoad) key(kind string) string {
	return fmt.Sprintf("%s-%d", kind, max(int(time.Since(l.start)/slot)-rand.IntN(2), 0))
}

// call makes one call at the manager of a data centre. ok: it was answered by the manager.
func (l *centresLoad) call(client *http.Client, name, op, body string) (status int, answer string, ok bool) {
	resp, err := client.Post("http://"+*l.addrs[name].Load()+"/v1/ledger/"+op, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		l.lost.Add(1)
		return 0, "", false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		l.lost.Add(1)
		return 0, "", false
	}
	return resp.StatusCode, string(b), true
}

// try makes a call about a global key until it is answered, at most often times, and records each try.
func (l *centresLoad) try(client *http.Client, id int, name string, in ledgertest.GlobalCall, often int) ledgertest.GlobalAnswer {
	result := ""
	if in.Op == "commit" {
		result = `,"result":{"status":201,"headers":[["from",` + strconv.Quote(in.Token) + `]]}`
	}
	body := fmt.Sprintf(`{"key":%q,"token":%q,"durability":"global"%s}`, in.Key, in.Token, result)
	for i := range often {
		if i > 0 {
			time.Sleep(50 * time.Millisecond)
		}
		begin := time.Since(l.start).Nanoseconds()
		_, b, ok := l.call(client, name, in.Op, body)
		answer := ledgertest.GlobalAnswer(gjson.Get(b, "state").String() + gjson.Get(b, "code").String())
		o := porcupine.Operation{ClientId: id, Input: in, Call: begin, Output: answer, Return: time.Since(l.start).Nanoseconds()}
		switch {
		case answer == ledgertest.GlobalAnswer(api.CodeHomeUnavailable):
			l.refusals.Add(1)
			continue // nothing was changed
		case !ok, answer == ledgertest.GlobalAnswer(api.CodeHomeUnanswered), answer == ledgertest.GlobalAnswer(api.CodeUnavailable):
			answer, o.Output, o.Return = "", ledgertest.GlobalAnswer(""), 1<<62
		}
		l.mu.Lock()
		l.history = append(l.history, o)
		l.mu.Unlock()
		if answer != "" {
			return answer
		}
	}
	return ""
}

// global works on global keys at one data centre until the load ends.
func (l *centresLoad) global(id int, name string) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
	defer client.CloseIdleConnections()
	for !l.ended() {
		in := ledgertest.GlobalCall{Op: "reserve", Key: l.key("global"), Token: fmt.Sprint(name, "-", l.count.Add(1))}
		as := func(op string) ledgertest.GlobalCall {
			in.Op = op
			return in
		}
		switch l.try(client, id, name, in, 2) {
		case "reserved":
			if rand.IntN(3) == 0 {
				l.try(client, id, name, as("release"), 4)
				continue
			}
			l.mu.Lock()
			l.running[in.Key] = append(l.running[in.Key], in.Token)
			l.mu.Unlock()
			if rand.IntN(2) == 0 {
				l.try(client, id, name, as("renew"), 1)
			}
			l.try(client, id, name, as([]string{"commit", "commit", "commit", "unknown"}[rand.IntN(4)]), 20)
		case "":
			l.try(client, id, name, as("release"), 4) // as a gate does: it will not run the work
		}
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
}

// local works on other keys. An attempt that has its key repeats the outcome until the manager acknowledges it.
func (l *centresLoad) local(name string) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
	defer client.CloseIdleConnections()
	for !l.ended() {
		key, token := l.key("local"), fmt.Sprint(name, "-", l.count.Add(1))
		_, b, _ := l.call(client, name, "reserve", fmt.Sprintf(`{"key":%q,"token":%q}`, key, token))
		if gjson.Get(b, "state").String() == "reserved" {
			l.record(l.reserved, key, name, token)
			for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
				status, b, ok := l.call(client, name, "commit", fmt.Sprintf(`{"key":%q,"token":%q,"result":{"status":201,"headers":[["from",%q]]}}`, key, token, token))
				if ok && status == 200 {
					l.record(l.acked, key, name, token)
					break
				}
				if ok && status != 503 || time.Now().After(deadline) {
					l.t.Errorf("%s: the commit of %s by %s is answered %d %s", name, key, token, status, b)
					break
				}
			}
		}
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
}

func (l *centresLoad) record(in map[string]map[string]string, key, name, token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in[key] == nil {
		in[key] = make(map[string]string)
	}
	if was := in[key][name]; was != "" && was != token {
		l.t.Errorf("%s ran %s twice: %s and %s", name, key, was, token)
	}
	in[key][name] = token
}

// view is what a data centre shows: the tokens of outcomes by key and origin in the list of conflicts, the winner's first
// under "", and digests by origin.
type view struct {
	conflicts map[string]map[string]string
	text      string
}

func (l *centresLoad) view(dc *dataCentre) view {
	l.t.Helper()
	v := view{conflicts: make(map[string]map[string]string)}
	for cursor := ""; ; {
		var list struct {
			Conflicts []struct {
				Key, Winner string
				Outcomes    []struct {
					Origin string
					Result struct{ Headers [][2]string }
				}
			}
			Cursor string
		}
		if s := dc.call("GET", "/v1/ledger/conflicts?limit=100&cursor="+cursor, "", &list); s != 200 {
			l.t.Fatalf("conflicts: %d", s)
		}
		for _, c := range list.Conflicts {
			outcomes := make(map[string]string)
			for _, o := range c.Outcomes {
				outcomes[o.Origin] = o.Result.Headers[0][1]
			}
			outcomes[""] = outcomes[c.Winner]
			v.conflicts[c.Key] = outcomes
		}
		if cursor = list.Cursor; cursor == "" {
			break
		}
	}
	digests := make(map[string]string)
	for _, origin := range l.names {
		digests[origin] = dc.digests(origin)
	}
	b, err := json.Marshal([]any{v.conflicts, digests})
	if err != nil {
		l.t.Fatal(err)
	}
	v.text = string(b)
	return v
}

// agree waits until all data centres show the same, and every acknowledged outcome.
func (l *centresLoad) agree(all map[string]*dataCentre) {
	until(l.t, "all data centres have all outcomes", func() bool {
		first := l.view(all[l.names[0]])
		for _, name := range l.names {
			if l.view(all[name]).text != first.text {
				return false
			}
		}
		for key, outcomes := range l.acked {
			if len(outcomes) < 2 {
				continue
			}
			for origin, token := range outcomes {
				if first.conflicts[key][origin] != token {
					return false
				}
			}
		}
		return true
	})
}

// check judges what is there in the end.
func (l *centresLoad) check(all map[string]*dataCentre) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
	defer client.CloseIdleConnections()
	conflicts := l.view(all[l.names[0]]).conflicts
	for key, outcomes := range conflicts {
		for origin, token := range outcomes {
			if origin != "" && l.reserved[key][origin] != token {
				l.t.Errorf("the conflict about %s has the outcome %s of %s, which reserved it for %q", key, token, origin, l.reserved[key][origin])
			}
		}
	}
	both := 0
	for key, outcomes := range l.acked {
		if len(outcomes) > 1 {
			both++
		}
		want := conflicts[key][""]
		if want == "" {
			for _, want = range outcomes {
			}
		}
		for _, name := range l.names {
			_, b, _ := l.call(client, name, "reserve", fmt.Sprintf(`{"key":%q,"token":"retry"}`, key))
			if got := gjson.Get(b, "result.headers.0.1").String(); got != want {
				l.t.Errorf("%s answers a retry of %s with %s, want the outcome %s of %v", name, key, b, want, outcomes)
			}
		}
	}
	for key, tokens := range l.running {
		if len(tokens) > 1 {
			l.t.Errorf("%s ran %d times: %v", key, len(tokens), tokens)
		}
		answers := make(map[string]string)
		for i, name := range l.names {
			l.try(client, 100+i, name, ledgertest.GlobalCall{Op: "reserve", Key: key, Token: "retry-" + name}, 5)
			_, b, _ := l.call(client, name, "lookup", fmt.Sprintf(`{"key":%q}`, key))
			if result := gjson.Get(b, "result"); result.Exists() {
				answers[name] = result.Raw
			}
		}
		for _, name := range l.names {
			if len(answers) > 0 && answers[name] != answers[l.names[0]] {
				l.t.Errorf("%s has different answers: %v", key, answers)
				break
			}
		}
	}
	ledgertest.CheckGlobal(l.t, l.history)
	faults := int64(0)
	for _, dc := range all {
		for _, link := range dc.links {
			faults += link.faults.Load()
		}
	}
	l.t.Logf("%d calls about global keys, of which %d ran; %d other keys, %d of them in several data centres; %d faults of calls between them, %d calls without an answer, %d without a home",
		len(l.history), len(l.running), len(l.acked), both, faults, l.lost.Load(), l.refusals.Load())
	if len(l.running) == 0 || both == 0 || faults == 0 || l.lost.Load() == 0 || l.refusals.Load() == 0 {
		l.t.Error("the faults came at nobody's expense, the test shows nothing")
	}
}
