package gate

import (
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/request"
)

// attempt names one attempt at a key, in the ledger and in the cache. Each call has a copy.
type attempt struct {
	route       *config.Route
	hash        cache.Hash
	key         string
	scope       request.Scope
	fingerprint request.Fingerprint
	token       cache.Token
	// trace are the request's headers that go along with calls.
	trace [][2]string
	// shard is the position of the key's owner in manager.shards.
	shard int
	// owner: the cache holds the pending entry of this attempt.
	owner bool
}

// forgotten is when the ledger forgets a reservation that expires then and is not ended. Between the two times the ledger
// treats the outcome as unknown.
func (a *attempt) forgotten(expires int64) int64 {
	if a.route.UnknownTTL == config.ManagersTTL {
		return expires + int64(assumedUnknownTTL)
	}
	return expires + int64(a.route.UnknownTTL)
}

// pendingEnd is when the attempt's entry in the cache ends unless it is renewed. Without a ledger, only the entry of a VM
// that died shows the unknown outcome, so it lasts for UnknownTTL longer.
func (a *attempt) pendingEnd(now int64) int64 {
	end := now + int64(a.route.PendingTTL)
	if a.route.Ledger == config.LedgerNone {
		end += int64(a.route.UnknownTTL)
	}
	return end
}

// reservation is an attempt's right to its key. The tick renews it from startRenewing until recordOutcome, releaseKey or
// reportUnknown. The plugin has a pointer to it until then, so it must not be copied.
type reservation struct {
	attempt
	// expires is when the reservation ends.
	expires int64

	position int   // position in Plugin.renewing, counted from 1; 0: it is not renewed
	renewAt  int64 // when the next renewal is due
	renewal  *call // the renewal that is under way
	// uncertain: a reserve or renewal may reach the ledger after what ends the reservation.
	uncertain bool
}

// newCall returns a call about the reservation's entry.
func (r *reservation) newCall(kind callKind) *call { return &call{kind: kind, attempt: r.attempt} }

// third is the time between two renewals. It is a third of pending_ttl, so that a renewal may get lost.
func (r *reservation) third() int64 { return int64(r.route.PendingTTL) / 3 }

// startRenewing makes the tick renew a reservation that was made at since. Upstream works from now on.
func (p *Plugin) startRenewing(r *reservation, since int64) {
	if r.route.Ledger != config.LedgerManager && !r.owner {
		return
	}
	r.renewAt = since + r.third()
	p.renewing = append(p.renewing, r)
	r.position = len(p.renewing)
}

// stopRenewing ends the renewals. A renewal that may reach the ledger later makes the reservation uncertain.
func (p *Plugin) stopRenewing(r *reservation) {
	if r.position == 0 {
		return
	}
	last := len(p.renewing) - 1
	moved := p.renewing[last]
	p.renewing[last] = nil
	p.renewing[r.position-1], moved.position = moved, r.position
	p.renewing = p.renewing[:last]
	r.position = 0
	if c := r.renewal; c != nil {
		r.renewal, c.renews = nil, nil
		r.uncertain = r.uncertain || !p.calls.cancel(c)
	}
}

// What a record has of an answer.

// recordedHeaders returns the headers of an answer that a replay repeats: the end-to-end headers that the route keeps,
// without those that the proxy makes for every answer, and without the gate's own. The date is recorded as the original
// date. False: there are more than a result may hold.
//
// The returned strings are copies, so they do not keep the host's header block alive.
func recordedHeaders(headers [][2]string, route *config.Route) ([]api.Header, bool) {
	named := fields.ConnectionNames(headers)
	_, dated := fields.Value(headers, config.OriginalDate)
	count, size := 0, 0
	for i := range headers {
		name := recordedName(headers[i][0], route, named, dated)
		if name == "" {
			continue
		}
		count++
		size += len(name) + len(headers[i][1])
	}
	if count > api.MaxResultHeaders || size > api.MaxResultHeaderBytes {
		return nil, false
	}
	if count == 0 {
		return nil, true
	}
	text, out := make(block, 0, size), make([]api.Header, 0, count)
	for i := range headers {
		if name := recordedName(headers[i][0], route, named, dated); name != "" {
			out = append(out, api.Header{Name: text.add(name), Value: text.add(headers[i][1])})
		}
	}
	return out, true
}

// recordedName returns the name under which a header is recorded; empty: it is not. dated: the answer has an original date
// already, as an upstream's own replay does.
func recordedName(name string, route *config.Route, named []string, dated bool) string {
	switch {
	case name == headerDate && !dated:
		name = config.OriginalDate
	case skipHeader(name, named) || route.Adds(name) || isChallenge(name):
		return ""
	}
	if !route.Response.Keeps(name) {
		return ""
	}
	return name
}

// isChallenge reports whether a header belongs to the exchange of credentials with one client.
func isChallenge(name string) bool {
	return name == "www-authenticate" || name == "authentication-info"
}

// skipHeader reports whether a header is left out of a recorded answer.
func skipHeader(name string, named []string) bool {
	if len(name) == 0 || name[0] == ':' {
		return true
	}
	switch name {
	case headerConnection, "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authentication-info",
		"te", headerTrailer, "transfer-encoding", headerUpgrade,
		// The proxy makes these for each answer.
		headerContentLength, headerDate, "age", headerServiceTime,
		// These are the gate's own, and describe this one answer.
		api.HeaderStatus, api.HeaderReplayed, headerLedger, headerTrailers, headerBody, headerAccepted, headerAnswer:
		return true
	}
	return slices.Contains(named, name) || strings.HasPrefix(name, trailerPrefix)
}

// addHeader adds a header of the gate's own to the recorded answer. False: there is no room.
func (a *answer) addHeader(name, value string) bool {
	size := len(name) + len(value)
	for i := range a.headers {
		size += len(a.headers[i].Name) + len(a.headers[i].Value)
	}
	fits := len(a.headers) < api.MaxResultHeaders && size <= api.MaxResultHeaderBytes
	if fits {
		a.headers = append(a.headers, api.Header{Name: name, Value: value})
	}
	return fits
}

// addDate adds the date to an answer that has none.
func (s *Stream) addDate() {
	if !s.route.Response.Keeps(config.OriginalDate) {
		return
	}
	for i := range s.answer.headers {
		if s.answer.headers[i].Name == config.OriginalDate {
			return
		}
	}
	s.answer.addHeader(config.OriginalDate, fields.Date(s.plugin.host.Now()))
}

// recordHead records an answer without its body, which replays do not have either.
func (s *Stream) recordHead() {
	a := &s.answer
	recorded := a.headers[:0]
	for _, h := range a.headers {
		if _, trailer := recordedTrailer(h.Name); !trailer && !config.DescribesBody(h.Name) {
			recorded = append(recorded, h)
		}
	}
	a.headers = recorded
	a.addHeader(headerBody, omitted)
	s.recordOutcome(nil, false)
}

// recordOutcome ends the reservation with upstream's answer. bare: without its body.
func (s *Stream) recordOutcome(body []byte, bare bool) {
	p, a := s.plugin, &s.answer
	result := api.Result{Status: a.status, Headers: a.headers, Body: body, BodyOmitted: bare}
	s.unclaimAnswer()
	called := s.route.Ledger == config.LedgerManager
	if called && !p.calls.makeRoom(len(body)) {
		result.BodyOmitted, result.Headers = true, nil
	}
	if result.BodyOmitted {
		result.Body = nil
		p.metrics.count(p.metrics.oversize)
	}
	p.stopRenewing(&s.reservation)
	kind := callCommit
	if a.outcome == config.OutcomeReject {
		kind = callReject
	}
	c := s.newCall(kind)
	s.owner = false
	if !called {
		c.result = result.AppendRaw(nil)
		p.cacheOutcome(c, p.host.Now(), true)
		return
	}
	c.encode(p, &result)
	c.stream, s.call = s, c
	p.calls.add(c)
}

// unclaimAnswer gives up the copy of the answer.
func (s *Stream) unclaimAnswer() {
	a := &s.answer
	s.plugin.calls.heldBytes -= a.claimed
	a.claimed, a.headers, a.body = 0, nil, nil
}

// endUnrecorded ends the reservation of an answer that is not recorded, as its outcome says. False: the outcome is one to
// record.
func (s *Stream) endUnrecorded() bool {
	switch s.answer.outcome {
	case config.OutcomeNone:
		s.endUnknown()
	case config.OutcomeRelease:
		s.releaseKey()
	case config.OutcomeHold:
		s.reportUnknown()
	default:
		return false
	}
	return true
}

// The actions for a commit or a reject. The answer of a stream that waits goes to the client then.

// endOutcome is for an outcome that the ledger has recorded.
func (p *Plugin) endOutcome(c *call, r *reply, s *Stream) {
	p.calls.unindex(c)
	c.cacheFor = r.answer.ExpiresIn
	p.cacheOutcome(c, r.at, true)
	s.answerRecorded()
}

// dropOutcome is for an outcome that the ledger did not record, because it has another one, or another attempt has the key.
func (p *Plugin) dropOutcome(c *call, r *reply, s *Stream) {
	p.calls.unindex(c)
	p.metrics.count(p.metrics.fenced)
	p.releaseEntry(c, r.at)
	p.settleEntry(c, r.at, r.at)
	s.answerRecorded()
}

// reduceOutcome sends the status alone to a ledger whose limit is lower than the gate's, or that does not accept something
// in the answer. The status still prevents a second run.
func (p *Plugin) reduceOutcome(c *call, r *reply, s *Stream) {
	if !c.answerDropped {
		c.dropAnswer(p)
		if c.stream = s; s != nil {
			s.call = c
		}
		p.calls.add(c)
		return
	}
	p.cacheOutcome(c, r.at, false)
	p.calls.abandon(c, "the manager refuses to record an outcome")
	s.answerRecorded()
}

// retryOutcome is for an outcome that has not reached the ledger. Upstream ran the request. The client and the duplicates
// in this proxy get the answer now, and the ledger gets it as soon as it can be reached.
func (p *Plugin) retryOutcome(c *call, r *reply, s *Stream) {
	p.cacheOutcome(c, r.at, false)
	p.calls.retryLater(c)
	s.answerRecorded()
}

// The entry in the cache.

// cacheOutcome fills the cache with the call's outcome, once. known: the ledger has it. Until then only the cache's entry
// keeps duplicates in this proxy from asking a ledger that would let them run, so the entry is not evicted.
func (p *Plugin) cacheOutcome(c *call, now int64, known bool) {
	keep := c.lasts()
	if c.cacheFor > 0 {
		keep = min(keep, c.cacheFor)
	}
	if c.cached {
		if known {
			p.settleEntry(c, now+int64(keep), now)
		}
		return
	}
	c.cached = true
	c.owner = false
	if c.kind == callReject {
		p.metrics.count(p.metrics.rejected)
	} else {
		p.metrics.count(p.metrics.committed)
	}
	p.finishEntry(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: c.kind.state(),
		Expires: now + int64(keep), Raw: c.result,
		// Where there is no ledger to ask, the entry must outlast its answer.
		CacheOnly: c.route.Ledger == config.LedgerNone || !known,
	}, now)
}

// settleEntry lets the cache evict the entry of a call that the ledger has answered, and keeps it until then at most.
func (p *Plugin) settleEntry(c *call, until, now int64) {
	if c.cached {
		p.table.Settle(&c.hash, &c.token, until, now)
	}
}

// finishEntry records an outcome in the cache and wakes the waiters of its entry.
func (p *Plugin) finishEntry(o *cache.Outcome, now int64) {
	p.change = entryChange{outcome: *o, left: maxChangeTries}
	p.changeEntry(&p.change, now)
}

// releaseEntry removes the call's pending entry from the cache, if it is there.
func (p *Plugin) releaseEntry(c *call, now int64) {
	if !c.owner {
		return
	}
	c.owner = false
	p.change = entryChange{outcome: cache.Outcome{Hash: c.hash, Token: c.token}, release: true, left: maxChangeTries}
	p.changeEntry(&p.change, now)
}

// entryChange is a change of a pending entry. It is tried again when the cache could not make it because too many others
// wrote to the same bucket. Otherwise the entry would keep duplicates waiting until it expires.
type entryChange struct {
	outcome cache.Outcome
	release bool
	left    int // tries that are left
}

const (
	// maxChangeTries bounds how often a change is tried, once per tick.
	maxChangeTries = 10
	// maxChanges bounds the changes that wait for another try. Beyond it they are dropped.
	maxChanges = 64
)

func (p *Plugin) changeEntry(w *entryChange, now int64) {
	var result cache.Result
	var queues []uint32
	if w.release {
		result, queues = p.table.Release(&w.outcome.Hash, &w.outcome.Token, now)
	} else {
		result, queues = p.table.Finish(&w.outcome, now)
	}
	p.wake(&w.outcome.Hash, queues)
	w.left--
	if result == cache.Contended && w.left > 0 && len(p.changes) < maxChanges {
		p.changes = append(p.changes, *w)
	}
	w.outcome.Raw = nil // the reused memory must not keep the answer
}

// retryChanges tries the failed changes again.
func (p *Plugin) retryChanges(now int64) {
	if len(p.changes) == 0 {
		return
	}
	changes := p.changes
	p.changes = nil
	for i := range changes {
		p.changeEntry(&changes[i], now)
	}
}
