package gate

import (
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// maxDecisions bounds how often one callback decides again because the entry changed meanwhile.
const maxDecisions = 4

// decide finds out what to do with the request.
func (s *Stream) decide() verdict {
	for range maxDecisions {
		if v := s.decideOnce(); v != verdictAgain {
			return v
		}
	}
	// The entry changes faster than the gate can look, so wait for the tick.
	s.plugin.startWaiting(s)
	return verdictPause
}

func (s *Stream) decideOnce() verdict {
	p := s.plugin
	now := p.host.Now()
	if s.firstDecided == 0 {
		s.firstDecided = now
	}
	if s.isLookUp {
		return s.answerLookUp(now)
	}
	e := &p.entry
	if p.table.Lookup(&s.hash, now, e) {
		return s.decideByEntry(e, now)
	}
	if c := p.calls.unacknowledgedCall(&s.hash); c != nil {
		return s.unacknowledged(c, now)
	}
	if !p.host.Random(s.token[:]) {
		return s.unprotected(unavailableProblem(0))
	}
	p.asked = cache.Reservation{
		Hash: s.hash, Token: s.token, Fingerprint: s.fingerprint.Short(), Owner: p.queue,
		Expires: s.pendingEnd(now), CacheOnly: s.ledgerNone(),
	}
	result, queues := p.table.Reserve(&p.asked, now, e)
	p.wakeAll(queues)
	switch result {
	case cache.Existing:
		return s.decideByEntry(e, now)
	case cache.Created:
		s.owner = true
	default:
		s.owner = false
		if s.ledgerNone() {
			// No ledger can decide instead of the cache.
			return s.unprotected(&overloadedProblem)
		}
	}
	return s.proceed(now)
}

// proceed continues with a request that is new as far as the cache knows.
func (s *Stream) proceed(now int64) verdict {
	if s.route.Ledger == config.LedgerManager {
		s.shard = s.plugin.calls.firstOwner(&s.attempt)
		return s.ask(callReserve, 0, false)
	}
	s.expires = now + int64(s.route.PendingTTL)
	return s.forward(now)
}

// ask makes a call for whose reply the stream waits: a look-up, or a reserve, which asks for the right to run the request.
// The manager may hold a reserve for wait nanoseconds while another attempt is pending. It may not hold the first one:
// nearly all keys are new, and the gate notices a manager that hangs within the time of an ordinary call. uncertain: an
// earlier reserve of the attempt may still be carried out.
func (s *Stream) ask(kind callKind, wait int64, uncertain bool) verdict {
	s.copyFromHeaders()
	c := s.newCall(kind)
	c.wait, c.uncertain = time.Duration(wait), uncertain
	c.stream, s.call = s, c
	s.phase = phaseReserving
	s.plugin.calls.add(c)
	return verdictPause
}

// decideByEntry deals with a request whose entry is in the cache.
func (s *Stream) decideByEntry(e *cache.Entry, now int64) verdict {
	p := s.plugin
	mine := cache.Fingerprint(s.fingerprint.Short())
	if e.Learned && !mine.Within(&e.Fingerprint) && s.route.Ledger == config.LedgerManager {
		// The ledger has compared another duplicate with the first request, not this one.
		return s.askLedgerOnly(now)
	}
	if !mine.Matches(&e.Fingerprint) {
		if s.route.Ledger == config.LedgerUpstream {
			// Upstream keeps the ledger, and may compare less strictly than the gate.
			s.owner = false
			return s.forward(now)
		}
		return s.mismatch()
	}
	switch e.State {
	case api.StateUnknown:
		return s.outcomeUnknown()
	case api.StatePending:
		if p.isDead(e.Owner, now) {
			return s.decideForOrphan(e, now)
		}
		return s.waitForEntry(e.Expires, now)
	}
	if state := e.State; s.replayCached(e, now) {
		s.countReplay(state)
		return verdictReplied
	}
	// The first request is done, but its answer is not in the cache.
	if s.ledgerNone() {
		s.replay(&api.Result{BodyOmitted: true})
		return verdictReplied
	}
	switch c := p.calls.unacknowledgedCall(&s.hash); {
	case c != nil:
		return s.unacknowledged(c, now)
	case e.CacheOnly:
		// The ledger does not know the outcome yet, so it would let the request run.
		return s.conflict(0)
	}
	return s.askLedgerOnly(now)
}

// unacknowledged deals with an outcome that this VM has and the ledger has not acknowledged. The cache's entry does not
// help: it was evicted, or has not been written yet.
func (s *Stream) unacknowledged(c *call, now int64) verdict {
	mine, entry := cache.Fingerprint(s.fingerprint.Short()), cache.Fingerprint(c.fingerprint.Short())
	switch {
	case !mine.Matches(&entry):
		return s.mismatch()
	case c.kind == callUnknown:
		return s.outcomeUnknown()
	case c.cached && s.replayRaw(c.result):
		s.countReplay(c.kind.state())
		return verdictReplied
	}
	return s.waitForCall(now)
}

// waitForCall makes the stream wait until a call of this VM has delivered the outcome. If it may not wait, it is answered.
func (s *Stream) waitForCall(now int64) verdict {
	if !s.mayWait(now) {
		return s.stillPending(0)
	}
	s.plugin.startWaiting(s)
	return verdictPause
}

// askLedgerOnly asks the ledger about a key without touching its entry in the cache, which does not help.
func (s *Stream) askLedgerOnly(now int64) verdict {
	s.owner = false
	if !s.plugin.host.Random(s.token[:]) {
		return s.unprotected(unavailableProblem(0))
	}
	return s.proceed(now)
}

// decideForOrphan deals with a pending entry whose VM is dead, so nothing in this proxy will end it. Only the ledger may
// know the request's outcome; without a ledger it stays unknown.
func (s *Stream) decideForOrphan(e *cache.Entry, now int64) verdict {
	s.plugin.metrics.count(s.plugin.metrics.orphaned)
	s.ownerDead = true
	switch {
	case !s.ledgerNone():
		return s.askLedgerOnly(now)
	case s.route.UnknownTTL == 0:
		return s.conflict(e.Expires - now)
	}
	return s.outcomeUnknown()
}

// outcomeUnknown refuses a duplicate of a request that may have run.
func (s *Stream) outcomeUnknown() verdict {
	return s.refuseAs(s.plugin.metrics.unknown, &unknownProblem)
}

func (s *Stream) mismatch() verdict { return s.refuseAs(s.plugin.metrics.mismatch, &mismatchProblem) }

// unprotected deals with a request that cannot be protected.
func (s *Stream) unprotected(problem *api.Problem) verdict {
	if s.route.FailureMode == config.FailOpen && !s.isLookUp {
		return s.bypass()
	}
	return s.unavailable(problem)
}

// unavailable refuses a request that cannot be protected.
func (s *Stream) unavailable(problem *api.Problem) verdict {
	return s.refuseAs(s.plugin.metrics.managerError, problem)
}

// bypass forwards the request without protection.
func (s *Stream) bypass() verdict {
	p := s.plugin
	p.metrics.count(p.metrics.bypass)
	s.recordWait()
	s.status = statusBypassed
	s.owner = false
	s.phase = phasePass
	return verdictForward
}

// forward sends the request upstream under the reservation that was made at since.
func (s *Stream) forward(since int64) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.miss)
	s.copyFromHeaders()
	s.recordWait()
	s.status, s.reservedAt = statusExecuted, since
	p.startRenewing(&s.reservation, since)
	if s.continues() {
		return s.carry()
	}
	return s.forwardByRouter()
}

// forwardByRouter lets the router carry the request.
func (s *Stream) forwardByRouter() verdict {
	s.dropBody()
	s.phase = phaseForwarded
	return verdictForward
}

// countReplay counts a replay, by whether the duplicate has waited for it.
func (s *Stream) countReplay(state api.State) {
	p := s.plugin
	switch {
	case s.recordWait():
		p.metrics.count(p.metrics.waited)
	case state == api.StateRejected:
		p.metrics.count(p.metrics.hitRejected)
	default:
		p.metrics.count(p.metrics.hitCommitted)
	}
}

// Clients' look-ups: what became of a request whose answer was lost. A look-up reserves nothing, changes nothing in the
// cache, and never reaches the upstream.

const (
	methodGet     = "GET"
	methodHead    = "HEAD"
	statusPending = "pending"
)

// asksForLookUp reports whether the current request is a look-up. Other requests by GET and HEAD should not cost more than
// one header.
func (p *Plugin) asksForLookUp(method string) bool {
	where := p.config.Lookup
	if where == "" || method != methodGet && method != methodHead {
		return false
	}
	path, _ := p.host.RequestHeader(headerPath)
	rest, ok := strings.CutPrefix(path, where)
	return ok && (rest == "" || rest[0] == '?')
}

// readLookUp answers a look-up.
func (s *Stream) readLookUp(headers request.Headers, path string) verdict {
	p := s.plugin
	s.accept = joined(headers, headerAcceptEncoding)
	if s.route = p.config.First(); len(headers) == 0 {
		return s.invalid(&unreadableProblem)
	}
	_, query, _ := strings.Cut(path, "?")
	lost, paths := parameter(query, "path")
	method, methods := parameter(query, "method")
	if paths != 1 || methods > 1 || !canBeLost(lost) {
		return s.invalid(&api.Problem{
			Status: 400, Code: api.CodeInvalidRequest, Title: "The look-up names no request",
			Detail: `The query needs path, once, percent-encoded: the path of the lost request, which starts with "/". It may have method.`,
		})
	}
	lost = normalized(lost)
	method, route := p.config.Lost(method, lost)
	if route == nil {
		return s.notFound()
	}
	s.route = route
	wait, waits := parameter(query, "wait_ms")
	ms, err := strconv.ParseUint(wait, 10, 32)
	if most := uint64(route.PendingWait / time.Millisecond); waits > 1 || waits == 1 && (err != nil || ms > most) {
		return s.invalid(&api.Problem{
			Status: 400, Code: api.CodeInvalidRequest, Title: "The look-up's wait is not valid",
			Detail: `wait_ms: "` + loggable(wait) + `"; allowed: once, a whole number from 0 to ` + strconv.FormatUint(most, 10),
		})
	}
	s.patience = int64(ms) * int64(time.Millisecond)
	// The scope is that of the lost request.
	lostHeaders := make(request.Headers, 0, len(headers))
	for _, h := range headers {
		switch h[0] {
		case headerMethod:
			h[1] = method
		case headerPath:
			h[1] = lost
		}
		lostHeaders = append(lostHeaders, h)
	}
	key, bad := lostKey(&route.Key, lostHeaders, p.host.Property)
	if bad != nil {
		return s.badRequest(bad)
	}
	if lacks := s.lacks(lostHeaders); lacks != "" {
		return s.refuseAmbiguous(lacks)
	}
	s.identify(key, lostHeaders)
	return s.decide()
}

// lostKey reads the key of a lost request. A look-up has no body. So a client sends a key that was in the body, or was
// derived from it, in a header. Joined keys are never taken from a header, because a client could then name the claims of
// another caller.
func lostKey(k *config.Key, lost request.Headers, property request.Property) (key request.Key, bad *request.Error) {
	source := *k
	source.Required, source.JSONPath, source.Derive = true, "", config.DeriveNone
	switch n := len(source.Sources); {
	case n > 1 && k.InBody():
		return key, &request.Error{Code: api.CodeInvalidRequest, Detail: "a part of this route's keys is in the body, and a look-up has none"}
	case n > 0 && !k.InBody():
		var parts []request.Part
		if parts, bad = request.HeaderParts(k, lost, property); bad == nil {
			key, bad = request.JoinParts(k, parts)
		}
	default:
		if source.Sources = nil; source.Header == "" {
			source.Header = api.HeaderIdempotencyKey
		}
		key, bad = request.HeaderKey(&source, lost)
	}
	if bad == nil && key.Value == "" {
		bad = request.Missing(&source)
	}
	return key, bad
}

// normalized returns a path as Envoy shows it to the gate with normalize_path and merge_slashes: without dot segments and
// repeated slashes. The query stays.
func normalized(path string) string {
	end := strings.IndexAny(path, "?#")
	if end < 0 {
		end = len(path)
	}
	segments := strings.Split(path[:end], "/")[1:]
	result := make([]string, 0, len(segments))
	for i, segment := range segments {
		switch dots := strings.ReplaceAll(strings.ToLower(segment), "%2e", "."); dots {
		case "":
			if i < len(segments)-1 {
				continue // a slash that another one follows
			}
			result = append(result, "")
		case ".", "..":
			if dots == ".." && len(result) > 0 {
				result = result[:len(result)-1]
			}
			if i == len(segments)-1 {
				result = append(result, "")
			}
		default:
			result = append(result, segment)
		}
	}
	return "/" + strings.Join(result, "/") + path[end:]
}

// parameter returns the first value of a query's parameter, without its escapes, and how often it is there.
func parameter(query, name string) (value string, count int) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		n, v, _ := strings.Cut(pair, "=")
		if n != name {
			continue
		}
		if count++; count == 1 {
			value = unescape(v)
		}
	}
	return value, count
}

// unescape decodes the percent escapes of a query's value. It leaves what is no escape as it is.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b, i = append(b, byte(c)), i+2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

// maxLostPath bounds the path that a look-up names, bytes.
const maxLostPath = 8192

// answerLookUp looks into the cache, then at the outcomes that the ledger does not have yet, then into the ledger.
func (s *Stream) answerLookUp(now int64) verdict {
	p := s.plugin
	e, ledger := &p.entry, !s.ledgerNone() && !s.ledgerUpstream()
	found := p.table.Lookup(&s.hash, now, e)
	switch c := p.calls.unacknowledgedCall(&s.hash); {
	case found && e.State == api.StateUnknown:
		return s.outcomeUnknown()
	case found && e.State == api.StatePending:
		if !p.isDead(e.Owner, now) {
			return s.waitForEntry(e.Expires, now)
		}
		if s.ownerDead = true; !ledger {
			return s.outcomeUnknown()
		}
	case found && s.replayCached(e, now):
		return verdictReplied
	case c != nil && c.kind == callUnknown:
		return s.outcomeUnknown()
	case c != nil && c.cached && s.replayRaw(c.result):
		return verdictReplied
	case c != nil:
		return s.waitForCall(now)
	case found && (!ledger || e.CacheOnly):
		s.replay(&api.Result{BodyOmitted: true})
		return verdictReplied
	}
	if !ledger {
		return s.notFound()
	}
	return s.askLedger(p.calls.firstOwner(&s.attempt))
}

// replayCached replays the answer of an entry. False: the cache does not have it.
func (s *Stream) replayCached(e *cache.Entry, now int64) bool {
	s.remembered = e.Expires - now
	if !e.HasBody {
		return false
	}
	raw, ok := s.plugin.table.Body(e)
	return ok && s.replayRaw(raw)
}

// askLedger asks a shard's manager.
func (s *Stream) askLedger(shard int) verdict {
	s.shard = shard
	return s.ask(callLookUp, 0, false)
}

// answerPending answers a look-up, or a client that prefers 202, that the request runs.
func (s *Stream) answerPending() verdict {
	s.status = statusPending
	headers := append(s.addStatus([][2]string{{headerContentType, api.ContentTypeJSON}}), [2]string{headerRetryAfter, "1"})
	if s.async {
		s.recordWait()
		headers = append(headers, [2]string{headerLocation, s.lookUpURL()}, [2]string{"preference-applied", "respond-async"})
	}
	s.reply(202, detailsPrefix+statusPending, headers, []byte(`{"state":"pending"}`))
	return verdictReplied
}

func (s *Stream) notFound() verdict {
	return s.refuse(&api.Problem{
		Status: 404, Code: api.CodeNotFound, Title: "No request with this key is known",
		Detail: "It did not arrive, its answer is not remembered any more, or another caller sent it.",
	})
}
