package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/simulated"
)

// A world with several data centres. Each has a manager with an origin and the proxies that are near it. The
// managers pull from one another, and make calls about global keys at their homes, over a network that the adversary
// partitions, and that loses, delays and repeats calls and answers.

// drawCentres draws three data centres, one manager and one or two proxies in each.
func (p *Plan) drawCentres(rnd *rand.Rand) {
	p.Shards = []string{"m0", "m1", "m2"}
	p.Proxies = 3 + rnd.IntN(2)
	p.ChangesKept = 1 + rnd.IntN(12)
}

// cacheFor bounds how long gates answer from their caches, and compareEvery is how often digests are compared.
const (
	cacheFor     = 5 * time.Second
	compareEvery = 10 * time.Second
)

// healingBound is how long after the end of all faults everything is everywhere. Where pages were lost, or a whole disk, two
// comparisons must find what they held, and its spread is found by two more.
func (p *Plan) healingBound() time.Duration {
	if p.Has(Pages | Lose | Back | Twin) {
		return 15*time.Second + 5*compareEvery
	}
	return 15 * time.Second
}

// near is the manager of the proxy's data centre, or the only one.
func (p *proxy) near() string { return p.w.plan.Shards[int(p.name[0]-'a')%len(p.w.plan.Shards)] }

// centre configures a process of a manager as one of several data centres.
func (p *process) centre() *simulated.Centre {
	plan := &p.m.w.plan
	if !plan.Has(Centres) {
		return nil
	}
	c := &simulated.Centre{
		Origin: p.m.origin, Transport: &farLine{p}, HomeTimeout: plan.ManagerTimeout * 3 / 4, CompareEvery: compareEvery,
		ChangesKept: plan.ChangesKept, CacheFor: cacheFor,
	}
	for _, name := range plan.Shards {
		if name != p.m.origin {
			c.Peers = append(c.Peers, name)
		}
	}
	c.Jitter = func(d time.Duration) time.Duration {
		return time.Duration(number64(p.m.name, fmt.Sprint(p.m.w.seed, time.Now().UnixNano())) % uint64(d))
	}
	return c
}

// number64 is the same number for the same texts.
func number64(texts ...string) uint64 {
	h := fnv.New64a()
	for _, t := range texts {
		_, _ = io.WriteString(h, t)
		_, _ = h.Write([]byte{0})
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// farLine carries the calls of a process to other data centres.
type farLine struct{ p *process }

// farCall is such a call.
type farCall struct {
	p        *process
	host     string
	to       *manager // the loop's
	q        request
	ctx      context.Context
	answered chan *answer // a value, nil if the connection breaks
	over     bool         // it has been sent; the loop's
	stale    bool         // the answer is that to an earlier call

	mu         sync.Mutex
	sent, left bool
}

var errBroken = errors.New("the connection is broken")

// RoundTrip implements http.RoundTripper. It runs in a goroutine of the manager's.
func (t *farLine) RoundTrip(r *http.Request) (*http.Response, error) {
	w := t.p.m.w
	c := &farCall{p: t.p, host: r.URL.Host, ctx: r.Context(), answered: make(chan *answer, 1)}
	c.q = request{method: r.Method, path: r.URL.Path, query: r.URL.RawQuery}
	if r.Body != nil {
		var err error
		if c.q.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		c.q.headers = append(c.q.headers, api.Header{Name: strings.ToLower(name), Value: r.Header.Get(name)})
	}
	// Cursors hold random epochs, so the query has no part in the order.
	w.post(number64(t.p.m.name, r.URL.Host, r.URL.Path, string(c.q.body)), c.send)
	var a *answer
	select {
	case a = <-c.answered:
	case <-c.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if trace := httptrace.ContextClientTrace(c.ctx); c.sent && trace != nil && trace.WroteHeaders != nil {
		trace.WroteHeaders()
	}
	if a == nil {
		return nil, errors.Join(c.ctx.Err(), errBroken)
	}
	resp := &http.Response{StatusCode: a.status, Header: make(http.Header), Body: io.NopCloser(bytes.NewReader(a.body)), Request: r}
	for _, h := range a.headers {
		if h[0][0] != ':' {
			resp.Header.Set(h[0], h[1])
		}
	}
	return resp, nil
}

// post has the loop do something that a goroutine of a manager asks for. Of what is posted at one instant, order decides.
func (w *World) post(order uint64, do func()) {
	w.mu.Lock()
	w.finished = append(w.finished, completion{order | 1<<63, do})
	w.mu.Unlock()
	select {
	case w.completed <- struct{}{}:
	default:
	}
}

// send is where the call leaves, in the loop.
func (c *farCall) send() {
	w, from := c.p.m.w, c.p.m
	if c.p.dead {
		return
	}
	c.to = w.leads(c.host)
	if from.frozen {
		from.later(nil, c.send)
		return
	}
	apart := w.apart(from.origin, c.to.origin)
	if (apart || c.to.run == nil) && w.chance(0.5) {
		c.finish(nil) // the connection is refused
		return
	}
	c.mu.Lock()
	c.sent = !c.left
	left := c.left
	c.mu.Unlock()
	if left || apart {
		return
	}
	c.learn()
	copies := 1
	// The second copy of a release is fenced if somebody has reserved the key since the first.
	if w.adversary(Duplicate, 0.1) && !strings.HasSuffix(c.q.path, "/release") {
		copies = 2
	}
	for range copies {
		if w.adversary(Drop, 0.05) {
			w.logf(from.name, "its call of %s to %s is lost", short(c.q.path), c.to.name)
			continue
		}
		w.after(w.latency(), c.arrive)
	}
}

// arrive hands the call to the other manager.
func (c *farCall) arrive() {
	w := c.p.m.w
	if w.apart(c.p.m.origin, c.to.origin) {
		return
	}
	if c.to.run == nil {
		c.finish(nil)
		return
	}
	q := c.q
	q.answered = func(a *answer) {
		switch {
		case a == nil:
			if w.chance(0.7) {
				c.finish(nil)
			}
			return
		case w.apart(c.p.m.origin, c.to.origin):
			return
		case w.adversary(Drop, 0.05):
			w.logf(c.to.name, "its answer about %s to %s is lost", short(c.q.path), c.p.m.name)
			return
		}
		if strings.HasSuffix(q.path, "/changes") && !strings.Contains(q.query, "from_ms") {
			a = c.page(a)
		} else {
			w.logf(c.to.name, "answers %d to %s of %s", a.status, short(q.path), c.p.m.name)
		}
		w.after(w.latency(), func() { c.finish(a) })
	}
	c.to.handle(c.ctx, &q)
}

// page is what becomes of a page of a change feed.
func (c *farCall) page(a *answer) *answer {
	w := c.p.m.w
	way := c.to.name + c.p.m.name
	old := w.pages[way]
	if w.adversary(Pages, 0.1) && len(old) > 0 {
		w.logf(c.to.name, "an old page of its changes arrives at %s", c.p.m.name)
		c.stale = true
		return old[w.rnd.IntN(len(old))]
	}
	if w.pages == nil {
		w.pages = make(map[string][]*answer)
	}
	var page map[string]json.RawMessage
	if a.status != 200 || json.Unmarshal(a.body, &page) != nil {
		w.logf(c.to.name, "answers %d to changes of %s", a.status, c.p.m.name)
		return a
	}
	empty := string(page["changes"]) == "[]"
	if !empty {
		w.logf(c.to.name, "tells %s changes up to %s of %s", c.p.m.name, page["sequence"], page["head"])
	}
	w.pages[way] = append(old[max(len(old)-20, 0):], a)
	if !empty && w.adversary(Pages, 0.1) {
		w.logf(c.to.name, "the changes on its page to %s are lost", c.p.m.name)
		page["changes"] = json.RawMessage("[]")
		body, err := json.Marshal(page)
		if err != nil {
			w.fail("a page: %v", err)
		}
		return &answer{status: a.status, headers: a.headers, body: body}
	}
	return a
}

// finish ends the call with an answer, nil where the connection breaks.
func (c *farCall) finish(a *answer) {
	if c.p.m.frozen && c.p.m.run == c.p {
		c.p.m.later(nil, func() { c.finish(a) })
		return
	}
	if c.over {
		return // the other copy of the call was answered first
	}
	c.over = true
	c.answered <- a
	if a != nil && !c.stale && (a.status == 200 || a.status == 410) && c.p == c.p.m.run && strings.HasSuffix(c.q.path, "/changes") {
		c.p.m.hears(c.to.origin)
	}
	if a != nil && a.status == 200 && strings.HasSuffix(c.q.path, "/changes") {
		c.p.pages[c.to.name] = a.body
	}
}

// learn notes what the process knows by now: a call for what follows a page says that its changes were imported.
func (c *farCall) learn() {
	w := c.p.m.w
	body := c.p.pages[c.to.name]
	if body == nil || !strings.HasSuffix(c.q.path, "/changes") {
		return
	}
	var page struct {
		Cursor  string
		Changes []struct {
			Key, Scope string
			Result     struct{ Body []byte }
		}
	}
	q, err := url.ParseQuery(c.q.query)
	if err := errors.Join(err, json.Unmarshal(body, &page)); err != nil {
		w.fail("a page of changes: %v", err)
	}
	if q.Get("after") != page.Cursor {
		return
	}
	for _, change := range page.Changes {
		w.known = append(w.known, outcome{manager: c.p.m.name, key: change.Scope + " " + change.Key, body: string(change.Result.Body), at: w.now()})
	}
	delete(c.p.pages, c.to.name)
}

// apart reports whether nothing arrives between two data centres.
func (w *World) apart(a, b string) bool { return w.parted[[2]string{min(a, b), max(a, b)}] > 0 }

// part cuts a data centre off from one or both of the others for a while.
func (w *World) part() { w.cutOff(w.someManager()) }

func (w *World) cutOff(m *manager) {
	var pairs [][2]string
	for _, other := range w.managers {
		if other.origin != m.origin && !other.twin && (len(pairs) == 0 || w.chance(0.6)) {
			pairs = append(pairs, [2]string{min(m.origin, other.origin), max(m.origin, other.origin)})
		}
	}
	if w.parted == nil {
		w.parted = make(map[[2]string]int)
	}
	w.logf("network", "%v are apart", pairs)
	for _, pair := range pairs {
		w.parted[pair]++
	}
	w.after(w.between(300*time.Millisecond, 15*time.Second), func() {
		for _, pair := range pairs {
			if !w.healed {
				w.parted[pair]--
			}
		}
		w.logf("network", "%v are together again", pairs)
	})
}
