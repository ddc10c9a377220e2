package gate

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Requests whose answers do not suit the gate's own upstream calls. The host hands over the answer to a call once it is
// whole, and the gate can hand on at most maxClientAnswerBytes of it. So the router carries a request whose body asks
// for a stream, and requests for a path that had such an answer.

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

// hashPath is FNV-1a. Two paths of one hash share what the gate has learned, which is right for the requests of both:
// the router can carry all requests. It is never 0.
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

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// targetOf returns method, host and path of a request, as a log line names them.
func targetOf(headers [][2]string) string {
	method, _ := lookup(headers, headerMethod)
	authority, _ := lookup(headers, headerAuthority)
	path, _ := lookup(headers, headerPath)
	return method + " " + authority + withoutQuery(path)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
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
	if more, due := r.learned.due(r.p.host.Now()); due {
		r.p.host.Log(LevelWarn, "oncegate: an answer for "+loggable(c.target)+" "+what+
			", which does not suit the gate's own upstream calls. The router carries further requests for that path, and cancels them when their clients leave. "+
			"Set client_abort to \"cancel\" there, or let clients name the type of a stream in Accept"+more)
	}
}

// forgetUnsuited forgets the path of a request that the router carried, if the gate could have handed on the whole answer. An
// answer with an error says nothing about the others.
func (s *Stream) forgetUnsuited() {
	if a := &s.answer; s.path != 0 && a.status < 400 && !a.streamed && a.passed <= maxClientAnswerBytes {
		s.plugin.carrier.unsuited.remove(s.path)
	}
}
