package gate

import (
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
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
			s.upload.json = len(s.route.StreamedTypes) > 0 && request.IsJSON(fields.MediaType(value))
		case headerTrailer, headerExpect:
			routed = true
		case headerAccept:
			fields.EachToken(value, func(token string) bool {
				routed = routed || s.route.Streamed(fields.MediaType(token))
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

// canCarry reports whether the gate makes the upstream call of a request that may run now. If it does not, the proxy
// cancels the request when its client leaves.
func (s *Stream) canCarry() bool {
	p, u := s.plugin, &s.upload
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
		why := "the proxy knows no cluster \"" + cluster + "\""
		switch {
		case cluster == "":
			why = "the proxy does not say to which cluster the route leads"
		case len(headers) == 0:
			why = "the proxy does not show the request's headers any more"
		}
		p.logLimited(&r.missing, c.sent, LevelError, "no upstream call, so the router carries the request: ", why)
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

// addForwardHeaders does so for the headers of the gate's own upstream call.
func (s *Stream) addForwardHeaders(headers [][2]string) [][2]string {
	if s.rewritesID() {
		headers = slices.DeleteFunc(headers, func(h [2]string) bool { return h[0] == headerAcceptEncoding })
	}
	if s.route.Forward == (config.Forward{}) {
		return headers
	}
	list := s.forwardHeaders()
	out := headers[:0]
	for _, h := range headers {
		if h[0] != list[0][0] && h[0] != list[1][0] && h[0] != list[2][0] && h[0] != list[3][0] {
			out = append(out, h)
		}
	}
	for _, h := range list {
		if h[0] != "" && h[1] != "" {
			out = append(out, h)
		}
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
	method, _ := fields.Value(headers, headerMethod)
	authority, _ := fields.Value(headers, headerAuthority)
	path, _ := fields.Value(headers, headerPath)
	return method + " " + authority + withoutQuery(path)
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
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
	if a := &s.answer; a.status < 400 && !a.streamed && a.passed <= maxClientAnswerBytes {
		s.plugin.carrier.unsuited.remove(s.path)
	}
}
