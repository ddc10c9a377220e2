package gate

import (
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/request"
)

// Clients' look-ups: what became of a request whose answer was lost. A look-up reserves nothing, changes nothing in the
// cache, and never reaches the upstream.

const (
	methodGet     = "GET"
	methodHead    = "HEAD"
	statusPending = "pending"
)

// asksForLookUp reports whether the current request, by GET or HEAD, is a look-up. Other such requests should not cost more
// than one header.
func (p *Plugin) asksForLookUp() bool {
	where := p.config.Lookup
	if where == "" {
		return false
	}
	path, _ := p.host.RequestHeader(headerPath)
	rest, ok := strings.CutPrefix(path, where)
	return ok && (rest == "" || rest[0] == '?')
}

// readLookUp answers a look-up.
func (s *Stream) readLookUp(headers request.Headers, path string) verdict {
	p := s.plugin
	s.accept = fields.Joined(headers, headerAcceptEncoding)
	if s.route = p.config.First(); len(headers) == 0 {
		return s.invalid(&unreadableProblem)
	}
	_, query, _ := strings.Cut(path, "?")
	lost, paths := parameter(query, "path")
	method, methods := parameter(query, "method")
	exact, marks := parameter(query, "exact")
	if paths != 1 || methods > 1 || marks > 1 || marks == 1 && exact != "1" || !canBeLost(lost) {
		return s.invalid(&api.Problem{
			Status: 400, Code: api.CodeInvalidRequest, Title: "The look-up names no request",
			Detail: `The query needs path, once, percent-encoded: the path of the lost request, which starts with "/". It may have method, and exact=1 for a path that the proxy does not normalize.`,
		})
	}
	if marks == 0 {
		lost = normalized(lost)
	}
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

// canBeLost reports whether a look-up may name a path.
func canBeLost(path string) bool { return api.Visible(path, 1, maxLostPath) && path[0] == '/' }

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

// The actions for a look-up.

// showPending looks again after recheckPeriod, because the manager does not hold look-ups.
func (p *Plugin) showPending(_ *call, r *reply, s *Stream) {
	if !s.mayWait(r.at) {
		s.answerPending()
		return
	}
	s.notBefore = r.at + int64(recheckPeriod)
	p.startWaiting(s)
}

func (p *Plugin) showRecorded(_ *call, r *reply, s *Stream) {
	s.remembered = int64(r.answer.ExpiresIn)
	s.replay(&r.answer.Result)
}

func (p *Plugin) showUnknown(_ *call, _ *reply, s *Stream) { s.outcomeUnknown() }

// showNothing answers that the key is unknown, unless it may have moved to another ledger.
func (p *Plugin) showNothing(c *call, _ *reply, s *Stream) {
	if owner := p.calls.owner(&s.attempt); owner != c.shard {
		s.askLedger(owner)
		return
	}
	s.notFound()
}

func (p *Plugin) showUnavailable(_ *call, r *reply, s *Stream) {
	s.unavailable(unavailableProblem(r.retryAfter))
}

// Clients that prefer 202 to a long wait (respond_async). They look up the answer.

// readPreference reads the header Prefer (RFC 7240): respond-async, and wait in seconds. The gate ignores it where a look-up
// could not name the request.
func (s *Stream) readPreference(headers request.Headers) {
	if path, _ := headers.Get(headerPath); !s.route.RespondAsync || s.rpc || !canBeLost(path) {
		return
	}
	seconds := int64(0)
	for i := range headers {
		if headers[i][0] != "prefer" {
			continue
		}
		fields.EachToken(headers[i][1], func(token string) bool {
			token, _, _ = strings.Cut(token, ";")
			name, value, _ := strings.Cut(token, "=")
			switch fields.Lower(fields.Trim(name)) {
			case "respond-async":
				s.async = true
			case "wait":
				seconds, _ = fields.Decimal(fields.Trim(value))
			}
			return true
		})
	}
	// No route waits for more than an hour.
	s.patience = min(min(seconds, 3600)*int64(time.Second), int64(s.route.PendingWait))
}

// lookUpURL returns the path and query of the look-up of the current stream's request.
func (s *Stream) lookUpURL() string {
	const unreserved = "-._~/"
	const digits = "0123456789ABCDEF"
	p := s.plugin
	path, _ := p.host.RequestHeader(headerPath)
	method, _ := p.host.RequestHeader(headerMethod)
	b := append(make([]byte, 0, len(p.config.Lookup)+len(path)+64), p.config.Lookup+"?path="...)
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(unreserved, c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	b = append(b, "&method="+method...)
	if normalized(path) != path {
		b = append(b, "&exact=1"...)
	}
	b = append(b, "&wait_ms="...)
	return string(strconv.AppendInt(b, int64(s.route.PendingWait/time.Millisecond), 10))
}
