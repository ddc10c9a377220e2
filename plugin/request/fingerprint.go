package request

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/plugin/config"
)

// printLabel begins the fingerprints of routes that say what counts; see the package's documentation.
const printLabel = "og print 2"

// chosenHead starts the input of a fingerprint whose parts the route chooses: the label and the digest of what
// counts besides the body.
func (d *Digester) chosenHead(f *config.Fingerprint, h Headers) {
	d.buf = d.buf[:0]
	method, _ := h.Get(":method")
	path, _ := h.Get(":path")
	d.add(method)
	d.addPath(withoutQuery(path))
	d.addQuery(f, path)
	d.addHeader(h, "content-type")
	if f.Body == config.BodyRaw {
		d.addHeader(h, "content-digest")
	} else {
		// Content-Digest tells of every byte of the body.
		d.addHeader(nil, "content-digest")
	}
	for _, name := range f.Headers {
		d.add(name)
		d.addHeader(h, name)
	}
	d.finish(d.plain)
	d.buf = append(append(d.buf, printLabel...), d.sum[:]...)
}

// parameter is a part of a query: its name without escapes, and the rest as sent.
type parameter struct{ name, rest string }

// addQuery adds the parameters that count, ordered by name. Those of one name keep their order.
func (d *Digester) addQuery(f *config.Fingerprint, path string) {
	var list []parameter
	query := ""
	if at := len(withoutQuery(path)); at < len(path) && path[at] == '?' && f.Query != config.QueryNone {
		query, _, _ = strings.Cut(path[at+1:], "#")
	}
	for query != "" {
		var part string
		part, query, _ = strings.Cut(query, "&")
		if part == "" {
			continue
		}
		name := part
		if at := strings.IndexByte(part, '='); at >= 0 {
			name = part[:at]
		}
		p := parameter{unescape(name), part[len(name):]}
		if f.Query != config.QueryNamed || slices.Contains(f.QueryNames, p.name) {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	d.buf = binary.AppendUvarint(d.buf, uint64(len(list)))
	for _, p := range list {
		d.add(p.name)
		d.addPath(p.rest)
	}
}

// unescape decodes %41 and + in a parameter's name. What is not an escape stays.
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

// Canonical makes b the digest of the canonical form of its whole body. It does nothing if f asks for another
// comparison, or if the body has no such form: then it is compared byte by byte.
func (d *Digester) Canonical(b *Body, body []byte, f *config.Fingerprint) {
	if f.Body != config.BodyCanonicalJSON || b.Truncated() {
		return
	}
	d.buf = append(append(d.buf[:0], printLabel...), b.head[:]...)
	d.buf = append(d.buf, 'c')
	var ok bool
	if d.buf, ok = appendCanonical(d.buf, body, f); ok {
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
