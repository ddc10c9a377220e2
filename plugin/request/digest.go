package request

import "github.com/oncegate/oncegate/plugin/config"

// DigestChars is the length of a scope and of a fingerprint in text form.
const DigestChars = 43

// Fingerprint is a digest of a request.
type Fingerprint [32]byte

// String returns the form that goes to the manager: 43 characters of base64url.
func (f *Fingerprint) String() string { return encode(f[:]) }

// Short returns the form that the cache keeps.
func (f *Fingerprint) Short() (s [16]byte) {
	copy(s[:], f[:])
	return s
}

// Digester computes scopes, fingerprints and entry hashes. It reuses its state
// from call to call, so it belongs to one VM and is not safe for concurrent use.
type Digester struct{ d digester }

// NewDigester returns a Digester; secret keys the scopes, "" leaves them unkeyed.
func NewDigester(secret string) *Digester {
	d := new(Digester)
	d.d.init(secret)
	return d
}

// Scope digests the parts of the request that separate one caller's keys from
// another's: 43 characters of base64url. A header that is missing differs from
// one that is empty, and all values of a repeated header count.
func (d *Digester) Scope(parts []config.ScopePart, h Headers) string { return d.d.scope(parts, h) }

// Fingerprint digests method, path with query, content type, content length and,
// when present, content digest. With body it digests the body as well: then the
// content length counts only when the body was longer than the limit, so that a
// sized and a chunked retry of the same request are equal.
func (d *Digester) Fingerprint(h Headers, body *Body) Fingerprint { return d.d.fingerprint(h, body) }

// EntryHash names the entry of (scope, key) in the cache.
func (d *Digester) EntryHash(scope, key string) [16]byte { return d.d.entryHash(scope, key) }

// Body digests a request body piece by piece, up to a limit. Not safe for
// concurrent use.
type Body struct{ b body }

// NewBody starts a digest of at most limit bytes. derive names the digest that a
// derived key needs in addition.
func NewBody(limit int, derive config.Derive) *Body {
	b := new(Body)
	b.b.init(limit, derive)
	return b
}

// Write adds the next piece; what is beyond the limit is counted, not digested.
func (b *Body) Write(p []byte) { b.b.write(p) }

// Len returns the number of bytes written so far.
func (b *Body) Len() int64 { return b.b.n }

// Full tells whether the limit is reached: further pieces change only Len, so a
// caller may stop buffering.
func (b *Body) Full() bool { return b.b.n >= int64(b.b.limit) }

// Truncated tells whether more than the limit was written.
func (b *Body) Truncated() bool { return b.b.n > int64(b.b.limit) }
