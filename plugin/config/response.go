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
}

// Keeps reports whether the header, whose name is in lower case, is recorded and replayed. The headers
// without which a client cannot read a recorded body always are, and OriginalDate is unless it is dropped.
func (p *Response) Keeps(name string) bool {
	return (name == OriginalDate || namesHeader(p.KeepHeaders, name)) && !namesHeader(p.DropHeaders, name) || describesBody(name)
}

// OriginalDate is the header with the date of the answer that a replay repeats.
const OriginalDate = "original-date"

// describesBody reports whether a client needs the header to read the body.
func describesBody(name string) bool { return name == "content-type" || name == "content-encoding" }

func namesHeader(list []string, name string) bool {
	for _, s := range list {
		if begin, any := strings.CutSuffix(s, "*"); s == name || any && strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}

// Problems says how the gate's problems refer to their documentation.
type Problems struct {
	// TypeBase stands before the problem's code in its type.
	TypeBase string
	// DocsURL goes along with each problem as a Link header; empty: none does.
	DocsURL string
}

const (
	// maxHeaderNames is small because the gate compares each header of an answer with all of them.
	maxHeaderNames = 64
	maxURLBytes    = 1024
)

func readResponse(r *reader, path string, v gjson.Result, p *Response) {
	r.object(path, v, []field{
		{"keep_headers", func(path string, v gjson.Result) { p.KeepHeaders = readHeaderPatterns(r, path, v, false) }},
		{"drop_headers", func(path string, v gjson.Result) { p.DropHeaders = readHeaderPatterns(r, path, v, true) }},
		{"body", func(path string, v gjson.Result) { p.NoBody = r.choice(path, v, "full", "none") == 1 }},
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
			return token(s, 128) && !strings.Contains(s[:len(s)-1], "*") && !(drop && describesBody(strings.ToLower(s)))
		})))
	})
	return names
}

// readReplayHeader reads the name of the header that marks replays. It may not replace a
// header that has its own meaning in every answer.
func readReplayHeader(r *reader, path string, v gjson.Result) string {
	return strings.ToLower(r.text(path, v, `a header name of up to 128 bytes that has no other meaning in answers`, func(s string) bool {
		switch strings.ToLower(s) {
		case "connection", "content-encoding", "content-length", "content-type", "date", "location", "set-cookie", "trailer",
			"transfer-encoding", "upgrade", OriginalDate, "link", "retry-after", "www-authenticate", api.HeaderStatus:
			return false
		}
		return token(s, 128)
	}))
}

func readProblems(r *reader, path string, v gjson.Result, p *Problems) {
	r.object(path, v, []field{
		{"type_base", func(path string, v gjson.Result) {
			p.TypeBase = r.text(path, v, `the beginning of a URI, of 1 to 1024 bytes, such as "https://docs.example.com/problems/"`, func(s string) bool {
				return absoluteURI(s)
			})
		}},
		{"docs_url", func(path string, v gjson.Result) {
			p.DocsURL = r.text(path, v, `"" or an http or https URL of up to 1024 bytes`, func(s string) bool {
				rest, ok := strings.CutPrefix(s, "https://")
				if !ok {
					rest, ok = strings.CutPrefix(s, "http://")
				}
				return s == "" || ok && rest != "" && rest[0] != '/' && absoluteURI(s)
			})
		}},
	})
}

// absoluteURI reports whether s begins with a URI's scheme and has only bytes that may stand in a URI.
func absoluteURI(s string) bool {
	scheme, _, ok := strings.Cut(s, ":")
	if !ok || !api.Visible(s, 1, maxURLBytes) || strings.ContainsAny(s, "\"<>\\^`{|}") || scheme == "" || !letter(scheme[0]) {
		return false
	}
	for i := 1; i < len(scheme); i++ {
		if c := scheme[i]; !letter(c) && (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
