package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Problems says what the gate's own refusals look like.
type Problems struct {
	// TypeBase stands before the problem's code in its type URI.
	TypeBase string
	// DocsURL goes along with each problem as a Link header; empty: none does.
	DocsURL string
	// MediaType is the Content-Type of problems.
	MediaType string
	// Body is a JSON object with placeholders, see AppendBody; empty: an RFC 9457 problem.
	Body string

	changed []problemChange
}

// problemChange is what a route changes of the problems with one code.
type problemChange struct {
	code       api.Code // others: all codes that nothing else names
	status     int      // 0: as it is
	name, kind string   // for {code} and {type}; empty: as it is
}

// Status returns the status of a problem.
func (p *Problems) Status(problem *api.Problem) int {
	if c := p.of(problem.Code); c.status != 0 {
		return c.status
	}
	return problem.Status
}

// of returns what changes about problems with a code.
func (p *Problems) of(code api.Code) (c problemChange) {
	for i := range p.changed {
		o := &p.changed[i]
		own := o.code == code
		if !own && o.code != others {
			continue
		}
		if o.status != 0 && (own || c.status == 0) {
			c.status = o.status
		}
		if o.name != "" && (own || c.name == "") {
			c.name = o.name
		}
		if o.kind != "" && (own || c.kind == "") {
			c.kind = o.kind
		}
	}
	return c
}

// AppendBody appends the body of a problem. id is the id of the request as JSON; empty: null.
func (p *Problems) AppendBody(dst []byte, problem *api.Problem, id string) []byte {
	changed := *problem
	changed.Status = p.Status(problem)
	if p.Body == "" {
		return changed.AppendTyped(dst, p.TypeBase)
	}
	c := p.of(problem.Code)
	if c.name == "" {
		c.name = string(problem.Code)
	}
	if c.kind == "" {
		c.kind = p.TypeBase + string(problem.Code)
	}
	for rest := p.Body; rest != ""; {
		word, before, after := nextPlaceholder(rest)
		dst, rest = append(dst, before...), after
		switch word {
		case "status":
			dst, rest = appendValue(dst, rest, strconv.Itoa(changed.Status))
		case "id":
			if id == "" {
				id = "null"
			}
			dst, rest = appendValue(dst, rest, id)
		case "code":
			dst = appendQuoted(dst, c.name)
		case "type":
			dst = appendQuoted(dst, c.kind)
		case "title":
			dst = appendQuoted(dst, problem.Title)
		case "detail":
			dst = appendQuoted(dst, problem.Detail)
		}
	}
	return dst
}

// appendValue appends a JSON value in the place of a placeholder, after which rest follows. A string that is the placeholder
// alone becomes the value.
func appendValue(dst []byte, rest, value string) ([]byte, string) {
	n := len(dst)
	after, ok := strings.CutPrefix(rest, `"`)
	if !ok || n < 2 || dst[n-1] != '"' || dst[n-2] == '\\' {
		return appendQuoted(dst, value), rest
	}
	return append(dst[:n-1], value...), after
}

// appendQuoted appends what stands between the quotes of a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	at := len(dst)
	dst = api.AppendJSONString(dst, s)
	copy(dst[at:], dst[at+1:])
	return dst[:len(dst)-2]
}

var placeholders = [...]string{"status", "id", "code", "type", "title", "detail"}

const placeholderList = "{code}, {type}, {title}, {detail}, {status} and {id}"

// nextPlaceholder splits a template at its first placeholder. word is empty if it has none.
func nextPlaceholder(s string) (word, before, after string) {
	for at := 0; at < len(s); at++ {
		if s[at] != '{' {
			continue
		}
		end := at + 1
		for end < len(s) && letter(s[end]) {
			end++
		}
		if end > at+1 && end < len(s) && s[end] == '}' {
			return s[at+1 : end], s[:at], s[end+1:]
		}
	}
	return "", s, ""
}

const (
	maxURLBytes      = 1024
	maxTemplateBytes = 4096
)

// others stands for the codes that are not named.
const others = "*"

// problemCodes are the codes of the gate's own refusals, and others.
var problemCodes = [...]api.Code{
	others,
	api.CodeInvalidRequest, api.CodeInvalidKey, api.CodeKeyRequired, api.CodeUnsupportedProtocol, api.CodeScopeAmbiguous,
	api.CodeNotFound, api.CodeEncodingNotAccepted, api.CodePending, api.CodeOutcomeUnknown, api.CodeAnswerNotRecorded,
	api.CodeFingerprintMismatch, api.CodeInternal, api.CodeBodyModeUnavailable, api.CodeRecordUnreadable,
	api.CodeManagerUnavailable, api.CodeUnavailable, api.CodeOverloaded, api.CodeLedgerFull, api.CodeQuarantine,
	api.CodeDurability, api.CodeWrongHome, api.CodeHomeUnavailable, api.CodeHomeUnanswered,
}

func readProblems(r *reader, path string, v gjson.Result, p *Problems) {
	text := func(set func(*problemChange, string)) func(string, gjson.Result) {
		return func(path string, v gjson.Result) {
			p.readChanges(r, path, v, func(path string, v gjson.Result, c *problemChange) {
				set(c, r.text(path, v, "a string of 1 to 128 bytes", func(s string) bool { return len(s) > 0 && len(s) <= 128 }))
			})
		}
	}
	r.object(path, v, []field{
		{"type_base", func(path string, v gjson.Result) {
			p.TypeBase = r.text(path, v, `the beginning of a URI, of 1 to 1024 bytes, such as "https://docs.example.com/problems/"`, absoluteURI)
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
		{"status", func(path string, v gjson.Result) {
			p.readChanges(r, path, v, func(path string, v gjson.Result, c *problemChange) { c.status = r.integer(path, v, 400, 599) })
		}},
		{"codes", text(func(c *problemChange, s string) { c.name = s })},
		{"types", text(func(c *problemChange, s string) { c.kind = s })},
		{"media_type", func(path string, v gjson.Result) {
			p.MediaType = r.text(path, v, "a media type of up to 127 bytes", func(s string) bool { return mediaType(s) && !strings.Contains(s, "*") })
		}},
		{"body", func(path string, v gjson.Result) { p.readBody(r, path, v) }},
	})
}

// readChanges reads an object whose members are named like problem codes. The codes that it names are merged into the
// inherited ones, which other routes share.
func (p *Problems) readChanges(r *reader, path string, v gjson.Result, read func(path string, v gjson.Result, c *problemChange)) {
	p.changed = append([]problemChange(nil), p.changed...)
	fields := make([]field, len(problemCodes))
	for i, code := range problemCodes {
		fields[i] = field{string(code), func(path string, v gjson.Result) {
			at := 0
			for at < len(p.changed) && p.changed[at].code != code {
				at++
			}
			if at == len(p.changed) {
				p.changed = append(p.changed, problemChange{code: code})
			}
			read(path, v, &p.changed[at])
		}}
	}
	r.object(path, v, fields)
}

// readBody reads a template.
func (p *Problems) readBody(r *reader, path string, v gjson.Result) {
	const allowed = "an object of up to 4096 bytes without blanks, whose strings may have " + placeholderList + "; {} for RFC 9457"
	text := v.Raw
	if len(text) > maxTemplateBytes {
		text = v.Get("@ugly").Raw // without blanks; an explanation has many
	}
	if !v.IsObject() || len(text) > maxTemplateBytes {
		r.refuse(path, v, allowed)
		return
	}
	p.Body = ""
	v.ForEach(func(gjson.Result, gjson.Result) bool {
		p.Body = text
		return false
	})
	for rest := p.Body; rest != ""; {
		word, _, after := nextPlaceholder(rest)
		if word != "" && !slices.Contains(placeholders[:], word) {
			r.fail(path, "{"+printable(word)+"}; allowed: "+placeholderList)
			return
		}
		rest = after
	}
	if p.Body != "" && !jsonguard.Valid(p.AppendBody(nil, &api.Problem{}, "")) {
		r.refuse(path, v, "placeholders in values only, not in members' names")
	}
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
