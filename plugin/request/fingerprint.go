package request

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/jsonguard"
)

// Fingerprint distinguishes a retry from another request. It has a base, and may have digests of the body's length and of the
// body. Two fingerprints may be of the same request if each part that both have is equal: see api.SameRequest.
type Fingerprint struct {
	base, body         [16]byte
	length             [4]byte
	hasLength, hasBody bool
}

// String returns the form that goes to the manager, as api.SameRequest describes it.
func (f *Fingerprint) String() string { return string(f.AppendText(nil)) }

// AppendText appends what String returns.
func (f *Fingerprint) AppendText(dst []byte) []byte {
	dst = hex.AppendEncode(dst, f.base[:])
	if f.hasLength || f.hasBody {
		dst = append(dst, '.')
	}
	if f.hasLength {
		dst = hex.AppendEncode(dst, f.length[:])
	}
	if f.hasBody {
		dst = hex.AppendEncode(append(dst, '.'), f.body[:])
	}
	return dst
}

// Short returns the form that the cache keeps: see cache.Fingerprint.
func (f *Fingerprint) Short() (s [16]byte) {
	shorten(s[:8], f.base[:], true)
	shorten(s[8:11], f.length[:], f.hasLength)
	shorten(s[11:], f.body[:], f.hasBody)
	return s
}

// shorten copies the beginning of a part. A part that is there does not become all zero.
func shorten(dst, part []byte, has bool) {
	if !has {
		return
	}
	var any byte
	for i := range dst {
		dst[i] = part[i]
		any |= part[i]
	}
	if any == 0 {
		dst[len(dst)-1] = 1
	}
}

// head sets sum to the digest of all that counts besides the body. Its first half is the base of the fingerprint. Its
// second half begins the input of the other parts, which cannot be computed without the secret then.
func (d *Digester) head(f *config.Fingerprint, h Headers) {
	d.buf = append(d.buf[:0], printLabel...)
	method, _ := h.Get(":method")
	path, _ := h.Get(":path")
	d.add(method)
	d.addPath(withoutQuery(path))
	d.addQuery(f, path)
	d.addContentType(f, h)
	if kindOf(f, h) == printBytes {
		d.addHeader(h, "content-digest")
	} else {
		// Content-Digest depends on every byte of the body.
		d.addHeader(nil, "content-digest")
	}
	for _, name := range f.Headers {
		d.add(name)
		d.addHeader(h, name)
	}
	d.finish(d.keyed)
}

// addContentType adds what counts of Content-Type.
func (d *Digester) addContentType(f *config.Fingerprint, h Headers) {
	switch f.ContentType {
	case config.ContentTypeNone:
		d.addHeader(nil, headerContentType)
	case config.ContentTypeExact:
		d.addHeader(h, headerContentType)
	default:
		_, n := h.Get(headerContentType)
		d.buf = binary.AppendUvarint(d.buf, uint64(n))
		for i := range h {
			if h[i][0] == headerContentType {
				d.text = appendMediaType(d.text[:0], h[i][1])
				d.buf = append(binary.AppendUvarint(d.buf, uint64(len(d.text))), d.text...)
			}
		}
	}
}

const headerContentType = "content-type"

// printKind is how one request's body is compared.
type printKind uint8

const (
	printBytes printKind = iota
	printParts           // by the parts of a multipart body
	printJSON            // by JSON values, and by bytes if the body is no JSON
	printForm            // by the fields of an URL-encoded form
	printNone
)

// kindOf returns how the body of a request with these headers is compared.
func kindOf(f *config.Fingerprint, h Headers) printKind {
	switch f.Body {
	case config.BodyRaw:
		return printBytes
	case config.BodyNone:
		return printNone
	}
	if encoding, _ := h.Get("content-encoding"); encoding != "" && encoding != "identity" {
		return printBytes
	}
	contentType, n := h.Get(headerContentType)
	switch {
	case n == 1 && isMedia(contentType, "multipart/") && boundaryOf(contentType) != "":
		return printParts
	case f.Body == config.BodyCanonicalJSON:
		return printJSON
	case f.Body == config.BodyForm && isMedia(contentType, "application/x-www-form-urlencoded"):
		return printForm
	}
	return printBytes
}

// Fingerprint digests what is known of a request before its body comes. f says what counts. end: the request has no
// body.
func (d *Digester) Fingerprint(f *config.Fingerprint, h Headers, end bool) (p Fingerprint) {
	d.head(f, h)
	p.base = [16]byte(d.sum[:16])
	if kind := kindOf(f, h); kind != printNone && kind != printParts {
		if n := declaredLength(h, end); n >= 0 {
			d.addLength(&p, n)
		}
	}
	return p
}

// addLength adds the length of the body. sum is that of head.
func (d *Digester) addLength(p *Fingerprint, n int64) {
	d.buf = append(append(d.buf[:0], d.sum[16:]...), 'l')
	d.buf = binary.AppendUvarint(d.buf, uint64(n))
	d.finish(d.plain)
	p.length, p.hasLength = [4]byte(d.sum[:4]), true
}

// declaredLength returns the length of the body that the headers declare, -1 if they do not.
func declaredLength(h Headers, end bool) int64 {
	if end {
		return 0
	}
	text, n := h.Get("content-length")
	length, err := strconv.ParseUint(text, 10, 63)
	if n != 1 || err != nil {
		return -1
	}
	return int64(length)
}

// BodyFingerprint digests a request with its body. After it, b may only go to Recycle.
func (d *Digester) BodyFingerprint(b *Body) (p Fingerprint) {
	p.base = [16]byte(b.head[:16])
	length, kind := b.n, byte('w')
	switch {
	case b.kind == printNone:
		return p
	case b.parts != nil:
		length, kind = -1, b.parts.finish(b.Truncated())
	case b.Truncated():
		length, kind = b.declared, 't'
	}
	d.buf = append(d.buf[:0], kind)
	b.sha.Write(d.buf)
	b.sha.Sum(d.sum[:0])
	p.body, p.hasBody = [16]byte(d.sum[:16]), true
	if length >= 0 && !b.canonical {
		d.sum = b.head
		d.addLength(&p, length)
	}
	return p
}

// parameter is a part of a query: its name without escapes, and the rest as sent.
type parameter struct{ name, rest string }

// addQuery adds the query as sent, or the parameters that count, ordered by name. Those of one name keep their order.
func (d *Digester) addQuery(f *config.Fingerprint, path string) {
	query := path[len(withoutQuery(path)):]
	switch {
	case f.Query == config.QueryAsSent && query != "":
		d.buf = append(d.buf, 1)
		d.addPath(query)
		return
	case f.Query == config.QueryNone || query == "" || query[0] != '?':
		query = ""
	default:
		query, _, _ = strings.Cut(query[1:], "#")
	}
	list := parameters(query)
	if f.Query == config.QueryNamed {
		list = slices.DeleteFunc(list, func(p parameter) bool { return !slices.Contains(f.QueryNames, p.name) })
	}
	d.buf = binary.AppendUvarint(d.buf, uint64(len(list)))
	for _, p := range list {
		d.add(p.name)
		d.addPath(p.rest)
	}
}

// parameters splits a query or an URL-encoded form, ordered by name. Parameters of one name keep their order.
func parameters(s string) (list []parameter) {
	for s != "" {
		var part string
		part, s, _ = strings.Cut(s, "&")
		if part == "" {
			continue
		}
		name := part
		if at := strings.IndexByte(part, '='); at >= 0 {
			name = part[:at]
		}
		list = append(list, parameter{unescape(name), part[len(name):]})
	}
	slices.SortStableFunc(list, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	return list
}

// unescape decodes %41 and +. What is not an escape stays.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '+':
			c = ' '
		case c == '%' && i+2 < len(s) && nibble(s[i+1]) >= 0 && nibble(s[i+2]) >= 0:
			c = byte(nibble(s[i+1])<<4 | nibble(s[i+2]))
			i += 2
		}
		b = append(b, c)
	}
	return string(b)
}

func nibble(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// appendCanonical is api.AppendCanonical for a body that may be anything. What is not JSON, or exceeds
// jsonguard.MaxDepth, has no canonical form either.
func appendCanonical(out, body []byte, f *config.Fingerprint) ([]byte, bool) {
	if !jsonguard.Valid(body) {
		return out, false
	}
	return api.AppendCanonical(out, body, f.Include, f.Exclude)
}

// appendForm appends the fields of an URL-encoded form without their escapes, ordered by name. Those of one name keep
// their order. False: there are more than maxFields.
func appendForm(out, body []byte) ([]byte, bool) {
	if bytes.Count(body, []byte("&")) >= maxFields {
		return out, false
	}
	for _, p := range parameters(string(body)) {
		value := unescape(strings.TrimPrefix(p.rest, "="))
		out = append(binary.AppendUvarint(out, uint64(len(p.name))), p.name...)
		out = append(binary.AppendUvarint(out, uint64(len(value))), value...)
	}
	return out, true
}

// maxFields is how many fields of a form, empty ones included, are compared by themselves. A form with more is compared by bytes.
const maxFields = 4096

// Canonical makes b the digest of its whole body's values, if f says so. It does nothing if the body has no such form:
// then it is compared byte by byte.
func (d *Digester) Canonical(b *Body, body []byte, f *config.Fingerprint) {
	if !b.NeedsWhole() || b.Truncated() {
		return
	}
	d.buf = append(append(d.buf[:0], b.head[16:]...), 'c')
	if b.kind == printForm {
		d.buf, b.canonical = appendForm(d.buf, body)
	} else {
		d.buf, b.canonical = appendCanonical(d.buf, body, f)
	}
	if b.canonical {
		b.sha.Reset()
		b.sha.Write(d.buf)
	}
	if clear(d.buf); cap(d.buf) > maxKeptBuffer {
		d.buf = make([]byte, 0, 512)
	}
	d.buf = d.buf[:0]
}

// maxKeptBuffer is the largest buffer, in bytes, that a Digester keeps.
const maxKeptBuffer = 64 << 10
