package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// SourceKind says where a part of a key comes from.
type SourceKind uint8

// The kinds of sources.
const (
	SourceHeader   SourceKind = iota // a request header
	SourceQuery                      // a parameter of the query
	SourceCookie                     // a cookie
	SourcePath                       // a segment of the path
	SourceJSON                       // a field of a JSON body; only in ModeBody
	SourceMetadata                   // dynamic metadata that an earlier filter of the proxy has set
)

// Source is a part of a key.
type Source struct {
	Kind SourceKind
	// Name is the lower-case header name, the parameter, the cookie, or the plain gjson path.
	Name string
	// Segment counts the path's segments from 0, for SourcePath.
	Segment int
	// Property is the host's path of the value, for SourceMetadata.
	Property []string
	// Optional: the key may do without this part.
	Optional bool
	// Text is the source as configured, for errors.
	Text string
}

const (
	maxSources     = 8
	maxSegment     = 63
	jwtNamespace   = "envoy.filters.http.jwt_authn"
	sourcesAllowed = `"header:NAME", "query:NAME", "cookie:NAME", "path:N" (segment 0 to 63), "json:PATH", "jwt:PATH" or "metadata:NAMESPACE:PATH"; with "?" at the end, the key may do without it`
)

func readSources(r *reader, path string, v gjson.Result) (sources []Source) {
	r.list(path, v, 0, maxSources, "sources", func(path string, v gjson.Result) {
		var s Source
		r.text(path, v, sourcesAllowed, func(text string) (ok bool) {
			s, ok = parseSource(text)
			return ok
		})
		if slices.ContainsFunc(sources, func(have Source) bool { return have.Text == s.Text }) {
			r.fail(path, show(v.Raw)+" is listed twice; allowed: once")
		}
		sources = append(sources, s)
	})
	if len(sources) > 0 && !slices.ContainsFunc(sources, func(s Source) bool { return !s.Optional }) {
		r.fail(path, `all sources are optional; allowed: at least one without "?", which says whether a request has a key`)
	}
	return sources
}

// sent reports whether a client sends the source's value to name its request. Other values come with every request.
func (s *Source) sent() bool {
	return s.Kind == SourceHeader || s.Kind == SourceQuery || s.Kind == SourceJSON
}

// Tells reports whether a value of a source says that a request has a key. A header, a parameter and a field of the body
// do. A cookie, a segment of the path, a claim and metadata do only where no source without "?" is of these kinds.
func (k *Key) Tells(source int) bool {
	s := &k.Sources[source]
	if s.Optional || s.sent() {
		return !s.Optional
	}
	for i := range k.Sources {
		if other := &k.Sources[i]; !other.Optional && other.sent() {
			return false
		}
	}
	return true
}

func parseSource(text string) (s Source, ok bool) {
	kind, name, _ := strings.Cut(text, ":")
	name, s.Optional = strings.CutSuffix(name, "?")
	s.Name, s.Text = name, kind+":"+name
	plain := name != "" && len(name) <= 128
	switch kind {
	case "header":
		s.Kind, s.Name = SourceHeader, strings.ToLower(name)
		return s, token(name, 128)
	case "query":
		s.Kind = SourceQuery
		return s, plain
	case "cookie":
		s.Kind = SourceCookie
		return s, token(name, 128)
	case "path":
		n, err := strconv.Atoi(name)
		s.Kind, s.Segment = SourcePath, n
		return s, err == nil && n >= 0 && n <= maxSegment && strconv.Itoa(n) == name
	case "json":
		s.Kind = SourceJSON
		return s, name != "" && jsonPath(name)
	case "jwt", "metadata":
		s.Kind = SourceMetadata
		s.Property, ok = metadataProperty(kind, name)
		return s, ok
	}
	return s, false
}

// ToldInBody reports whether a field of the body says whether a request has a key.
func (k *Key) ToldInBody() bool {
	for i := range k.Sources {
		if k.Sources[i].Kind == SourceJSON && k.Tells(i) {
			return true
		}
	}
	return k.JSONPath != ""
}

// InBody reports whether the key, or a part of it, is in the body.
func (k *Key) InBody() bool {
	return k.JSONPath != "" || slices.ContainsFunc(k.Sources, func(s Source) bool { return s.Kind == SourceJSON })
}

// checkSources refuses sources that cannot work. path is the key's.
func (k *Key) checkSources(r *reader, path string, mode Mode) {
	if len(k.Sources) == 0 {
		return
	}
	// A header that says whether a request has a key, if there is one.
	k.Header = ""
	for i := range k.Sources {
		if s := &k.Sources[i]; k.Header == "" && s.Kind == SourceHeader && k.Tells(i) {
			k.Header = s.Name
		}
	}
	if k.JSONPath != "" || k.Derive != DeriveNone {
		r.fail(join(path, "sources"), "given together with json_path or derive; allowed: one of them")
	}
	for i := range k.Sources {
		if s := &k.Sources[i]; s.Kind == SourceJSON && mode != ModeBody {
			r.fail(join(path, "sources")+"["+strconv.Itoa(i)+"]", show(`"`+s.Text+`"`)+` needs the body; allowed: other sources unless "mode" is "body"`)
		}
	}
}
