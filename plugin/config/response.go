package config

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
)

// Response says what is recorded of an answer, and so what a replay repeats of it.
type Response struct {
	// KeepHeaders are the headers that are recorded, and DropHeaders those of them that are not, in lower
	// case. A name that ends in * stands for all names with that beginning; see Keeps.
	KeepHeaders, DropHeaders []string
	// NoBody: the body is not recorded, and replays have none.
	NoBody bool
	// EchoKey: each answer to a request with a key repeats the key, in the key's header.
	EchoKey bool
	// TTLHeader is the lower-case name of the header that says how long the answer is remembered, in seconds; empty: none.
	TTLHeader string
}

// Keeps reports whether the header, whose name is in lower case, is recorded and replayed. The headers
// without which a client cannot read a recorded body always are, and OriginalDate is unless it is dropped.
func (p *Response) Keeps(name string) bool {
	return (name == OriginalDate || listed(p.KeepHeaders, name)) && !listed(p.DropHeaders, name) || DescribesBody(name)
}

// EchoHeader is the name of the header in which answers repeat the key; empty: they do not.
func (t *Route) EchoHeader() string {
	switch {
	case !t.Response.EchoKey:
		return ""
	case t.Key.Header == "":
		return "idempotency-key"
	}
	return t.Key.Header
}

// checkOwnHeaders refuses headers of the gate's own in answers that stand for something else. path is the rule's path.
func (t *Route) checkOwnHeaders(r *reader, path string) {
	echo, ttl := t.EchoHeader(), t.Response.TTLHeader
	switch {
	case echo != "" && (!ownHeader(echo) || echo == t.ReplayHeader):
		r.fail(join(path, "response.echo_key"), "true, but "+show(`"`+echo+`"`)+` has another meaning in answers; allowed: false with this "key.header"`)
	case ttl != "" && (ttl == echo || ttl == t.ReplayHeader):
		r.fail(join(path, "response.ttl_header"), show(`"`+ttl+`"`)+" has another meaning in answers; allowed: another header name")
	}
}

// Adds reports whether the gate itself adds the header, whose name is in lower case, to answers or replays.
func (t *Route) Adds(name string) bool {
	return name == t.ReplayHeader || name == t.Response.TTLHeader || name == t.EchoHeader()
}

// OriginalDate is the header with the date of the answer that a replay repeats.
const OriginalDate = "original-date"

// DescribesBody reports whether a client needs the header to read the body.
func DescribesBody(name string) bool { return name == "content-type" || name == "content-encoding" }

// listed reports whether a list has the name. An item that ends in * stands for all names with that beginning.
func listed(list []string, name string) bool {
	for _, s := range list {
		if begin, any := strings.CutSuffix(s, "*"); s == name || any && strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}

// maxHeaderNames is small because the gate compares each header of an answer with all of them.
const maxHeaderNames = 64

func readResponse(r *reader, path string, v gjson.Result, p *Response) {
	r.object(path, v, []field{
		{"keep_headers", func(path string, v gjson.Result) { p.KeepHeaders = readHeaderPatterns(r, path, v, false) }},
		{"drop_headers", func(path string, v gjson.Result) { p.DropHeaders = readHeaderPatterns(r, path, v, true) }},
		{"body", func(path string, v gjson.Result) { p.NoBody = r.choice(path, v, "full", "none") == 1 }},
		{"echo_key", func(path string, v gjson.Result) { p.EchoKey = r.boolean(path, v) }},
		{"ttl_header", func(path string, v gjson.Result) {
			if v.Type == gjson.String && v.Str == "" {
				p.TTLHeader = ""
				return
			}
			p.TTLHeader = readOwnHeader(r, path, v)
		}},
	})
}

// readHeaderPatterns reads a list of headers' names. drop: the headers that describe the body are refused.
func readHeaderPatterns(r *reader, path string, v gjson.Result, drop bool) []string {
	allowed := `a header name of up to 128 bytes; a "*" at its end stands for any rest`
	if drop {
		allowed += `; not content-type and content-encoding, without which the body cannot be read`
	}
	var names []string
	r.list(path, v, 0, maxHeaderNames, "header names", func(path string, v gjson.Result) {
		names = append(names, strings.ToLower(r.text(path, v, allowed, func(s string) bool {
			return token(s, 128) && !strings.Contains(s[:len(s)-1], "*") && !(drop && DescribesBody(strings.ToLower(s)))
		})))
	})
	return names
}

// readOwnHeader reads the name of a header that the gate adds to answers.
func readOwnHeader(r *reader, path string, v gjson.Result) string {
	return strings.ToLower(r.text(path, v, `a header name of up to 128 bytes that has no other meaning in answers`, func(s string) bool {
		return token(s, 128) && ownHeader(strings.ToLower(s))
	}))
}

// ownHeader reports whether the gate may add a header of this name, in lower case, to answers. It may not replace a header
// that has its own meaning in every answer.
func ownHeader(name string) bool {
	switch name {
	case "connection", "content-encoding", "content-length", "content-type", "date", "location", "set-cookie", "trailer",
		"transfer-encoding", "upgrade", OriginalDate, "link", "retry-after", "www-authenticate", api.HeaderStatus:
		return false
	}
	return true
}
