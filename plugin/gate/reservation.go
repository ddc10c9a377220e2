package gate

import (
	"encoding/hex"
	"time"
	"unsafe"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
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

// names are the text forms by which the ledger knows an attempt.
type names struct{ scope, fingerprint, token string }

// names returns the attempt's text forms. They lie in memory that the next call reuses.
func (p *Plugin) names(a *attempt) names {
	b := a.scope.AppendText(p.nameBuf[:0])
	scope := len(b)
	b = a.fingerprint.AppendText(b)
	token := len(b)
	b = hex.AppendEncode(b, a.token[:])
	p.nameBuf = b
	text := unsafe.String(unsafe.SliceData(b), len(b))
	return names{scope: text[:scope], fingerprint: text[scope:token], token: text[token:]}
}

// unknownTTL is the TTL that the ledger gets.
func (a *attempt) unknownTTL() time.Duration {
	switch ttl := a.route.UnknownTTL; ttl {
	case 0:
		return api.NoUnknown
	case config.ManagersTTL:
		return 0
	default:
		return ttl
	}
}

// laterDurability is what calls after the reserve say. Only the home of a global key is looked for again.
func (a *attempt) laterDurability() api.Durability {
	if a.route.Durability == api.DurabilityGlobal {
		return api.DurabilityGlobal
	}
	return api.DurabilityLocal
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

const (
	// renewsPerTick bounds the renewals that one tick starts.
	renewsPerTick = 256
	// renewRetry is when the gate tries again after a renewal that the manager did not answer.
	renewRetry = int64(time.Second)
)

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

// renew starts the renewals that are due. It begins where the last tick stopped.
func (p *Plugin) renew(now int64) {
	started := 0
	for range p.renewing {
		if started == renewsPerTick {
			return
		}
		p.renewNext++
		if p.renewNext >= len(p.renewing) {
			p.renewNext = 0
		}
		r := p.renewing[p.renewNext]
		// A clock that was set back must not put the renewal off.
		if early := r.renewAt - now; early > 0 && early <= r.third() || r.renewal != nil {
			continue
		}
		started++
		r.renewAt = now + r.third()
		if r.owner {
			p.table.Renew(&r.hash, &r.token, r.pendingEnd(now), now)
		}
		if r.route.Ledger == config.LedgerManager {
			r.renewal = r.newCall(callRenew)
			r.renewal.renews = r
			p.calls.add(r.renewal)
		}
	}
}

// How reservations end.

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

// releaseKey ends the reservation and frees its key: nothing ran, or upstream asks for a retry.
func (s *Stream) releaseKey() {
	p := s.plugin
	s.phase = phaseDone
	p.stopRenewing(&s.reservation)
	switch {
	case s.route.Ledger == config.LedgerManager:
		p.sendRelease(&s.attempt, s.expires, s.uncertain)
	case s.owner:
		p.metrics.count(p.metrics.released)
		p.releaseEntry(s.newCall(callRelease), p.host.Now())
	}
	s.owner = false
}

// endUnknown ends the reservation without an outcome: upstream may have run the request, so no retry may run it.
func (s *Stream) endUnknown() {
	s.status = statusUnknown
	s.reportUnknown()
}

// reportUnknown is endUnknown for a request whose outcome upstream leaves open. It is settled later. Where upstream keeps
// the ledger, that ledger knows. Until the ledger has the report, the cache answers duplicates. After that each duplicate
// asks the ledger, so that an operator's resolution takes effect.
func (s *Stream) reportUnknown() {
	p := s.plugin
	if s.ledgerUpstream() || s.route.Resumable {
		s.releaseKey()
		return
	}
	s.phase = phaseDone
	p.stopRenewing(&s.reservation)
	p.metrics.count(p.metrics.unknownOutcomes)
	c := s.newCall(callUnknown)
	s.owner = false
	if c.route.UnknownTTL == 0 {
		return // the key is taken until the reservation runs out
	}
	c.owner = true
	now := p.host.Now()
	p.finishEntry(&cache.Outcome{
		Hash: c.hash, Token: c.token, Fingerprint: c.fingerprint.Short(), State: api.StateUnknown,
		Expires: now + int64(c.lasts()), CacheOnly: true,
	}, now)
	if c.route.Ledger == config.LedgerManager {
		p.calls.add(c)
	}
}

// emptyResult is the size of the raw form of a result without anything.
var emptyResult = len(new(api.Result).AppendRaw(nil))

// encode builds the message of a commit or reject; its tail is the raw result.
func (c *call) encode(p *Plugin, result *api.Result) {
	n := p.names(&c.attempt)
	f := api.FinishRequest{Key: c.key, Scope: n.scope, Token: n.token, Fingerprint: n.fingerprint, TTL: max(c.ttl(), 0), Durability: c.laterDurability()}
	// One block is enough for the message: each length, number and the frame take a few bytes.
	const few = 4
	size := 16*few + len(f.Key) + len(n.scope) + len(n.token) + len(n.fingerprint) + len(result.Body)
	for i := range result.Headers {
		size += 2*few + len(result.Headers[i].Name) + len(result.Headers[i].Value)
	}
	head := f.AppendRaw(make([]byte, 0, size))
	prefix := len(head) - emptyResult
	c.message = result.AppendRaw(head[:prefix])
	c.result = c.message[prefix:]
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

// cacheOutcome fills the cache with the call's outcome, once. known: the ledger has it. Until then only the cache's entry
// keeps duplicates in this proxy from asking a ledger that would let them run, so the entry is not evicted.
func (p *Plugin) cacheOutcome(c *call, now int64, known bool) {
	if c.cached {
		if known {
			p.allowEviction(c, now)
		}
		return
	}
	c.cached = true
	c.owner = false
	keep := c.lasts()
	if c.cacheFor > 0 {
		keep = min(keep, c.cacheFor)
	}
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

// allowEviction lets the cache evict the entry: the ledger has the call's outcome now.
func (p *Plugin) allowEviction(c *call, now int64) {
	if c.cached {
		p.table.Settle(&c.hash, &c.token, now)
	}
}
