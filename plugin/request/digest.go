package request

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"strings"

	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// The labels keep digests of different purposes apart, and a future encoding
// apart from this one. They and the lengths are short because every 64 bytes
// of input take as long as a host call.
const (
	scopeLabel = "og scope 1"
	printLabel = "og print 1"
)

// Scope is a digest of what separates one caller's keys from another's.
type Scope [32]byte

// String returns the form that goes to the manager: 43 characters of base64url.
func (s *Scope) String() string { return string(s.AppendText(nil)) }

// AppendText appends what String returns.
func (s *Scope) AppendText(dst []byte) []byte { return base64.RawURLEncoding.AppendEncode(dst, s[:]) }

// Digester computes scopes, fingerprints and entry hashes. It reuses its state
// from call to call, so it belongs to one VM and is not safe for concurrent use.
type Digester struct {
	plain hash.Hash // SHA-256
	keyed hash.Hash // for scopes and fingerprints: plain, or HMAC with the secret
	buf   []byte    // input of one digest, empty between calls
	text  []byte    // for a part of buf
	sum   [sha256.Size]byte

	spares []*Body
}

// NewDigester returns a Digester. secret is the HMAC key of scopes and fingerprints; "": plain SHA-256.
func NewDigester(secret string) *Digester {
	d := &Digester{plain: sha256.New(), buf: make([]byte, 0, 512)}
	d.keyed = d.plain
	if secret != "" {
		d.keyed = hmac.New(sha256.New, []byte(secret))
	}
	return d
}

// finish stores the digest of buf in sum.
func (d *Digester) finish(h hash.Hash) {
	h.Reset()
	h.Write(d.buf)
	// buf may hold credentials, which must not stay in memory.
	clear(d.buf)
	d.buf = d.buf[:0]
	h.Sum(d.sum[:0])
}

func (d *Digester) add(s string) {
	d.buf = binary.AppendUvarint(d.buf, uint64(len(s)))
	d.buf = append(d.buf, s...)
}

// addHeader adds all values of a header: their number, then each value.
func (d *Digester) addHeader(h Headers, name string) {
	_, n := h.Get(name)
	d.buf = binary.AppendUvarint(d.buf, uint64(n))
	if n == 0 {
		return
	}
	for i := range h {
		if h[i][0] == name {
			d.add(h[i][1])
		}
	}
}

// Scope digests the parts of the request that separate one caller's keys from
// another's. A missing header and an empty one give different scopes. All values
// of a repeated header count.
func (d *Digester) Scope(parts []config.ScopePart, h Headers, property Property) Scope {
	d.buf = append(d.buf[:0], scopeLabel...)
	for i := range parts {
		p := &parts[i]
		d.buf = append(d.buf, byte(p.Kind))
		switch p.Kind {
		case config.ScopeHost:
			d.addLower(bareHost(authority(h)))
		case config.ScopePath:
			path, _ := h.Get(":path")
			d.addPath(withoutQuery(path))
		case config.ScopePathAndQuery:
			path, _ := h.Get(":path")
			d.addPath(path)
		case config.ScopeMethod:
			method, _ := h.Get(":method")
			d.add(method)
		case config.ScopeHeader:
			d.add(p.Name)
			d.addHeader(h, p.Name)
		case config.ScopeProperty:
			d.add(p.Name)
			if value, ok := property(p.Property...); ok {
				d.buf = append(d.buf, 1)
				d.add(string(value))
			} else {
				d.buf = append(d.buf, 0)
			}
		}
	}
	d.finish(d.keyed)
	return d.sum
}

// EntryHash names the entry of (scope, key) in the cache. It digests only the scope's first 16
// bytes, since its result has no more bits. With all 32, most clients' keys would need a
// second block of SHA-256.
func (d *Digester) EntryHash(scope *Scope, key string) (e [16]byte) {
	d.buf = append(d.buf[:0], scope[:len(e)]...)
	d.buf = append(d.buf, key...)
	d.finish(d.plain)
	copy(e[:], d.sum[:])
	return e
}

// addLower adds s in lower case.
func (d *Digester) addLower(s string) {
	d.buf = fields.AppendLower(binary.AppendUvarint(d.buf, uint64(len(s))), s)
}

// addPath adds a path or a part of it. %c3 and %C3 are the same byte, so they give the same digest.
func (d *Digester) addPath(s string) {
	d.add(s)
	if strings.IndexByte(s, '%') < 0 {
		return
	}
	b := d.buf[len(d.buf)-len(s):]
	for i := 0; i+2 < len(b); i++ {
		if b[i] != '%' || nibble(b[i+1]) < 0 || nibble(b[i+2]) < 0 {
			continue
		}
		for j := i + 1; j <= i+2; j++ {
			if 'a' <= b[j] && b[j] <= 'f' {
				b[j] -= 'a' - 'A'
			}
		}
		i += 2
	}
}

// authority returns the request's host: :authority, or host if a test or another
// proxy hands over HTTP/1 names.
func authority(h Headers) string {
	if v, n := h.Get(":authority"); n > 0 {
		return v
	}
	v, _ := h.Get("host")
	return v
}

// bareHost returns a host without its port and without the dot of a fully qualified name, so
// that all ways to write a host give the same scope. An IPv6 address keeps its brackets.
func bareHost(host string) string {
	end := len(host)
	for end > 0 && '0' <= host[end-1] && host[end-1] <= '9' {
		end--
	}
	// A host with other colons and no bracket is an IPv6 address without a port.
	if end > 0 && host[end-1] == ':' && (host[:end-1] == "" || host[end-2] == ']' || strings.IndexByte(host, ':') == end-1) {
		host = host[:end-1]
	}
	if n := len(host); n > 1 && host[n-1] == '.' {
		host = host[:n-1]
	}
	return host
}

func withoutQuery(path string) string {
	for i := 0; i < len(path); i++ {
		if path[i] == '?' || path[i] == '#' {
			return path[:i]
		}
	}
	return path
}
