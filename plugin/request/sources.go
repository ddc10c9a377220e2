package request

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Part is what one source has for a key.
type Part struct {
	value string
	found bool
}

// HeaderParts reads the sources that are not in the body. property returns a property of the host. A source that
// is repeated or empty is an *Error; it never counts as absent. The values may be views of h.
func HeaderParts(k *config.Key, h Headers, property Property) ([]Part, *Error) {
	parts := make([]Part, len(k.Sources))
	path, _ := h.Get(":path")
	for i := range k.Sources {
		s, p := &k.Sources[i], &parts[i]
		n := 0
		switch s.Kind {
		case config.SourceHeader:
			p.value, n = h.Get(s.Name)
			p.value = strings.Trim(p.value, " \t")
			// A list may be a part, but not a key: a proxy makes one of two headers.
			if strings.HasPrefix(p.value, `"`) || len(parts) == 1 && p.value != "" {
				key, wrong := api.HeaderKey(p.value)
				if wrong != "" {
					return nil, invalid(s.Text, "", wrong)
				}
				p.value = key
			}
		case config.SourceQuery:
			p.value, n = queryValue(path, s.Name)
		case config.SourceCookie:
			p.value, n = cookieValue(h, s.Name)
		case config.SourcePath:
			p.value, n = pathSegment(path, s.Segment)
		case config.SourceMetadata:
			if value, ok := property(s.Property...); ok {
				p.value, n = string(value), 1
			}
		case config.SourceJSON:
			continue
		}
		p.found = n > 0
		switch {
		case n > 1:
			return nil, invalid(s.Text, "", "sent "+strconv.Itoa(n)+" times; allowed: once")
		case p.found && p.value == "":
			return nil, invalid(s.Text, "", "empty; allowed: a value, or none")
		}
	}
	return parts, nil
}

// BodyParts reads the sources in the body into parts. complete reports whether body is the whole body; an incomplete one
// has none, like one that is not JSON.
func BodyParts(k *config.Key, parts []Part, body []byte, complete bool) *Error {
	if !complete || !jsonguard.Valid(body) {
		return nil
	}
	for i := range k.Sources {
		s, p := &k.Sources[i], &parts[i]
		if s.Kind != config.SourceJSON {
			continue
		}
		v, twice := jsonAt(body, s.Name)
		if twice {
			return invalid(s.Text, "", twiceInBody)
		}
		switch v.Type {
		case gjson.String:
			p.value, p.found = v.Str, true
		case gjson.Number:
			p.value, p.found = v.Raw, true
		case gjson.Null:
		default:
			return invalid(s.Text, "", "neither a string nor a number")
		}
		if p.found && p.value == "" {
			return invalid(s.Text, "", "empty; allowed: a value, or none")
		}
	}
	return nil
}

// OwnParts copies the values, so that they do not keep the host's headers alive.
func OwnParts(parts []Part) {
	for i := range parts {
		parts[i].value = strings.Clone(parts[i].value)
	}
}

// Told reports whether some part says that the request has a key.
func Told(k *config.Key, parts []Part) bool {
	for i := range parts {
		if parts[i].found && k.Tells(i) {
			return true
		}
	}
	return false
}

// JoinParts makes the key of its parts. If no part says that there is a key, there is none. Otherwise each part that is not
// optional must be there, or the request is refused. A single part is the key itself. Several are joined by commas, each with its other bytes
// escaped; a part that is missing is "-". So different parts never give the same key. If that is too long for a
// key, its digest is the key.
func JoinParts(k *config.Key, parts []Part) (Key, *Error) {
	if !Told(k, parts) {
		return Key{}, nil
	}
	first := &k.Sources[0]
	if len(parts) == 1 {
		return check(k, first.Text, "", parts[0].value, api.WrongKey(parts[0].value))
	}
	if wrong := wrongFormat(k, parts[0].value); parts[0].found && wrong != "" {
		return Key{}, invalid(first.Text, "", wrong)
	}
	if k.Format == config.FormatUUID {
		parts[0].value = fields.Lower(parts[0].value)
	}
	var b []byte
	for i, p := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		switch {
		case p.found:
			b = appendEscaped(b, p.value)
		case k.Sources[i].Optional:
			b = append(b, '-')
		default:
			return Key{}, &Error{Code: api.CodeKeyRequired, Detail: "a part of the idempotency key is missing; expected " + k.Sources[i].Text}
		}
	}
	if len(b) > api.MaxKeyBytes {
		// A joined key has a comma, and this one has none.
		sum := sha256.Sum256(b)
		b = hex.AppendEncode([]byte("sha256:"), sum[:])
	}
	key := Key{Value: string(b)}
	key.StructuredKey, key.Structured = api.ParseStructuredKey(parts[0].value)
	return key, nil
}

// appendEscaped appends a part. A part that is "-" is escaped, because that stands for a missing one.
func appendEscaped(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c > '~' || c == '%' || c == ',' || s == "-" {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// queryValue returns the first value of a parameter, without escapes, and how often it comes.
func queryValue(path, name string) (value string, n int) {
	at := len(withoutQuery(path))
	if at == len(path) || path[at] != '?' {
		return "", 0
	}
	query, _, _ := strings.Cut(path[at+1:], "#")
	for query != "" {
		var part string
		part, query, _ = strings.Cut(query, "&")
		left, right, _ := strings.Cut(part, "=")
		if part == "" || unescape(left) != name {
			continue
		}
		if n++; n == 1 {
			value = unescape(right)
		}
	}
	return value, n
}

// cookieValue returns the first value of a cookie, and how often it comes.
func cookieValue(h Headers, name string) (value string, n int) {
	for i := range h {
		if h[i][0] != "cookie" {
			continue
		}
		list := h[i][1]
		for list != "" {
			var pair string
			pair, list, _ = strings.Cut(list, ";")
			left, right, _ := strings.Cut(pair, "=")
			if strings.Trim(left, " \t") != name {
				continue
			}
			if n++; n == 1 {
				value = strings.Trim(right, " \t")
			}
		}
	}
	return value, n
}

// pathSegment returns a segment of the path as sent. An empty one counts as missing.
func pathSegment(path string, at int) (string, int) {
	rest := strings.TrimPrefix(withoutQuery(path), "/")
	for ; at > 0; at-- {
		var more bool
		if _, rest, more = strings.Cut(rest, "/"); !more {
			return "", 0
		}
	}
	segment, _, _ := strings.Cut(rest, "/")
	if segment == "" {
		return "", 0
	}
	return segment, 1
}

// wrongFormat returns "" if a key has the route's format. Otherwise it says what is allowed.
func wrongFormat(k *config.Key, value string) string {
	switch k.Format {
	case config.FormatStructured:
		if _, ok := api.ParseStructuredKey(value); !ok {
			return "not of the form {client_id}:{sequence}:{nonce}, with a decimal sequence and a nonce of 16 hex digits"
		}
	case config.FormatUUID:
		if !uuid(value) {
			return "not a UUID; allowed: 32 hex digits in groups of 8-4-4-4-12"
		}
	case config.FormatPattern:
		if !k.Pattern.Match(value) {
			return "does not match the pattern of this route's keys"
		}
	}
	return ""
}

func uuid(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return false
			}
		} else if nibble(s[i]) < 0 {
			return false
		}
	}
	return true
}
