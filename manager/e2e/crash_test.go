package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/internal/store/downtime"
	"github.com/oncegate/oncegate/manager/managertest/calls"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// crashRounds is how often the manager is killed in make test, or in make test-deep. make test-long asks for more.
func crashRounds(t *testing.T, quick, thorough int) int {
	t.Helper()
	const name = "MANAGER_CRASH_ROUNDS"
	v := os.Getenv(name)
	if v == "" {
		return deep.Rounds(quick, thorough)
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: must be a number of rounds", name, v)
	}
	return n
}

const (
	crashClients = 32
	// keysPerRound and callsPerRound keep the history of one key short enough
	// to be judged; a key is used in two rounds and so lives through a crash.
	keysPerRound  = 64
	callsPerRound = 500
)

// crashLoad is the load that runs while managers come and go.
type crashLoad struct {
	t     *testing.T
	addr  atomic.Pointer[string]
	round atomic.Int64
	acked atomic.Int64 // answered calls of this round
	stop  chan struct{}

	mu      sync.Mutex
	history map[string][]porcupine.Operation
	start   time.Time
	lost    int // calls that were cut off
	groups  int // calls that were sent together on a stream, all answered
	away    []porcupine.Operation
}

// TestCrash kills the real program under load, again and again, while 32
// clients keep calling, half of them several calls at a time on streams. From the second start on the records are encrypted, at each start under
// another key, so that kills meet them while they are stored again. Every acknowledged call must still be true after each restart,
// and no call half true: for every key there must be an order of all calls,
// before and after crashes, that explains every answer.
func TestCrash(t *testing.T) {
	t.Parallel()
	rounds := crashRounds(t, 4, 10)
	dir := t.TempDir()
	load := &crashLoad{t: t, stop: make(chan struct{}), history: make(map[string][]porcupine.Operation), start: time.Now()}
	var clients sync.WaitGroup
	started := false
	defer func() {
		if started {
			clients.Wait()
		}
	}()
	var once sync.Once
	halt := func() { once.Do(func() { close(load.stop) }) }
	defer halt()
	var killed time.Time
	stalls := 0
	for round := range rounds {
		// Little memory for changes, so that crashes meet the state at work, too.
		p := startManager(t, append(rotation(t, round), "--data-dir", dir, "--cache-bytes", "1048576", "--cleanup-interval-seconds", "0.05")...)
		atStart := p.stderr.String()
		if round > 0 {
			load.restarted(killed, atStart)
		}
		load.round.Store(int64(round))
		load.acked.Store(0)
		addr := p.addr["api"]
		load.addr.Store(&addr)
		if !started {
			started = true
			for i := range crashClients {
				clients.Go(func() { load.client(i) })
			}
		}
		answered := func(n int64) {
			waitFor(t, "the load of a round is answered", func() bool { return load.acked.Load() >= n || t.Failed() })
		}
		// A manager on an empty directory has no lease to extend at its start, so it notices each stall.
		if round == 0 || round%5 == 1 {
			answered(callsPerRound / 2)
			p.standStill(t, 3*downtime.LocalGap/2)
			answered(load.acked.Load() + callsPerRound/2) // by a manager that has noticed it
		}
		answered(callsPerRound)
		p.kill()
		killed = time.Now()
		stalls += load.stalls(p.stderr.String()[len(atStart):])
		if strings.Contains(p.stderr.String(), `"level":"ERROR"`) {
			t.Errorf("round %d: the manager complained: %s", round, p.stderr)
		}
		if t.Failed() {
			return
		}
	}
	halt()
	clients.Wait()
	load.check()
	if rounds > 1 && stalls == 0 {
		t.Error("no manager noticed that it had stood still")
	}

	last := rotation(t, rounds)
	if code, out := oncegate(t, append([]string{"wal", "verify", "--data-dir", dir}, last...)...); code != 0 {
		t.Errorf("wal verify after the last kill: exit code %d: %s", code, out)
	}
	p := startManager(t, append(last, "--data-dir", dir)...)
	if code := p.stop(t); code != 0 {
		t.Errorf("the last stop, in order: exit code %d: %s", code, p.stderr)
	}
}

// client sends random calls until it is stopped.
func (l *crashLoad) client(id int) {
	rnd := rand.New(rand.NewPCG(uint64(id), 7))
	transport := &http.Transport{}
	client := &http.Client{Transport: transport, Timeout: patience}
	defer transport.CloseIdleConnections()
	gate := new(crashGate)
	defer gate.close()
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		group := make([]ledgertest.Call, 1)
		if id%4 > 1 {
			group = make([]ledgertest.Call, 2+rnd.IntN(14))
		}
		for j := range group {
			round := l.round.Load()
			if round > 0 && rnd.IntN(2) == 0 {
				round-- // a key that has lived through a crash
			}
			c := &group[j]
			*c = ledgertest.Call{
				Op:      ledgertest.Ops[rnd.IntN(len(ledgertest.Ops))],
				Key:     fmt.Sprintf("r%d-k%d", round, rnd.IntN(keysPerRound)),
				Token:   fmt.Sprintf("t%d", rnd.IntN(3)),
				Body:    fmt.Sprintf("%d/%d.%d/%s", id, i, j, strings.Repeat("x", rnd.IntN(4000))),
				TTL:     []int64{20, 200, 600_000}[rnd.IntN(3)],
				Unknown: []int64{0, 100, 600_000}[rnd.IntN(3)],
			}
			if c.Op == "resolve" && len(group) > 1 {
				c.Op = "commit" // streams have no resolve
			}
		}
		if len(group) > 1 {
			l.together(gate, id, group)
		} else {
			l.call(client, id, group[0], id%2 == 0)
		}
	}
}

// call performs one call and records it.
func (l *crashLoad) call(client *http.Client, id int, c ledgertest.Call, raw bool) {
	path, contentType, body := encode(c, raw)
	began := time.Now()
	resp, err := client.Post("http://"+*l.addr.Load()+path, contentType, bytes.NewReader(body))
	var outcome ledgertest.Outcome
	if err == nil {
		var b []byte
		if b, err = io.ReadAll(resp.Body); err == nil {
			outcome, err = decode(c, raw, resp.StatusCode, b)
		}
		resp.Body.Close()
		if err != nil && !cutOff(err) {
			l.t.Errorf("%s %s: %v", c.Op, c.Key, err)
		}
	} else if strings.Contains(err.Error(), "connection refused") {
		return // nobody was there: it certainly did not happen
	}
	l.record(id, []ledgertest.Call{c}, []ledgertest.Outcome{outcome}, began)
}

// crashGate is a client's stream to the manager that runs.
type crashGate struct {
	*calls.Stream
	addr string
}

func (g *crashGate) close() {
	if g.Stream != nil {
		g.Close()
	}
}

// together performs calls that are sent together on a stream, and records them.
func (l *crashLoad) together(gate *crashGate, id int, all []ledgertest.Call) {
	if addr := *l.addr.Load(); gate.Stream == nil || gate.addr != addr || gate.Err() != nil {
		gate.close()
		var err error
		if gate.Stream, err = calls.Open(context.Background(), "http://"+addr); err != nil {
			return // nothing was sent
		}
		gate.addr = addr
	}
	messages := make([]calls.Call, len(all))
	for i, c := range all {
		op, _ := api.ParseOp(c.Op)
		_, _, message := encode(c, true)
		messages[i] = calls.Call{Op: op, Trace: [][2]string{{"x-request-id", c.Key}}, Message: message}
	}
	began := time.Now()
	replies, err := gate.Do(messages...)
	if calls.InOrder(err) {
		l.t.Errorf("%d calls, %s %s: %v", len(all), all[0].Op, all[0].Key, err)
	}
	outcomes := make([]ledgertest.Outcome, len(all))
	for i, r := range replies {
		if r.Status == 0 {
			continue // cut off
		}
		var bad error
		if outcomes[i], bad = decode(all[i], true, r.Status, r.Body); bad != nil {
			l.t.Errorf("%s %s: %v", all[i].Op, all[i].Key, bad)
		}
	}
	l.record(id, all, outcomes, began)
	if err == nil {
		l.mu.Lock()
		l.groups++
		l.mu.Unlock()
	}
}

// record records calls that began together.
func (l *crashLoad) record(id int, all []ledgertest.Call, outcomes []ledgertest.Outcome, began time.Time) {
	ended := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range all {
		c.Begin, c.End = began.UnixMilli(), ended.UnixMilli()+1
		if !outcomes[i].Known {
			l.lost++
		} else {
			l.acked.Add(1)
		}
		// A call that was cut off cannot happen any more: its manager is dead.
		l.history[c.Key] = append(l.history[c.Key], porcupine.Operation{
			ClientId: id, Input: c, Output: outcomes[i], Call: began.Sub(l.start).Nanoseconds(), Return: ended.Sub(l.start).Nanoseconds(),
		})
	}
}

// downtime records that nobody served for a while, which is part of the history
// of every key.
func (l *crashLoad) downtime(from, to time.Time) {
	l.away = append(l.away, porcupine.Operation{
		ClientId: crashClients, Input: ledgertest.Call{Op: ledgertest.Downtime, Begin: from.UnixMilli() + 1, End: to.UnixMilli()},
		Output: ledgertest.Outcome{}, Call: from.Sub(l.start).Nanoseconds(), Return: to.Sub(l.start).Nanoseconds(),
	})
}

// restarted records the downtime between a kill and a start, if the log of the start shows that there was something to extend.
// The manager made its plan took_ms before it logged the line, and serves later than that.
func (l *crashLoad) restarted(killed time.Time, log string) {
	for at, line := range l.extensions(log) {
		l.downtime(killed, at.Add(-time.Duration(line.Get("took_ms").Int())*time.Millisecond))
		return
	}
}

// stalls records the times in which a manager stood still and after which it extended what was alive: those in its log, since
// a machine that is busy or stops for some seconds makes more of them than the test. It returns their number.
func (l *crashLoad) stalls(log string) (n int) {
	for at, line := range l.extensions(log) {
		l.downtime(at.Add(-time.Duration(line.Get("away_ms").Int())*time.Millisecond), at)
		n++
	}
	return n
}

// extensions yields the lines of a log about extensions, with their times.
func (l *crashLoad) extensions(log string) iter.Seq2[time.Time, gjson.Result] {
	return func(yield func(time.Time, gjson.Result) bool) {
		for line := range strings.Lines(log) {
			if !strings.Contains(line, `"msg":"leases and reservations were extended by a downtime"`) {
				continue
			}
			fields := gjson.Parse(line)
			at, err := time.Parse(time.RFC3339Nano, fields.Get("time").String())
			if err != nil {
				l.t.Errorf("%v: %s", err, line)
				continue
			}
			if !yield(at, fields) {
				return
			}
		}
	}
}

// cutOff reports whether an error is the end of a connection, not an answer that makes no sense.
func cutOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "reset by peer")
}

func encode(c ledgertest.Call, raw bool) (path, contentType string, body []byte) {
	ttl := time.Duration(c.TTL) * time.Millisecond
	var m interface{ AppendRaw([]byte) []byte }
	switch c.Op {
	case "reserve":
		req := c.Reservation()
		// Some are held for a moment while another attempt is pending.
		req.Wait = time.Duration(len(c.Body)%3) * 5 * time.Millisecond
		path, m = api.PathReserve, req
	case "renew":
		path, m = api.PathRenew, c.Reservation()
	case "unknown":
		path, m = api.PathUnknown, c.Reservation()
	case "resolve": // has no raw form
		body = fmt.Appendf(nil, `{"as":"committed","status":200,"ttl_ms":%d,"body":"%s"}`, c.TTL, base64.StdEncoding.EncodeToString([]byte(c.Body)))
		return "/v1/ledger/entries/" + c.Key + "/resolve", api.ContentTypeJSON, body
	case "release":
		path, m = api.PathRelease, &api.ReleaseRequest{Key: c.Key, Token: c.Token}
	default:
		path = api.PathCommit
		if c.Op == "reject" {
			path = api.PathReject
		}
		m = &api.FinishRequest{Key: c.Key, Token: c.Token, TTL: ttl, Result: api.Result{Status: 200, Body: []byte(c.Body)}}
	}
	if raw {
		return path, api.ContentTypeRaw, m.AppendRaw(nil)
	}
	return path, api.ContentTypeJSON, schema.Append(nil, m)
}

func decode(c ledgertest.Call, raw bool, status int, b []byte) (ledgertest.Outcome, error) {
	o := ledgertest.Outcome{Known: true}
	switch status {
	case 404, 409:
		var p api.Problem
		if err := schema.Unmarshal(b, &p); err != nil {
			return ledgertest.Outcome{}, err
		}
		o.Refused = string(p.Code)
		return o, nil
	case 200, 201, 202:
	default:
		return ledgertest.Outcome{}, fmt.Errorf("answered %d: %s", status, b)
	}
	if c.Op != "reserve" && c.Op != "renew" && c.Op != "unknown" {
		return o, nil
	}
	var reply api.ReserveReply
	var err error
	if raw {
		err = reply.ParseRaw(b)
	} else {
		var in schema.LedgerReply
		err = schema.Unmarshal(b, &in)
		reply = in.Reply()
	}
	if err != nil {
		return ledgertest.Outcome{}, err
	}
	o.State, o.Left, o.Body = reply.State.String(), reply.ExpiresIn.Milliseconds(), string(reply.Result.Body)
	return o, nil
}

// check judges the history of every key.
func (l *crashLoad) check() {
	count, longest := 0, 0
	for key, ops := range l.history {
		count += len(ops)
		ops = l.relevant(ops)
		longest = max(longest, len(ops))
		if res := judge(ops); res != porcupine.Ok {
			l.t.Errorf("key %s: %v", key, res)
			for _, op := range ops {
				o := op.Output.(ledgertest.Outcome)
				c := op.Input.(ledgertest.Call)
				c.Body, o.Body = short(c.Body), short(o.Body)
				l.t.Logf("%2d [%d %d] %s", op.ClientId, op.Call, op.Return, ledgertest.Model.DescribeOperation(c, o))
			}
		}
	}
	l.t.Logf("%d calls on %d keys, up to %d on one; %d were cut off; %d groups on streams were answered", count, len(l.history), longest, l.lost, l.groups)
	if l.groups == 0 {
		l.t.Error("no group of calls on a stream was answered")
	}
	if l.lost == 0 {
		l.t.Error("no call was cut off: the kills came at nobody's expense, the test shows nothing")
	}
}

// judge looks for an order of the calls on one key that explains every answer. A call that was cut off may not have happened, so
// an order without it is enough. Each such call multiplies the orders, so judge first keeps only those whose outcome an
// answer shows, then one or two more, and all of them at last.
func judge(ops []porcupine.Operation) porcupine.CheckResult {
	seen := make(map[string]bool)
	for _, op := range ops {
		seen[op.Output.(ledgertest.Outcome).Body] = true
	}
	var sure, cut []porcupine.Operation
	for _, op := range ops {
		c := op.Input.(ledgertest.Call)
		if op.Output.(ledgertest.Outcome).Known || c.Op == ledgertest.Downtime || seen[c.Body] {
			sure = append(sure, op)
		} else {
			cut = append(cut, op)
		}
	}
	explained := func(more ...porcupine.Operation) bool {
		return porcupine.CheckOperationsTimeout(ledgertest.Model, slices.Concat(sure, more), time.Second) == porcupine.Ok
	}
	if explained() {
		return porcupine.Ok
	}
	for _, op := range cut {
		if explained(op) {
			return porcupine.Ok
		}
	}
	for i, op := range cut {
		for _, other := range cut[:i] {
			if explained(op, other) {
				return porcupine.Ok
			}
		}
	}
	return porcupine.CheckOperationsTimeout(ledgertest.Model, ops, 5*time.Minute)
}

// relevant leaves out what no answer on a key can depend on: calls that were cut off and began when
// all that were answered were over, and downtimes before and after all others. They would only
// multiply the orders to be tried.
func (l *crashLoad) relevant(ops []porcupine.Operation) []porcupine.Operation {
	first, last := int64(math.MaxInt64), int64(0)
	for _, op := range ops {
		first = min(first, op.Call)
		if op.Output.(ledgertest.Outcome).Known {
			last = max(last, op.Return)
		}
	}
	var kept []porcupine.Operation
	for _, op := range slices.Concat(ops, l.away) {
		if op.Call < last && op.Return > first {
			kept = append(kept, op)
		}
	}
	return kept
}

func short(s string) string {
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		return s[:i]
	}
	return s
}
