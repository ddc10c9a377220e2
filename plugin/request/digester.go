package request

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"github.com/oncegate/oncegate/plugin/config"
)

// Labels keep the digests of different purposes apart, and those of a future
// encoding from this one.
const (
	scopeLabel       = "oncegate scope 1"
	fingerprintLabel = "oncegate fingerprint 1"
)

// digester is the reusable state behind Digester.
type digester struct {
	plain hash.Hash // SHA-256
	keyed hash.Hash // what scopes are made with: plain or HMAC
	buf   []byte    // input of one digest
	sum   [sha256.Size]byte
}

func (d *digester) init(secret string) {
	d.plain = sha256.New()
	d.keyed = d.plain
	if secret != "" {
		d.keyed = hmac.New(sha256.New, []byte(secret))
	}
	d.buf = make([]byte, 0, 512)
}

// finish digests what was collected in buf.
func (d *digester) finish(h hash.Hash) []byte {
	h.Reset()
	h.Write(d.buf)
	// Credentials pass through buf: it keeps none.
	clear(d.buf)
	d.buf = d.buf[:0]
	return h.Sum(d.sum[:0])
}

func (d *digester) add(s string) {
	d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(len(s)))
	d.buf = append(d.buf, s...)
}

// addHeader adds all values of a header: their number, then each.
func (d *digester) addHeader(h Headers, name string) {
	_, n := h.Get(name)
	d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(n))
	if n == 0 {
		return
	}
	for i := range h {
		if h[i][0] == name {
			d.add(h[i][1])
		}
	}
}

func (d *digester) scope(parts []config.ScopePart, h Headers) string {
	d.buf = append(d.buf[:0], scopeLabel...)
	for i := range parts {
		p := &parts[i]
		d.buf = append(d.buf, byte(p.Kind))
		switch p.Kind {
		case config.ScopeHost:
			d.addLower(authority(h))
		case config.ScopePath:
			path, _ := h.Get(":path")
			d.add(withoutQuery(path))
		case config.ScopePathAndQuery:
			path, _ := h.Get(":path")
			d.add(path)
		case config.ScopeMethod:
			method, _ := h.Get(":method")
			d.add(method)
		case config.ScopeHeader:
			d.add(p.Header)
			d.addHeader(h, p.Header)
		}
	}
	return encode(d.finish(d.keyed))
}

func (d *digester) fingerprint(h Headers, body *Body) (f Fingerprint) {
	d.buf = append(d.buf[:0], fingerprintLabel...)
	method, _ := h.Get(":method")
	path, _ := h.Get(":path")
	d.add(method)
	d.add(path)
	d.addHeader(h, "content-type")
	d.addHeader(h, "content-digest")
	switch {
	case body == nil:
		d.buf = append(d.buf, 'h')
		d.addHeader(h, "content-length")
	case body.Truncated():
		d.buf = append(d.buf, 't')
		d.addHeader(h, "content-length")
		d.buf = body.b.sha.Sum(d.buf)
	default:
		d.buf = append(d.buf, 'b')
		d.buf = body.b.sha.Sum(d.buf)
	}
	d.finish(d.plain)
	return d.sum
}

func (d *digester) entryHash(scope, key string) (e [16]byte) {
	d.buf = d.buf[:0]
	d.add(scope)
	d.add(key)
	d.finish(d.plain)
	copy(e[:], d.sum[:])
	return e
}

// addLower adds s in lower case.
func (d *digester) addLower(s string) {
	d.buf = binary.BigEndian.AppendUint64(d.buf, uint64(len(s)))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		d.buf = append(d.buf, c)
	}
}

// authority is the request's host: :authority, or host where a test or another
// proxy hands over HTTP/1 names.
func authority(h Headers) string {
	if v, n := h.Get(":authority"); n > 0 {
		return v
	}
	v, _ := h.Get("host")
	return v
}

func withoutQuery(path string) string {
	for i := 0; i < len(path); i++ {
		if path[i] == '?' || path[i] == '#' {
			return path[:i]
		}
	}
	return path
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// body is the state behind Body.
type body struct {
	sha, md hash.Hash // md only where MD5 keys are derived
	limit   int
	n       int64
}

func (b *body) init(limit int, derive config.Derive) {
	b.limit = max(limit, 0)
	b.sha = sha256.New()
	if derive == config.DeriveMD5 {
		b.md = md5.New()
	}
}

func (b *body) write(p []byte) {
	room := int64(b.limit) - b.n
	b.n += int64(len(p))
	if room <= 0 {
		return
	}
	if int64(len(p)) > room {
		p = p[:room]
	}
	b.sha.Write(p)
	if b.md != nil {
		b.md.Write(p)
	}
}

// hexDigest returns the derived key's digest, "" when it was not computed.
func (b *body) hexDigest(derive config.Derive) string {
	switch {
	case derive == config.DeriveSHA256:
		return hex.EncodeToString(b.sha.Sum(nil))
	case derive == config.DeriveMD5 && b.md != nil:
		return hex.EncodeToString(b.md.Sum(nil))
	}
	return ""
}
