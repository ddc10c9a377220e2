package gate

import (
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// The upstream calls that the gate makes itself (client_abort: continue), so that the work and its answer outlive the
// client's stream.

// carried is such a call. It belongs to the plugin. Its Stream, which has the reservation, stays in memory after the host's
// stream has ended.
type carried struct {
	stream     *Stream
	body       []byte // the request's body, until the call is sent
	size       int    // of the body, bytes
	id         uint32 // the host's id of the callout
	sent       int64  // time of the call, nanoseconds
	timeout    time.Duration
	clientGone bool // the client has left
	inner      bool // the call went to upstream.cluster
	question   *question
	target     string // method, host and path, for the log
}

// carrier makes the calls. It has slices and no map; the comment at ledger says why.
type carrier struct {
	p             *Plugin
	ready         []*carried
	inFlight      []*carried
	bytes         int  // of the request bodies of all calls, ready and in flight
	checkTimeouts bool // calls under way may have lost their answers, or their clients may not want to wait longer
	// missing are the log lines about clusters that the proxy does not have.
	missing limitedLog
	// surveys are about routes that ask for direct calls, rules are log lines about them.
	surveys []*survey
	rules   limitedLog
	// unsuited are the paths that the router carries because of their answers, learned are log lines about them.
	unsuited pathRing
	learned  limitedLog
}

// maxCarriedBytes bounds the request bodies of one VM's upstream calls. While a call is under way the host keeps two copies
// of its body.
const maxCarriedBytes = 64 << 20

func (r *carrier) idle() bool { return len(r.ready) == 0 && len(r.inFlight) == 0 }

// hasWork reports whether the next callback has work.
func (r *carrier) hasWork() bool { return len(r.ready) > 0 || r.checkTimeouts }

// outlivesClient reports whether the route wants a request to run on when its client has left.
func (s *Stream) outlivesClient() bool {
	return s.route.ClientAbort == config.AbortContinue && !s.ledgerUpstream()
}

// suitsUpstreamCall reports whether the gate must store the body of a request with these headers for an upstream call. The
// router carries requests that may have trailers, those whose answers do not suit a call (upstream.go), and those that
// HTTP/2, by which the call goes, does not allow.
func (s *Stream) suitsUpstreamCall(headers request.Headers) bool {
	if !s.outlivesClient() {
		return false
	}
	routed := false
	var method, authority, path string
	for i := range headers {
		switch value := headers[i][1]; headers[i][0] {
		case headerMethod:
			method = value
			// The answer to HEAD has a length and no body. A local reply cannot have that.
			routed = routed || value == methodHead
		case headerAuthority:
			authority = value
			routed = routed || !allowedAuthority(value)
		case headerPath:
			path = withoutQuery(value)
		case headerContentType:
			s.upload.json = len(s.route.StreamedTypes) > 0 && request.IsJSON(mediaType(value))
		case headerTrailer, headerExpect:
			routed = true
		case headerAccept:
			eachToken(value, func(token string) bool {
				routed = routed || s.route.Streamed(mediaType(token))
				return !routed
			})
		}
	}
	if routed {
		return false
	}
	s.path = hashPath(method, authority, path)
	return !s.plugin.carrier.unsuited.has(s.path)
}

// allowedAuthority reports whether Envoy's HTTP/2 takes a host. HTTP/1.1 allows more: an empty one, and "user@host".
func allowedAuthority(host string) bool {
	for i := 0; i < len(host); i++ {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~:[]", c) >= 0:
		default:
			return false
		}
	}
	return host != ""
}

// continues reports whether the gate makes the upstream call of a request that may run now. If it does not, the proxy
// cancels the request when its client leaves.
func (s *Stream) continues() bool {
	p, u := s.plugin, &s.upload
	if !s.outlivesClient() {
		return false
	}
	r := &p.carrier
	if !u.whole || len(r.ready)+len(r.inFlight) >= p.config.MaxUpstreamCalls || r.bytes+len(u.pieces) > maxCarriedBytes {
		p.metrics.count(p.metrics.routed)
		return false
	}
	return true
}

// carry queues the upstream call for the plugin context.
func (s *Stream) carry() verdict {
	p := s.plugin
	c := &carried{stream: s, body: s.upload.pieces, size: len(s.upload.pieces)}
	s.carried = c
	s.phase = phaseCarried
	p.carrier.bytes += c.size
	p.carrier.ready = append(p.carrier.ready, c)
	p.requestCallback()
	return verdictPause
}

// send makes the calls that are ready, answers clients that do not want to wait longer, and gives up calls whose answers
// got lost. It runs in the plugin context. False: no call was ready.
func (r *carrier) send() bool {
	if r.checkTimeouts {
		r.checkTimeouts = !r.checkTimes()
	}
	if len(r.ready) == 0 {
		return false
	}
	batch := r.ready
	r.ready = nil
	for i, c := range batch {
		if r.p.atLimit() {
			r.ready = append(r.ready, batch[i:]...)
			break
		}
		r.start(c)
	}
	return true
}

// start makes one call. A request whose call the host refuses has not run, so the router carries it; its answer then says
// what is wrong.
func (r *carrier) start(c *carried) {
	p, s := r.p, c.stream
	if c.clientGone || !p.makeCurrent(s.id) {
		r.removeCall(c)
		s.releaseKey()
		return
	}
	headers := s.addForwardHeaders(upstreamHeaders(p.headers[:0], p.host.RequestHeaders()))
	c.sent, c.timeout, c.target = p.host.Now(), s.route.Upstream.Timeout, targetOf(headers)
	cluster := s.route.Upstream.Cluster
	if cluster == "" {
		name, _ := p.host.Property("xds", "cluster_name")
		cluster = string(name)
	} else if direct, most, q := r.direct(headers, c.timeout, c.sent); direct != "" {
		cluster, c.timeout = direct, most
	} else {
		c.inner, c.question = true, q
	}
	status := CallNoCluster
	if cluster != "" && len(headers) > 0 {
		p.makeCurrent(0)
		c.id, status = p.host.Call(cluster, headers, c.body, c.timeout)
	}
	p.recycle(headers)
	c.body = nil
	if status == CallSent {
		s.dropBody()
		p.metrics.count(p.metrics.carried)
		if !c.inner {
			p.metrics.count(p.metrics.direct)
		}
		r.inFlight = append(r.inFlight, c)
		c.answerEarly(c.sent)
		return
	}
	r.removeCall(c)
	if status == CallNoCluster {
		p.logLimited(&r.missing, c.sent, LevelError, "no upstream call to cluster \"", cluster, "\": the proxy knows no such cluster, so the router carries the request")
	}
	p.metrics.count(p.metrics.routed)
	if p.makeCurrent(s.id) {
		s.apply(s.forwardByRouter())
	}
}

// removeCall removes a call from the counts and from its stream.
func (r *carrier) removeCall(c *carried) {
	r.bytes -= c.size
	c.size, c.body = 0, nil
	c.stream.carried = nil
}

// upstreamHeaders appends the headers of the upstream call to out: those of the request, without headers about the client's
// connection, and without headers that would make the host repeat the call.
func upstreamHeaders(out, headers [][2]string) [][2]string {
	for i := range headers {
		switch headers[i][0] {
		case headerConnection, "keep-alive", "proxy-connection", "transfer-encoding", headerUpgrade,
			"x-envoy-retry-on", "x-envoy-retry-grpc-on", "x-envoy-max-retries", "x-envoy-hedge-on-per-try-timeout":
			continue
		}
		out = append(out, headers[i])
	}
	return out
}

// Requests whose answers do not suit the gate's own upstream calls. The host hands over the answer to a call once it is
// whole, and the gate can hand on at most maxClientAnswerBytes of it. So the router carries a request whose body asks for a
// stream, and requests for a path that had such an answer.

// maxUnsuited bounds the paths that a VM remembers. A further one replaces the oldest.
const maxUnsuited = 256

// pathRing remembers hashes of paths; 0 is a free slot.
type pathRing struct {
	hashes []uint64
	next   int // the slot of the next path
}

func (r *pathRing) has(hash uint64) bool { return slices.Contains(r.hashes, hash) }

// add remembers a path. False: it was there.
func (r *pathRing) add(hash uint64) bool {
	if r.has(hash) {
		return false
	}
	if len(r.hashes) < maxUnsuited {
		r.hashes = append(r.hashes, hash)
		return true
	}
	r.hashes[r.next] = hash
	r.next = (r.next + 1) % maxUnsuited
	return true
}

func (r *pathRing) remove(hash uint64) {
	if at := slices.Index(r.hashes, hash); at >= 0 {
		r.hashes[at] = 0
	}
}

// hashPath is FNV-1a. Two paths of one hash share what the gate has learned, which is right for the requests of both: the
// router can carry all requests. It is never 0.
func hashPath(method, authority, path string) uint64 {
	hash := uint64(14695981039346656037)
	for _, text := range [...]string{method, authority, path} {
		for i := 0; i < len(text); i++ {
			hash = (hash ^ uint64(text[i])) * 1099511628211
		}
		hash = (hash ^ 0xff) * 1099511628211 // no method, host or path has this byte
	}
	return max(hash, 1)
}

// targetOf returns method, host and path of a request, as a log line names them.
func targetOf(headers [][2]string) string {
	method, _ := headerValue(headers, headerMethod)
	authority, _ := headerValue(headers, headerAuthority)
	path, _ := headerValue(headers, headerPath)
	return method + " " + authority + withoutQuery(path)
}

// asksForStream reports whether a JSON body asks for an answer that streams, as clients of OpenAI's API do.
func asksForStream(body []byte) bool { return gjson.GetBytes(body, "stream").Type == gjson.True }

// rememberUnsuited remembers the path of a call whose answer could not be handed on as it came. what completes the sentence
// "an answer ...".
func (c *carried) rememberUnsuited(what string) {
	r := &c.stream.plugin.carrier
	if !r.unsuited.add(c.stream.path) {
		return
	}
	r.p.logLimited(&r.learned, r.p.host.Now(), LevelWarn, "an answer for ", loggable(c.target), " ", what,
		", which does not suit the gate's own upstream calls. The router carries further requests for that path, and cancels them when their clients leave. ",
		"Set client_abort to \"cancel\" there, or let clients name the type of a stream in Accept")
}

// forgetUnsuited forgets the path of a request that the router carried, if the gate could have handed on the whole answer.
// An answer with an error says nothing about the others.
func (s *Stream) forgetUnsuited() {
	if a := &s.answer; s.path != 0 && a.status < 400 && !a.streamed && a.passed <= maxClientAnswerBytes {
		s.plugin.carrier.unsuited.remove(s.path)
	}
}

// Calls that go to the cluster of the request's route although the routes are in an inner listener, because that costs the
// proxy less. A route of the proxy asks for it in its metadata. Such a call passes none of the route's rules, so the gate
// makes sure that there are none: from time to time a call goes through the inner listener, which says what the request was
// there before and after the rules.

const (
	// surveyPeriod is the time for which the gate relies on what one call through the inner listener showed.
	surveyPeriod = 10 * time.Second
	// distrustPeriod is the time for which no call goes directly after a rule was seen. Rules may concern some requests
	// only.
	distrustPeriod = time.Minute
	// maxSurveys bounds the surveys that the gate keeps. Further calls go through the inner listener.
	maxSurveys = 64
	// maxTimeout stands for the time-out of a route that has none.
	maxTimeout = 24 * time.Hour
)

// surveyed is what a survey is about. Several routes may have one name, and not all of them the same rules, so what one
// path shows says nothing about another.
type surveyed struct {
	host, route, cluster string // the names that the proxy's configuration gives them; host is the virtual host
	method, path         string // path without query
}

// survey is what the gate knows about the rules for requests of one kind.
type survey struct {
	surveyed
	plain        bool          // the last answer that shows rules showed none
	asked, shown int64         // when the last call was made that shows rules, and when the last answer came; nanoseconds
	distrusted   int64         // until then no call goes directly, nanoseconds
	timeout      time.Duration // of the route
}

// question is a call that shows whether the route has rules.
type question struct {
	survey          *survey
	authority, path string // of the request as the gate sent it
}

// direct reports whether the call of the current stream may go to the cluster of its route, and within which time. If it
// may not, q is what to ask the inner listener; nil: nothing.
func (r *carrier) direct(headers [][2]string, timeout time.Duration, now int64) (cluster string, most time.Duration, q *question) {
	host := r.p.host
	if v, ok := host.Property("xds", "route_metadata", "filter_metadata", "oncegate", "direct"); !ok || len(v) != 1 || v[0] == 0 {
		return "", 0, nil
	}
	virtual, _ := host.Property("xds", "virtual_host_name")
	route, _ := host.Property("xds", "route_name")
	name, _ := host.Property("xds", "cluster_name")
	if len(route) == 0 || len(name) == 0 {
		r.logRules(now, "a route with \"direct\" in its metadata has no name")
		return "", 0, nil
	}
	about := surveyed{host: string(virtual), route: string(route), cluster: string(name)}
	var authority, path string
	for i := range headers {
		switch h := headers[i]; {
		case h[0] == headerAuthority:
			authority = h[1]
		case h[0] == headerPath:
			path = h[1]
			about.path = withoutQuery(path)
		case h[0] == headerMethod:
			about.method = h[1]
		case strings.HasPrefix(h[0], "x-envoy-upstream-rq-"):
			return "", 0, nil // a client that the proxy trusts sets the time-out, so it is not the route's
		}
	}
	v := r.survey(about, now)
	if v == nil {
		return "", 0, nil
	}
	if v.plain && now < v.asked+int64(surveyPeriod) && now < v.shown+int64(distrustPeriod) {
		return v.cluster, min(v.timeout, timeout), nil
	}
	v.asked = now
	return "", 0, &question{survey: v, authority: strings.Clone(authority), path: strings.Clone(path)}
}

// survey returns what is known about requests of one kind; nil: there are too many kinds.
func (r *carrier) survey(about surveyed, now int64) *survey {
	distrusted, unused := int64(0), -1
	for i, v := range r.surveys {
		if v.surveyed == about {
			return v
		}
		if v.sameRoute(about) {
			distrusted = max(distrusted, v.distrusted)
		}
		if now >= v.distrusted && now >= v.asked+int64(distrustPeriod) {
			unused = i
		}
	}
	about.method, about.path = strings.Clone(about.method), strings.Clone(about.path)
	v := &survey{surveyed: about, distrusted: distrusted}
	switch {
	case len(r.surveys) < maxSurveys:
		r.surveys = append(r.surveys, v)
	case unused >= 0:
		r.surveys[unused] = v
	default:
		return nil
	}
	return v
}

func (s *surveyed) sameRoute(other surveyed) bool {
	return s.host == other.host && s.route == other.route
}

// learnRules takes in what the inner listener said of an answer. After the words that described.fate reads come: the bytes
// of the request's headers before the route's rules and its x-envoy-expected-rq-timeout-ms, the same two after the rules,
// cluster, host and path.
func (r *carrier) learnRules(q *question, d *described, now int64) {
	v, words, why := q.survey, &d.words, ""
	before, ok1 := bytesWithoutTimeout(words[4], words[5])
	after, ok2 := bytesWithoutTimeout(words[6], words[7])
	switch {
	case words[0] != "via_upstream":
		if !refusedByFilter(words[1], words[2]) {
			return // another answer will show it
		}
		why = "a filter of the inner listener refused a request, or it has no route for it"
	case !ok1 || !ok2:
		why = "the inner listener does not say in " + headerAnswer + " what the route changes"
	case words[8] != v.cluster:
		why = "the route of the inner listener leads to another cluster"
	case d.path != q.path:
		why = "the route changes the path"
	case words[9] != q.authority:
		why = "the route changes the host"
	case before != after:
		why = "the route, or a filter after the gate, changes the request's headers"
	}
	if why == "" {
		v.plain, v.shown, v.timeout = now >= v.distrusted, now, maxTimeout
		if ms, ok := parseDecimal(words[7]); ok && ms > 0 && ms < maxTimeout.Milliseconds() {
			v.timeout = time.Duration(ms) * time.Millisecond
		}
		return
	}
	for _, other := range r.surveys {
		if other.sameRoute(v.surveyed) {
			other.plain, other.distrusted = false, now+int64(distrustPeriod)
		}
	}
	r.logRules(now, why+" (route \""+v.route+"\")")
}

// refusedByFilter finds out by flags and attempts of the proxy's own answer whether a filter gave it, or whether there was
// no route. The flags are those of a router that found no host, or a limit reached.
func refusedByFilter(flags, attempts string) bool {
	if attempts != "0" && attempts != "-" {
		return false
	}
	switch flags {
	case "UH", "UO", "OM", "DF", "DO":
		return false
	}
	return true
}

// bytesWithoutTimeout returns the bytes of a request's headers without x-envoy-expected-rq-timeout-ms, in which the router
// writes the route's time-out; "-": the request has none.
func bytesWithoutTimeout(all, timeout string) (int64, bool) {
	n, ok := parseDecimal(all)
	if timeout != "-" {
		n -= int64(len("x-envoy-expected-rq-timeout-ms") + len(timeout))
	}
	return n, ok && timeout != ""
}

// logRules says why calls of routes with "direct" go through the inner listener.
func (r *carrier) logRules(now int64, why string) {
	r.p.logLimited(&r.rules, now, LevelError, why, ", so the upstream calls go through the inner listener; remove \"direct\" from the route's metadata")
}
