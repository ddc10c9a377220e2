package request

import (
	"slices"
	"strings"

	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// appendMediaType appends what counts of a Content-Type value: type and subtype in lower case, then the parameters in the
// order of their names. These do not count, because clients change or leave them out from try to try:
//
//   - boundary;
//   - charset, if it is UTF-8 or if the type is JSON, whose text is always UTF-8.
func appendMediaType(dst []byte, value string) []byte {
	media, rest, _ := strings.Cut(value, ";")
	start := len(dst)
	dst = fields.AppendLower(dst, fields.Trim(media))
	if rest == "" {
		return dst
	}
	media = string(dst[start:])
	var list []parameter
	for rest != "" {
		var p parameter
		p.name, p.rest, rest = nextParameter(rest)
		if p.name == "" || p.name == "boundary" || p.name == "charset" && (isUTF8(p.rest) || IsJSON(media)) {
			continue
		}
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	for _, p := range list {
		dst = append(append(append(dst, ';'), p.name...), '=')
		if p.name == "charset" {
			p.rest = fields.Lower(p.rest)
		}
		dst = append(dst, p.rest...)
	}
	return dst
}

// nextParameter reads one parameter of a media type: its name in lower case and its value without quotes.
func nextParameter(s string) (name, value, rest string) {
	end := 0
	for end < len(s) && s[end] != '=' && s[end] != ';' {
		end++
	}
	name = fields.Lower(fields.Trim(s[:end]))
	if end == len(s) || s[end] == ';' {
		return name, "", s[min(end+1, len(s)):]
	}
	s = fields.Trim(s[end+1:])
	if s == "" || s[0] != '"' {
		value, rest, _ = strings.Cut(s, ";")
		return name, fields.Trim(value), rest
	}
	b := make([]byte, 0, len(s))
	i := 1
	for ; i < len(s) && s[i] != '"'; i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b = append(b, s[i])
	}
	_, rest, _ = strings.Cut(s[min(i+1, len(s)):], ";")
	return name, string(b), rest
}

// IsJSON reports whether a media type, in lower case, is JSON.
func IsJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

func isUTF8(charset string) bool {
	charset = fields.Lower(charset)
	return charset == "utf-8" || charset == "utf8"
}

// isMedia reports whether a Content-Type value has this type and subtype, or any type that begins with media if that ends
// with a slash. media is in lower case.
func isMedia(value, media string) bool {
	at := len(media)
	if len(value) < at {
		return false
	}
	for i := range at {
		if c := value[i]; c != media[i] && (c < 'A' || c > 'Z' || c+'a'-'A' != media[i]) {
			return false
		}
	}
	return media[at-1] == '/' || len(value) == at || value[at] == ';' || fields.Blank(value[at])
}

// boundaryOf returns the boundary of a multipart body; "": it has none that RFC 2046 allows.
func boundaryOf(contentType string) string {
	_, rest, _ := strings.Cut(contentType, ";")
	for rest != "" {
		var name, value string
		name, value, rest = nextParameter(rest)
		if name == "boundary" && len(value) <= maxBoundary {
			return value
		}
	}
	return ""
}
