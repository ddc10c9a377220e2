package config

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Fingerprint says what makes a retry the same request as the first one.
type Fingerprint struct {
	Body        BodyPrint
	ContentType ContentTypePrint
	// Include are the fields of a JSON body that count; empty: all of it. Exclude are
	// those that do not count. Each is a path from the root, one name or position for each
	// level. Only with BodyCanonicalJSON.
	Include, Exclude [][]string
	Query            QueryPrint
	// QueryNames are the parameters that count, for QueryNamed.
	QueryNames []string
	// Headers are lower-case names of headers that count besides those that always do.
	Headers []string
}

// BodyPrint says how bodies are compared.
type BodyPrint uint8

// The values of BodyPrint.
const (
	BodyAuto          BodyPrint = iota // multipart by its parts, else as BodyRaw
	BodyRaw                            // byte by byte; in ModeHeaders by length and Content-Digest
	BodyCanonicalJSON                  // JSON by its values, else as BodyAuto; only in ModeBody
	BodyForm                           // URL-encoded forms by their fields, else as BodyAuto; only in ModeBody
	BodyNone                           // not at all
	bodyInherited                      // until check: BodyCanonicalJSON where a list needs it, else BodyAuto
)

// ContentTypePrint says how Content-Type is compared.
type ContentTypePrint uint8

// The values of ContentTypePrint.
const (
	ContentTypeMedia ContentTypePrint = iota // the media type, and those parameters that change what the body means
	ContentTypeExact                         // byte by byte
	ContentTypeNone                          // not at all
)

// QueryPrint says how queries are compared.
type QueryPrint uint8

// The values of QueryPrint. All but the first compare parameters by name, in any order.
const (
	// QueryAsSent compares byte by byte. A Fingerprint with any other field set never has it.
	QueryAsSent QueryPrint = iota
	QueryAll
	QueryNone
	QueryNamed
)

// maxPrintParts bounds each list of a fingerprint's settings. The digests keep a bit for each path.
const maxPrintParts = 32

func (f *Fingerprint) read(r *reader, path string, v gjson.Result) {
	r.object(path, v, []field{
		{"body", func(path string, v gjson.Result) {
			f.Body = BodyPrint(r.choice(path, v, "auto", "raw", "canonical_json", "form", "none"))
		}},
		{"content_type", func(path string, v gjson.Result) {
			f.ContentType = ContentTypePrint(r.choice(path, v, "media_type", "exact", "none"))
		}},
		{"include", func(path string, v gjson.Result) { f.Include = readPaths(r, path, v) }},
		{"exclude", func(path string, v gjson.Result) { f.Exclude = readPaths(r, path, v) }},
		{"query", func(path string, v gjson.Result) { f.readQuery(r, path, v) }},
		{"headers", func(path string, v gjson.Result) { f.Headers = readHeaderNames(r, path, v) }},
	})
}

func (f *Fingerprint) readQuery(r *reader, path string, v gjson.Result) {
	f.QueryNames = nil
	if !v.IsArray() {
		r.text(path, v, `"all", "none" or a list of names`, func(s string) bool {
			f.Query = QueryAll
			if s == "none" {
				f.Query = QueryNone
			}
			return s == "all" || s == "none"
		})
		return
	}
	f.Query = QueryNamed
	r.list(path, v, 0, maxPrintParts, "names", func(path string, v gjson.Result) {
		name := r.text(path, v, "a parameter's name of 1 to 128 bytes", func(s string) bool { return len(s) > 0 && len(s) <= 128 })
		f.QueryNames = appendOnce(r, path, v, f.QueryNames, name)
	})
}

// readHeaderNames reads a list of header names, in lower case.
func readHeaderNames(r *reader, path string, v gjson.Result) (names []string) {
	r.list(path, v, 0, maxPrintParts, "header names", func(path string, v gjson.Result) {
		name := r.text(path, v, "a header name of up to 128 bytes", func(s string) bool { return token(s, 128) })
		names = appendOnce(r, path, v, names, strings.ToLower(name))
	})
	return names
}

func appendOnce(r *reader, path string, v gjson.Result, list []string, s string) []string {
	if slices.Contains(list, s) {
		r.fail(path, show(v.Raw)+" is listed twice; allowed: once")
	}
	return append(list, s)
}

// readPaths reads a list of paths into a JSON body.
func readPaths(r *reader, path string, v gjson.Result) (paths [][]string) {
	var texts []string
	r.list(path, v, 0, maxPrintParts, "paths", func(path string, v gjson.Result) {
		s := r.text(path, v, `field names and array positions joined by dots, 1 to 255 bytes of letters, digits, "_", "-" and "\"`, func(s string) bool {
			return s != "" && jsonPath(s)
		})
		texts = appendOnce(r, path, v, texts, s)
		paths = append(paths, Segments(s))
	})
	return paths
}

// Segments splits a path at its dots. A backslash takes the byte after it as it is.
func Segments(path string) (list []string) {
	var name []byte
	for i := 0; i < len(path); i++ {
		switch {
		case path[i] == '.':
			list, name = append(list, string(name)), name[:0]
			continue
		case path[i] == '\\' && i+1 < len(path):
			i++
		}
		name = append(name, path[i])
	}
	return append(list, string(name))
}

// check completes the settings and refuses those that need the body where it is not read. path is the
// rule's path.
func (f *Fingerprint) check(r *reader, path string, mode Mode) {
	path = join(path, "fingerprint")
	lists := [...]struct {
		name  string
		given bool
	}{{"include", len(f.Include) > 0}, {"exclude", len(f.Exclude) > 0}}
	if f.Body == bodyInherited {
		f.Body = BodyAuto
		if lists[0].given || lists[1].given {
			f.Body = BodyCanonicalJSON
		}
	}
	for _, list := range lists {
		if list.given && mode != ModeBody {
			r.fail(join(path, list.name), `needs the body; allowed: [] unless "mode" is "body"`)
		} else if list.given && f.Body != BodyCanonicalJSON {
			r.fail(join(path, list.name), `needs the body as JSON; allowed: [] unless "fingerprint.body" is "canonical_json"`)
		}
	}
	for _, b := range [...]struct {
		print BodyPrint
		name  string
	}{{BodyCanonicalJSON, "canonical_json"}, {BodyForm, "form"}} {
		if f.Body == b.print && mode != ModeBody {
			r.fail(join(path, "body"), `"`+b.name+`" needs the body; allowed: "auto", "raw" or "none" unless "mode" is "body"`)
		}
	}
	if f.Query == QueryAsSent && (f.Body > BodyRaw || len(f.Headers) > 0) {
		f.Query = QueryAll
	}
}
